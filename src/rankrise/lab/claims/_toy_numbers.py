"""The numbers of theory runs that claims are about.

Symbols:
    T_k, L_k    times and losses of Algorithm 1 (the experiment `toy-stages`)
    t_k         activation times of the flow at α
"""

import math
from collections.abc import Callable

import numpy as np

from rankrise.lab.claims._claim import Finding, listed
from rankrise.lab.claims._toy_curves import activation_times, along, loss_curve, read_pushes
from rankrise.runs import Array, NotMeasurable, RunData

_AWAY = 0.05  # share of the fall of the loss; a flow that is farther from the limit is away from its plateau
_GRID = 4001  # times at which losses are compared
_EVEN = 2001  # times at which the fall of a loss is looked at
_EMERGED = 0.01  # share of the largest final singular value that a singular value must pass to have emerged
_PUSH = 0.1  # share of the noise; a perturbation that moves no product by as much is left out


def time_of_drop(times: Array, losses: Array, part: float = 0.9) -> float:
    """The share of the time that holds `part` of the fall of a loss, counted from the steepest places on.

    It is 0 for a loss that jumps, and near `part` for a straight line.

    >>> round(time_of_drop(np.array([0.0, 1.0]), np.array([1.0, 0.0])), 3)
    0.9
    >>> time_of_drop(np.array([0.0, 0.5, 0.501, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])) < 0.002
    True
    """
    grid = np.linspace(times[0], times[-1], _EVEN)
    falls = np.sort(np.maximum(-np.diff(np.interp(grid, times, losses)), 0))[::-1]
    total = falls.sum()
    if total <= 0:
        raise NotMeasurable("The loss does not fall.")
    return float((np.searchsorted(np.cumsum(falls), part * total * (1 - 1e-9)) + 1) / (_EVEN - 1))


def num_stages(times: Array, losses: Array, active_from: Array, part: float = 0.05) -> int:
    """How many coordinates become active after at least another `part` of the fall of the loss; the first one counts.

    Coordinates that become active together, before the loss has moved, are one stage.

    Args:
        times: The times of the curve of the loss.
        losses: The losses at these times.
        active_from: Time at which each coordinate becomes active; inf for never.
        part: The part of the fall of the loss.

    >>> times, losses = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> num_stages(times, losses, np.array([0.1, 0.12, 0.5])), num_stages(times, losses, np.array([0.1, 0.11, 0.12]))
    (2, 1)
    """
    lowest = np.minimum.accumulate(losses)
    ever = np.sort(active_from[np.isfinite(active_from)])
    if lowest[-1] >= losses[0] or not len(ever):
        raise NotMeasurable("The loss does not fall, or no coordinate becomes active.")
    count, last = 0, -np.inf
    for done in (losses[0] - np.interp(ever, times, lowest)) / (losses[0] - lowest[-1]):
        if done >= last + part:
            count, last = count + 1, done
    return count


def active_at_half(times: Array, losses: Array, active_from: Array) -> float:
    """The share of coordinates that are active when half of the fall of the loss is done, of those that ever are.

    Args:
        times: The times of the curve of the loss.
        losses: The losses at these times.
        active_from: Time at which each coordinate becomes active; inf for never.
    """
    ever = np.isfinite(active_from)
    if losses[-1] >= losses[0] or not ever.any():
        raise NotMeasurable("The loss does not fall, or no coordinate becomes active.")
    half = times[np.argmax(losses <= 0.5 * (losses[0] + losses[-1]))]
    return float((active_from[ever] <= half).mean())


def joins_per_stage(run: RunData) -> Finding:
    """The largest number of coordinates that enter the support in one stage."""
    support = along(run, "product") != 0
    new = (support[1:] & ~support[:-1]).sum(1)
    if not len(new):
        raise NotMeasurable(f"{run.source} has no stage.")
    return Finding(float(new.max()), f"{len(new)} stages, {int(support[-1].sum())} coordinates at the end.")


def leaves_in_limit(run: RunData) -> Finding:
    """How many times a coordinate leaves the support in the limit, and the least |q| of a coordinate in a support."""
    products = along(run, "product")
    support = products != 0
    left = (support[:-1] & ~support[1:]).sum()
    least = np.abs(products[support]).min(initial=math.inf)
    return Finding(float(left), f"{len(support) - 1} stages; the least |q| of a support is {least:.3g}.")


def leaves_in_flow(run: RunData) -> Finding:
    """How many coordinates fall below the threshold after they have passed it."""
    above = np.abs(along(run, "product")) > float(run.spec["threshold"])
    left = (above[:-1] & ~above[1:]).any(0)
    return Finding(float(left.sum()), f"{int(above.any(0).sum())} coordinates passed {run.spec['threshold']:g}.")


def time_of_transitions(run: RunData) -> Finding:
    """The share of the time that holds 90% of the fall of the loss."""
    return Finding(time_of_drop(*loss_curve(run)), "Of a straight line it would be 0.9.")


def gaps_from_limit(stages: RunData, flow: RunData) -> Array:
    """|L_α(t) − L_k| over the fall of the limit's loss on an even grid of times t; L_k is the limit's loss at t."""
    times, losses = loss_curve(flow)
    grid = np.linspace(0, times[-1], _GRID)
    at, levels = loss_curve(stages)
    if levels[-1] >= levels[0]:
        raise NotMeasurable(f"{stages.source} has no stage that lowers the loss.")
    limit = levels[np.searchsorted(at, grid, side="right") - 1]
    gaps: Array = np.abs(np.interp(grid, times, losses) - limit) / (levels[0] - levels[-1])
    return gaps


def distance_from_limit(stages: RunData, flow: RunData) -> Finding:
    """The distance of the loss from the loss of the limit, averaged over time."""
    gaps = gaps_from_limit(stages, flow)
    return Finding(float(gaps.mean()), f"{len(stages.scalar('time')) - 1} stages; at worst {gaps.max():.2f}.")


def transitions_vanish(stages: RunData, *flows: RunData) -> Finding:
    """The share of time away from every plateau of the limit, at the smallest α over that at the largest."""
    shares = [float((gaps_from_limit(stages, flow) > _AWAY).mean()) for flow in flows]
    detail = ", ".join(
        f"{share:.3f} at 1e{flow.spec['log10_alpha']:g}" for share, flow in zip(shares, flows, strict=True)
    )
    if shares[0] == 0:
        raise NotMeasurable("The flow at the largest α is never away from the limit.")
    return Finding(shares[-1] / shares[0], f"Share of the time: {detail}.")


def stage_distances(stages: RunData, flows: tuple[RunData, ...]) -> tuple[Array, Array]:
    """T_k, and |t_k − T_k| for each flow, of coordinates that become active in the limit or in a flow.

    A coordinate that is not active before the end counts as becoming active there, because no later time was computed:
    its distance is the least that it can be.
    """
    joined, at = stages.scalar("joined").astype(int), stages.scalar("time")[1:]
    if len(joined) != len(at):
        raise NotMeasurable(f"{stages.source} has {len(at)} times of {len(joined)} stages: run it again.")
    end = min(flow.scalar("time")[-1] for flow in flows)
    measured = np.minimum([activation_times(flow) for flow in flows], end)
    limit = np.full(measured.shape[1], end)
    np.minimum.at(limit, joined, at)
    either = (limit < end) | (measured < end).any(0)
    if either.sum() < 2:
        raise NotMeasurable("Fewer than two coordinates activate.")
    return limit[either], np.abs(measured[:, either] - limit[either])


def convergence_order(stages: RunData, *flows: RunData) -> Finding:
    """The order r in mean_k |t_k − T_k| ∝ log(1/α)^-r, by least squares of logarithms."""
    times, gaps = stage_distances(stages, flows)
    means = gaps.mean(1)
    if not means.min() > 0:
        return Finding(math.inf, f"{len(times)} times equal those of the limit.")
    inverse = np.array([-float(flow.spec["log10_alpha"]) for flow in flows]) * math.log(10)
    slope = float(np.polyfit(np.log(inverse), np.log(means), 1)[0])
    names = ", ".join(f"1e{flow.spec['log10_alpha']:g}" for flow in flows)
    return Finding(-slope, f"Mean distance of {len(times)} times {listed(means, '.3f')} at {names}.")


def worst_stage_time(stages: RunData, flow: RunData) -> Finding:
    """The largest relative distance of a stage time, max_k |t_k − T_k| / T_k."""
    times, gaps = stage_distances(stages, (flow,))
    relative = gaps[0] / times
    return Finding(float(relative.max()), f"{len(times)} stages, mean {relative.mean():.3f}.")


def stages_of_coordinates(run: RunData) -> Finding:
    """How many coordinates become active after another 5% of the loss has been learned."""
    times = activation_times(run)
    found = num_stages(*loss_curve(run), times)
    return Finding(float(found), f"{int(np.isfinite(times).sum())} coordinates become active.")


def active_at_half_loss(run: RunData) -> Finding:
    """The share of coordinates that are active when half of the loss has been learned."""
    times = activation_times(run)
    share = active_at_half(*loss_curve(run), times)
    return Finding(share, f"{int(np.isfinite(times).sum())} coordinates become active.")


def emerged_at_half_loss(run: RunData) -> Finding:
    """The share of singular values that have emerged when half of the loss has been learned, of those that ever do."""
    sigma = along(run, "spectrum")
    above = sigma > _EMERGED * sigma[-1].max()
    times, losses = loss_curve(run)
    first = np.where(above.any(0), times[above.argmax(0)], np.inf)
    share = active_at_half(times, losses, first)
    return Finding(share, f"{int(above.any(0).sum())} of {sigma.shape[1]} singular values emerge.")


def gaps_after(run: RunData) -> list[tuple[Array, Array]]:
    """Times since each perturbation, and max_i |q̃_i − q_i| / max_i |q_i| at them, of those that moved a product."""
    found = []
    for times, plain, moved in read_pushes(run):
        gaps = np.abs(moved - plain).max(1)
        if gaps[0] >= _PUSH * float(run.spec["noise"]):
            found.append((times, gaps / np.abs(plain[-1]).max()))
    if not found:
        raise NotMeasurable(f"No perturbation of {run.source} moved a product by a tenth of the noise.")
    return found


def sustained(times: Array, gaps: Array) -> float:
    """The least distance that is kept for a tenth of the time: the minimum over windows of the largest distance in one.

    >>> times = np.linspace(0, 1, 101)
    >>> round(sustained(times, np.abs(times - 0.5)), 3)  # passing through 0 is no return
    0.05
    """
    even = np.interp(np.linspace(times[0], times[-1], 101), times, gaps)
    return float(np.lib.stride_tricks.sliding_window_view(even, 11).max(-1).min())


def return_after(run: RunData, *, at_end: bool = False) -> Finding:
    """How near the perturbed products come and stay for a while, or how near they are at the end, over the push.

    Noise moves a coordinate that has just passed the threshold ahead of its time, so that later stages come a little
    earlier: the push is undone at first, and the two paths are apart again during a later stage.
    """
    found = gaps_after(run)
    pushed = np.array([gaps[0] for _, gaps in found])
    after = np.array([gaps[-1] if at_end else sustained(times, gaps) for times, gaps in found])
    what = "at the end" if at_end else "then within"
    detail = f"Pushed by {listed(pushed, '.3f')} of the largest product, {what} {listed(after, '.4f')}."
    return Finding(float((after / pushed).max()), detail, {"perturbations": len(found)})


def end_after(run: RunData) -> Finding:
    """The distance over the second half of the time that was followed, as its median.

    The value at the very end would not do: if stages follow closely, both paths may be in the middle of a later drop
    there, a little apart in time.
    """
    after = []
    for times, gaps in gaps_after(run):
        later = np.linspace(0.5 * (times[0] + times[-1]), times[-1], 101)
        after.append(float(np.median(np.interp(later, times, gaps))))
    detail = f"{listed(np.array(after), '.4f')} of the largest product."
    return Finding(max(after), detail, {"perturbations": len(after)})


def smallest(quantity: str) -> Callable[[RunData], Finding]:
    """A function that gives the smallest value of a scalar over the stages of a run."""

    def measure(run: RunData) -> Finding:
        values, num_stages = run.scalar(quantity), len(run.scalar("time")) - 1
        if len(values) != num_stages:
            raise NotMeasurable(f"{run.source} has `{quantity}` of {len(values)} of {num_stages} stages: run it again.")
        return Finding(float(values.min()), f"{len(values)} stages, median {np.median(values):.3g}.")

    return measure
