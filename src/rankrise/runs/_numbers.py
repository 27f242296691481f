"""Numbers of the curves of runs: early means, rank correlation, and runs that were recorded alike."""

from collections.abc import Sequence

import numpy as np

from rankrise.runs._curve import Array, Gaps, NotMeasurable
from rankrise.runs._run_data import Recorded, RunData


def read_alike(runs: Sequence[RunData], quantity: str, circuit: str, *, gaps: Gaps = "none") -> list[Recorded]:
    """A quantity of each run, recorded at the same steps and of the same shape.

    Args:
        runs: The runs.
        quantity: The quantity, such as "stable_rank".
        circuit: "kq" or "vo".
        gaps: What may be missing, as in `RunData.path`.

    Raises:
        NotMeasurable: A table is broken, or the runs were recorded at different steps.
    """
    parts = [run.path(quantity, circuit, gaps=gaps) for run in runs]
    for run, part in zip(runs, parts, strict=True):
        if part.values.shape != parts[0].values.shape or not np.array_equal(part.steps, parts[0].steps):
            raise NotMeasurable(
                f"{run.source} has not recorded `{quantity}` of {circuit} as {runs[0].source} has: run it again."
            )
    return parts


def read_together(run: RunData, *quantities: str, circuit: str = "") -> tuple[Array, list[Array]]:
    """Steps (S,), and for each of several quantities of one run everything measured at a step side by side, (S, n).

    Args:
        run: The run.
        *quantities: The quantities, such as "loss" and "last_norm", which must have been recorded at the same steps.
        circuit: The circuit; empty for numbers of the model as a whole.

    Raises:
        NotMeasurable: A table is broken, or the quantities were recorded at different steps.
    """
    parts = [run.path(quantity, circuit) for quantity in quantities]
    steps = parts[0].steps
    if not all(np.array_equal(part.steps, steps) for part in parts):
        names = " and ".join(f"`{quantity}`" for quantity in quantities)
        raise NotMeasurable(f"{run.source} has {names} at different steps: run it again.")
    return steps, [part.values.reshape(len(steps), -1) for part in parts]


def early_mean(steps: Array, values: Array, part: float = 0.05) -> Array:
    """Mean of values (S, …) over the first 5% of the steps, or over another part, but at least the first measurement.

    >>> early_mean(np.array([1.0, 5.0, 100.0]), np.array([1.0, 3.0, 9.0])).tolist()
    2.0
    """
    is_early = (steps <= part * steps[-1]) | (np.arange(len(steps)) == 0)
    return np.asarray(values[is_early].mean(0))


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's rank correlation: 1 if y grows with x throughout, 0 if one of them is constant.

    >>> rank_correlation(np.arange(4.0), np.array([1.0, 2.0, 8.0, 9.0]))
    1.0
    """
    a, b = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return round(float(a @ b) / size, 12) if size else 0.0


def _ranks(values: Array) -> Array:
    """The ranks from 1; equal values share their mean rank, and a NaN leaves no value a rank.

    `scipy.stats.rankdata` gives the same numbers, but its package takes a second to import.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return np.full_like(ranks, np.nan) if np.isnan(values).any() else ranks
