"""Numbers of theory runs that claims are about.

Symbols:
    T_k, L_k    times and losses of Algorithm 1 (run `toy-stages`); t_k activation times of the flow at α
    A           log(1/α)
"""

import math
from collections.abc import Callable

import numpy as np

from rankrise.experiments.claims._claim import Finding, NotMeasurable
from rankrise.experiments.claims._curves import active_at_half, listed, num_stages, time_of_drop
from rankrise.experiments.claims._runs import Array, RunData

_AWAY = 0.05  # of the fall of the loss
_GRID = 4001  # times at which losses are compared
_EMERGED = 0.01  # of the largest final singular value


def joins_per_stage(run: RunData) -> Finding:
    """The most coordinates that enter the support in one stage."""
    support = run.products() != 0
    new = (support[1:] & ~support[:-1]).sum(1)
    if not len(new):
        raise NotMeasurable(f"{run.source} has no stage.")
    return Finding(float(new.max()), f"{len(new)} stages, {int(support[-1].sum())} coordinates at the end.")


def leaves_in_limit(run: RunData) -> Finding:
    """How many times a coordinate leaves the support in the limit."""
    support = run.products() != 0
    left = (support[:-1] & ~support[1:]).sum()
    return Finding(float(left), f"{len(support) - 1} stages.")


def leaves_in_flow(run: RunData) -> Finding:
    """How many coordinates fall below the threshold after they passed it."""
    above = np.abs(run.products()) > float(run.spec["threshold"])
    left = (above[:-1] & ~above[1:]).any(0)
    return Finding(float(left.sum()), f"{int(above.any(0).sum())} coordinates passed {run.spec['threshold']:g}.")


def time_of_transitions(run: RunData) -> Finding:
    """The share of the time that holds 90% of the fall of the loss."""
    return Finding(time_of_drop(run.scalar("time"), run.scalar("loss")), "Of a straight line it would be 0.9.")


def gaps_from_limit(stages: RunData, flow: RunData) -> Array:
    """|L_α(t) − L_k| over the fall of the limit's loss, L_k the limit's at t, on an even grid of times."""
    times, losses = flow.scalar("time"), flow.scalar("loss")
    grid = np.linspace(0, times[-1], _GRID)
    at, levels = stages.scalar("time"), stages.scalar("loss")
    limit = levels[np.searchsorted(at, grid, side="right") - 1]
    gaps: Array = np.abs(np.interp(grid, times, losses) - limit) / (levels[0] - levels[-1])
    return gaps


def distance_from_limit(stages: RunData, flow: RunData) -> Finding:
    """The average of these over time."""
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
    """T_k, and |t_k − T_k| for each flow, of coordinates that activate in the limit and in every flow."""
    joined, at = stages.scalar("joined").astype(int), stages.scalar("time")[1:]
    first: dict[int, float] = {}
    for i, time in zip(joined.tolist(), at.tolist(), strict=True):
        first.setdefault(i, time)
    coordinates, limit = np.array(list(first)), np.array(list(first.values()))
    measured = np.stack([flow.activation_times()[coordinates] for flow in flows])
    both = np.isfinite(measured).all(0)
    if both.sum() < 2:
        raise NotMeasurable("Fewer than two coordinates activate in the limit and in every flow.")
    return limit[both], np.abs(measured[:, both] - limit[both])


def convergence_order(stages: RunData, *flows: RunData) -> Finding:
    """Order r in mean_k |t_k − T_k| ∝ A^-r, by least squares of logarithms."""
    times, gaps = stage_distances(stages, flows)
    means = gaps.mean(1)
    if not means.min() > 0:
        return Finding(math.inf, f"{len(times)} times equal those of the limit.")
    inverse = np.array([-float(flow.spec["log10_alpha"]) for flow in flows]) * math.log(10)
    slope = float(np.polyfit(np.log(inverse), np.log(means), 1)[0])
    names = ", ".join(f"1e{flow.spec['log10_alpha']:g}" for flow in flows)
    return Finding(-slope, f"Mean distance of {len(times)} times {listed(means, '.3f')} at {names}.")


def worst_stage_time(stages: RunData, flow: RunData) -> Finding:
    """Largest relative distance of a stage time, max_k |t_k − T_k| / T_k."""
    times, gaps = stage_distances(stages, (flow,))
    relative = gaps[0] / times
    return Finding(float(relative.max()), f"{len(times)} stages, mean {relative.mean():.3f}.")


def detected_stages(run: RunData) -> Finding:
    """How many drops between plateaus the loss has."""
    return Finding(
        float(num_stages(run.scalar("time"), run.scalar("loss"))), "Drops that follow each other closely count as one."
    )


def active_at_half_loss(run: RunData) -> Finding:
    """The share of coordinates that is active when half of the loss is learned."""
    times = run.activation_times()
    share = active_at_half(run.scalar("time"), run.scalar("loss"), times)
    return Finding(share, f"{int(np.isfinite(times).sum())} coordinates become active.")


def emerged_at_half_loss(run: RunData) -> Finding:
    """The same of singular values of both products, of those that pass a hundredth of the largest."""
    sigma = np.concatenate([run.path("spectrum", circuit)[1][:, 0, 0] for circuit in ("kq", "vo")], axis=1)
    above = sigma > _EMERGED * sigma[-1].max()
    times = run.scalar("time")
    first = np.where(above.any(0), times[above.argmax(0)], np.inf)
    share = active_at_half(times, run.scalar("loss"), first)
    return Finding(share, f"{int(above.any(0).sum())} of {sigma.shape[1]} singular values emerge.")


def gaps_after(run: RunData) -> list[tuple[Array, Array]]:
    """Times since each perturbation, and max_i |q̃_i − q_i| / max_i |q_i| at them."""
    paths = {
        quantity: [run.path(quantity, circuit)[1][:, 0] for circuit in ("kq", "vo")]
        for quantity in ("product", "product_perturbed")
    }
    plain, moved = (np.concatenate(halves, axis=-1) for halves in paths.values())  # (S, perturbations, 2d)
    found = []
    for n in range(plain.shape[1]):
        steps = np.flatnonzero(np.isfinite(plain[:, n, 0]))
        gaps = np.abs(moved[steps, n] - plain[steps, n]).max(1) / np.abs(plain[steps[-1], n]).max()
        found.append((run.scalar("time")[steps], gaps))
    return found


def return_after(run: RunData) -> Finding:
    """How near the perturbed products come, as a part of the push.

    A coordinate that had just passed the threshold is pushed ahead of its time, and what follows comes a little
    earlier: what counts is that the push itself is undone.
    """
    found = gaps_after(run)
    pushed, nearest = (np.array([pick(gaps) for _, gaps in found]) for pick in (lambda g: g[0], np.min))
    detail = f"Pushed by {listed(pushed, '.3f')} of the largest product, back to {listed(nearest, '.4f')}."
    return Finding(float((nearest / pushed).max()), detail, f"{len(found)} perturbations")


def end_after(run: RunData) -> Finding:
    """Distance in the second half of the time that they were followed, the median over that time.

    Where stages follow closely both paths may be in the middle of a later drop at the very end, a little apart in time.
    """
    after = []
    for times, gaps in gaps_after(run):
        later = np.linspace(0.5 * (times[0] + times[-1]), times[-1], 101)
        after.append(float(np.median(np.interp(later, times, gaps))))
    return Finding(
        max(after), f"{listed(np.array(after), '.4f')} of the largest product.", f"{len(after)} perturbations"
    )


def smallest(quantity: str) -> Callable[[RunData], Finding]:
    """The smallest of a scalar over stages."""

    def measure(run: RunData) -> Finding:
        values = run.scalar(quantity)
        return Finding(float(values.min()), f"{len(values)} stages, median {np.median(values):.3g}.")

    return measure
