"""Claims about laziness: how far models are from their linearisations, and where digits leave the kernel regime.

Bounds of tanh networks were set on seeds 0, 1 and 2 at scale small. Those of the scalar model, which has nothing
random, follow from its derivation; those of the kernel were set on another network, and those that compare initial
scales ask for a direction only. All were committed before seeds 3, 4 and 5, which judge, were run.
"""

import functools
import math

import numpy as np

from rankrise.lab.claims._claim import Finding, Predicate, listed, predicate
from rankrise.lab.claims._single_networks import final_ranks, rank_curves
from rankrise.runs import Array, NotMeasurable, RunData, rank_correlation, read_together

_PILOT = "the bound, on seeds 0, 1 and 2 at scale small, which do not judge"
_BEFORE = "the bound, on another ViT on digits"
_SMALL = 1e-3  # κ at which the constant of the scalar model is read
_LATEST = 30.0  # of the times at which the error of a tanh network still falls as 1/α
_LARGE = 30.0  # α from which on it does
_claim = functools.partial(
    predicate, "gauges", about="laziness", circuit="the outputs", layers="all weights", reference="beyond the paper"
)


def cases(run: RunData, *quantities: str) -> list[Array]:
    """Quantities of every case of a run, each (cases,)."""
    return [values.ravel() for values in read_together(run, *quantities)[1]]


def constant_of_small_kappa(run: RunData) -> Finding:
    """The largest relative difference of error / (κ √R₀) from 4e⁻², over cases with κ = 1e-3."""
    kappa, loss, error = cases(run, "kappa", "initial_loss", "error")
    at = np.isclose(kappa, _SMALL)
    if not at.any():
        raise NotMeasurable(f"{run.source} has no case with κ = {_SMALL:g}.")
    found = (error / (kappa * np.sqrt(loss)))[at]
    away = np.abs(found / (4 * math.exp(-2)) - 1)
    return Finding(float(away.max()), f"{found.min():.4f} to {found.max():.4f}; 4e⁻² = 0.5413.", {"cases": len(found)})


def spread_over_times(run: RunData) -> Finding:
    """The largest over the smallest error over T, of cases with one κ, L and R₀, in the worst such group."""
    kappa, lipschitz, loss, error = cases(run, "kappa", "lipschitz", "initial_loss", "error")
    _, group = np.unique(np.round(np.log([kappa, lipschitz, loss]), 6), axis=1, return_inverse=True)
    groups = [error[group.ravel() == n] for n in range(group.max() + 1)]
    worst = max(groups, key=lambda errors: errors.max() / errors.min())
    detail = f"{len(worst)} times, errors {worst.min():.4g} to {worst.max():.4g}."
    return Finding(float(worst.max() / worst.min()), detail, {"cases": len(error)})


def error_over_bound(run: RunData) -> Finding:
    """The largest error over the bound min(6 κ √R₀, √(8 R₀))."""
    error, bound = cases(run, "error", "bound")
    parts = error / bound
    return Finding(float(parts.max()), f"{parts.min():.3g} to {parts.max():.3g}.", {"cases": len(parts)})


def slope_in_alpha(run: RunData) -> Finding:
    """The largest |d log error / d log α + 1| over times up to 30, fitted over α of 30 or more."""
    alpha, time, error = cases(run, "alpha", "time", "error")
    slopes = []
    for end in np.unique(time[time <= _LATEST]):
        at = (time == end) & (alpha >= _LARGE)
        if at.sum() < 2:
            raise NotMeasurable(f"{run.source} has fewer than two cases with α ≥ {_LARGE:g} at time {end:g}.")
        slopes.append(np.polyfit(np.log(alpha[at]), np.log(error[at]), 1)[0])
    return Finding(float(np.abs(np.array(slopes) + 1).max()), f"Slopes {listed(np.array(slopes), '.3f')}.")


def gauge_against_error(run: RunData) -> Finding:
    """Spearman's correlation of the gauge, which needs no linearised training, with the true error."""
    gauge, error = cases(run, "linearisation_error", "error")
    return Finding(rank_correlation(gauge, error), f"{len(gauge)} cases.", {"cases": len(gauge)})


def at_the_end(run: RunData, quantity: str, circuit: str) -> float:
    """A number of the whole model at the last step at which ranks were measured."""
    steps, values = run.path(quantity, circuit)
    if steps[-1] != rank_curves(run, "kq")[0][-1]:
        raise NotMeasurable(f"{run.source} has no `{quantity}` at the end: run it again.")
    return float(values.ravel()[-1])


def ends_apart(large: RunData, small: RunData, *, quantity: str, circuit: str) -> Finding:
    """A number of the whole model at the end from the largest initial weights, minus that from the smallest."""
    found = [at_the_end(run, quantity, circuit) for run in (large, small)]
    ranks = [final_ranks(run, "kq").mean() for run in (large, small)]
    detail = f"{found[0]:.3f} and {found[1]:.3f}, with a change of stable rank {ranks[0]:.2f} and {ranks[1]:.2f}."
    return Finding(found[0] - found[1], detail)


def growth(run: RunData, *, quantity: str, other: str) -> Finding:
    """A number of the kernel at the end over that at the start."""
    path = read_together(run, quantity, other, circuit="ntk")[1][0].ravel()
    return Finding(float(path[-1] / path[0]), f"{path[0]:.3g} → {path[-1]:.3g}.")


_LARGEST, _ONE, _SMALLEST = (f"vit-digits-regime-{factor}" for factor in ("10", "1", "0.1"))
_BOUND = "largest error over min(6 κ √R₀, √(8 R₀)), κ = (T/α) L √R₀"
_END = "at the end from weights × 10, minus that from weights × 0.1"

PREDICATES: tuple[Predicate, ...] = (
    _claim(
        "tight-constant",
        "for small κ the scalar model errs by 4e⁻² κ √R₀, whatever T, L and R₀ are",
        of="lazy-tight",
        aggregate="largest relative difference of error / (κ √R₀) from 4e⁻² at κ = 1e-3",
        measure=constant_of_small_kappa,
        must_be=("≤", 0.01),
        in_words="the error of the scalar model is 4e⁻² κ √R₀ within {value:.2%}",
    ),
    _claim(
        "alpha-follows-time",
        "the error of the scalar model stays if α grows as T does",
        of="lazy-tight",
        aggregate="largest over smallest error over T, at one κ, L and R₀, in the worst such group",
        measure=spread_over_times,
        must_be=("≤", 1.01),
    ),
    *(
        _claim(
            "within-bound",
            f"the linearisation errs by no more than the bound, in {words}",
            of=name,
            aggregate=_BOUND,
            measure=error_over_bound,
            must_be=("≤", 1),
            of_every_seed=True,
        )
        for name, words in (("lazy-tight", "the scalar model"), ("lazy-tanh", "tanh networks"))
    ),
    _claim(
        "error-falls-with-alpha",
        "the error of tanh networks falls as 1/α",
        of="lazy-tanh",
        aggregate="largest |d log error / d log α + 1| over times up to 30, α of 30 or more",
        measure=slope_in_alpha,
        must_be=("≤", 0.05),
        of_every_seed=True,
        set_after=_PILOT,
    ),
    _claim(
        "gauge-tracks-error",
        "the gauge, which costs one derivative, ranks runs as the true error of the linearised training does",
        of="lazy-tanh",
        aggregate="Spearman's correlation of `linearisation_error` with the true error over α and T",
        measure=gauge_against_error,
        must_be=("≥", 0.85),
        set_after=_PILOT,
    ),
    _claim(
        "kernel-rank-rises",
        "the effective rank of the empirical kernel rises while a ViT learns digits",
        of=_ONE,
        circuit="the kernel",
        aggregate="effective rank of the centred kernel at the end over that at the start",
        measure=functools.partial(growth, quantity="kernel_effective_rank", other="kernel_stable_rank"),
        must_be=("≥", 2),
        of_every_seed=True,
        set_after=_BEFORE,
    ),
    _claim(
        "kernel-aligns",
        "the empirical kernel aligns with the targets while a ViT learns digits",
        of=_ONE,
        circuit="the kernel",
        aggregate="cosine of the kernel with that of the targets, at the end over that at the start",
        measure=functools.partial(growth, quantity="kernel_alignment", other="kernel_stable_rank"),
        must_be=("≥", 2),
        of_every_seed=True,
        set_after=_BEFORE,
    ),
    _claim(
        "large-weights-keep-the-kernel",
        "a ViT on digits keeps more of its kernel from large initial weights than from small ones",
        of="vit-digits-regime",
        circuit="the kernel",
        aggregate=f"cosine of the kernel with that at the start, {_END}",
        needs=(_LARGEST, _SMALLEST),
        measure=functools.partial(ends_apart, quantity="kernel_cosine", circuit="ntk"),
        must_be=(">", 0),
    ),
    _claim(
        "large-weights-are-lazier",
        "a ViT on digits stays nearer to its linearisation from large initial weights than from small ones",
        of="vit-digits-regime",
        aggregate=f"`linearisation_error` {_END}",
        needs=(_LARGEST, _SMALLEST),
        measure=functools.partial(ends_apart, quantity="linearisation_error", circuit=""),
        must_be=("<", 0),
    ),
)
