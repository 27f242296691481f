"""Claim 1: the toy learns one coordinate at a time. And the theorem's assumptions, as numbers.

Symbols:
    T_k, L_k    times and losses of Algorithm 1 (run `toy-stages`); t_k activation times of the flow at α
    A           log(1/α)
"""

import math
from collections.abc import Callable

import numpy as np

from rankrise.experiments.claims._claim import Finding, NotMeasurable, Predicate, predicate
from rankrise.experiments.claims._curves import active_at_half, listed, num_stages, time_of_drop
from rankrise.experiments.claims._runs import Array, RunData

FLOWS = tuple(f"toy-flow-1e-{power}" for power in (1, 2, 4, 8, 16, 32))
_SMALLEST = FLOWS[-1]
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


def distance_after(run: RunData) -> Finding:
    """Largest distance between perturbed and unperturbed products at the end, over the largest product."""
    worst, pushed = [], []
    paths = {
        quantity: [run.path(quantity, circuit)[1][:, 0] for circuit in ("kq", "vo")]
        for quantity in ("product", "product_perturbed")
    }
    plain, moved = (np.concatenate(halves, axis=-1) for halves in paths.values())  # (S, perturbations, 2d)
    for n in range(plain.shape[1]):
        steps = np.flatnonzero(np.isfinite(plain[:, n, 0]))
        scale = np.abs(plain[steps[-1], n]).max()
        gap = np.abs(moved[steps, n] - plain[steps, n]).max(1)
        worst.append(gap[-1] / scale)
        pushed.append(gap[0] / scale)
    detail = (
        f"Pushed by {listed(np.array(pushed), '.3f')} of the largest product, {listed(np.array(worst), '.4f')} later."
    )
    return Finding(float(max(worst)), detail, f"{len(worst)} perturbations")


def smallest(quantity: str) -> Callable[[RunData], Finding]:
    """The smallest of a scalar over stages."""

    def measure(run: RunData) -> Finding:
        values = run.scalar(quantity)
        return Finding(float(values.min()), f"{len(values)} stages, median {np.median(values):.3g}.")

    return measure


AT_HALF = "of the coordinates that pass 1e-3, the share that has when half of the fall of the loss is done"
_LIMIT = ("toy-stages",)
_THEOREM = "Theorem 4.5; [v1] Fig. 6-8, [v2] Fig. 2"
PREDICATES: tuple[Predicate, ...] = (
    predicate(
        "1",
        "one-joins-per-stage@toy-stages",
        "at most one coordinate joins per stage",
        reference="Theorem 4.5",
        circuit="kq and vo",
        layers="the head",
        aggregate="the most coordinates that enter the support in one stage of Algorithm 1",
        needs=_LIMIT,
        measure=joins_per_stage,
        must_be=("≤", 1),
    ),
    *(
        predicate(
            "1",
            f"one-after-another@{name}",
            f"coordinates are learned one after another, {when}",
            reference=reference,
            circuit="kq and vo",
            layers="the head",
            aggregate=AT_HALF,
            needs=(name,),
            measure=active_at_half_loss,
            must_be=("≤", 0.75),
        )
        for name, when, reference in (
            (_SMALLEST, "at α = 1e-32", _THEOREM),
            ("toy-flow-1e-2", "already at α = 0.01", "[v2] Fig. 2"),
        )
    ),
    predicate(
        "1",
        f"plateaus@{_SMALLEST}",
        "the loss stays on plateaus between short drops",
        reference=_THEOREM,
        circuit="the loss",
        layers="",
        aggregate="share of the rescaled time that holds 90% of the fall of the loss (steepest first)",
        needs=(_SMALLEST,),
        measure=time_of_transitions,
        must_be=("≤", 0.2),
    ),
    predicate(
        "1",
        f"follows-the-limit@{_SMALLEST}",
        "the loss follows the staircase of Algorithm 1",
        reference=_THEOREM,
        circuit="the loss",
        layers="",
        aggregate="time average of |loss − loss of the limit|, over the limit's fall",
        needs=(*_LIMIT, _SMALLEST),
        measure=distance_from_limit,
        must_be=("≤", 0.05),
    ),
    predicate(
        "1",
        "transitions-vanish@toy-flow",
        "transitions are a vanishing fraction of time as α → 0",
        reference=_THEOREM,
        circuit="the loss",
        layers="",
        aggregate="share of the time at which the loss is more than 5% of its fall away from the limit's: "
        "at α = 1e-32 over that at 1e-2",
        needs=(*_LIMIT, *FLOWS[1:]),
        measure=transitions_vanish,
        must_be=("≤", 0.5),
    ),
    predicate(
        "1",
        "stage-times-converge@toy-flow",
        "stage times converge to T_k as α → 0",
        reference="Theorem 4.5",
        circuit="kq and vo",
        layers="the head",
        aggregate="r in mean_k |t_k − T_k| ∝ log(1/α)^-r over α from 1e-4 to 1e-32 (the theory suggests 1)",
        needs=(*_LIMIT, *FLOWS[2:]),
        measure=convergence_order,
        must_be=("≥", 0.5),
    ),
    predicate(
        "1",
        f"stage-times-near@{_SMALLEST}",
        "at α = 1e-32 stage times are near T_k",
        reference="Theorem 4.5",
        circuit="kq and vo",
        layers="the head",
        aggregate="max over stages of |t_k − T_k| / T_k, t_k when |q| passes 1e-3",
        needs=(*_LIMIT, _SMALLEST),
        measure=worst_stage_time,
        must_be=("≤", 0.1),
    ),
    predicate(
        "1",
        "stages-visible@toy-flow-1e-2",
        "stages of the loss are already visible at α = 0.01",
        reference="[v2] Fig. 2",
        circuit="the loss",
        layers="",
        aggregate="drops between plateaus that `detect_stages` finds with confidence of at least 0.5",
        needs=("toy-flow-1e-2",),
        measure=detected_stages,
        must_be=("≥", 2),
    ),
    predicate(
        "1",
        "nothing-leaves@toy-stages",
        "no coordinate leaves the support, in the limit",
        reference="[v1] Fig. 2, 6-8",
        circuit="kq and vo",
        layers="the head",
        aggregate="times a coordinate leaves the support of θ^k",
        needs=_LIMIT,
        measure=leaves_in_limit,
        must_be=("≤", 0),
    ),
    predicate(
        "1",
        f"nothing-leaves@{_SMALLEST}",
        "no coordinate leaves the support, at α = 1e-32",
        reference="[v1] Fig. 2, 6-8",
        circuit="kq and vo",
        layers="the head",
        aggregate="coordinates whose |q| falls below 1e-3 after it passed it",
        needs=(_SMALLEST,),
        measure=leaves_in_flow,
        must_be=("≤", 0),
    ),
    predicate(
        "1",
        "one-after-another@toy-matrix-flow",
        "with full matrices, singular values are learned one after another",
        reference="[v1] Fig. 2",
        circuit="kq and vo",
        layers="the head",
        aggregate="of the singular values that pass 1% of the largest, the share that has at half of the loss's fall",
        needs=("toy-matrix-flow",),
        measure=emerged_at_half_loss,
        must_be=("≤", 0.75),
    ),
    *(
        predicate(
            "1",
            f"{name}@toy-robustness-{assumption}",
            statement,
            reference=reference,
            circuit="kq and vo",
            layers="the head",
            aggregate="max over perturbations and coordinates of |q perturbed − q| / max|q| at the end",
            needs=(f"toy-robustness-{assumption}",),
            measure=distance_after,
            must_be=("≤", 0.05),
        )
        for name, assumption, statement, reference in (
            ("returns", "4.3", "products perturbed in the middle of a stage return", "[v1] Fig. 9, [v2] Fig. 3a"),
            (
                "same-end",
                "4.4",
                "products perturbed as a stage begins reach the same end",
                "[v1] Fig. 10, [v2] Fig. 3b",
            ),
        )
    ),
    *(
        predicate(
            "1",
            f"{name}@toy-stages",
            statement,
            reference=reference,
            circuit="kq and vo",
            layers="the head",
            aggregate=aggregate,
            needs=_LIMIT,
            measure=smallest(quantity),
            must_be=(">", 0),
        )
        for name, quantity, statement, reference, aggregate in (
            (
                "unique-winner",
                "gap",
                "the winner of each stage is unique",
                "Assumption 4.2",
                "min over stages of (Δ₂ − Δ₁) / Δ₁",
            ),
            (
                "strict-minimum",
                "curvature",
                "each θ^k is a strict minimum on its support",
                "Assumption 4.3",
                "min over stages of c",
            ),
        )
    ),
)
