"""Emergence of singular values: when each leaves the floor."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rankrise.signals import _checks
from rankrise.signals._checks import Array
from rankrise.signals._engine import analyse

_RESOLUTION = 2e-3


@dataclass(frozen=True)
class Emergence:
    """For each of k singular values, arrays (k,): NaN, and confidence 0, where none was seen to emerge.

    `times` is the midpoint of the logistic fitted to log σ: for a symmetric rise, when σ passes the geometric mean of
    floor and top. `starts` and `ends` are when a tenth and nine tenths of that way are done, `ratios` how many times σ
    grew, `confidences` how far to believe it.
    """

    times: Array
    starts: Array
    ends: Array
    ratios: Array
    confidences: Array


def emergence_times(
    steps: ArrayLike,
    sigma: ArrayLike,
    *,
    floor: float | None = None,
    min_ratio: float = 2.0,
    min_confidence: float = 0.5,
) -> Emergence:
    """Times at which singular values rise from their floor: the first rise of log σ_i out of a flat stretch.

    The same search as in `detect_stages`, on −log max(σ, floor), except that the run may end while a value still rises.
    A value that grows from the first step on, as √t or any power does, never had a floor and is not reported.

    Args:
        steps: Steps or times, strictly increasing (n,), n ≥ 20.
        sigma: Singular values, non-negative (n, k), one column each.
        floor: Values below this count as this, e.g. what rounding leaves; without it, 2⁻²³ of the largest.
        min_ratio: Smallest growth that counts.
        min_confidence: Rises below this are left out.

    Raises:
        ValueError: As `detect_stages`; a negative σ; a floor that is not positive; `min_ratio` not above 1.

    >>> import numpy as np
    >>> t = np.linspace(0, 100, 200)
    >>> found = emergence_times(t, np.stack([1e-3 + 1 / (1 + np.exp(20 - t)), 1e-3 + 0 * t], axis=1))
    >>> bool(abs(found.times[0] - 16.6) < 0.5), found.confidences.round(1).tolist()  # σ passes √(1e-3) at 16.6
    (True, [1.0, 0.0])
    """
    t, s = _checks.curve(steps, sigma, name="sigma", ndim=2)
    _checks.fraction("min_confidence", min_confidence)
    if s.size and s.min() < 0:
        raise ValueError(f"`sigma` must not be negative; got {s.min():g}.")
    if floor is not None and not (np.isfinite(floor) and floor > 0):
        raise ValueError(f"`floor` must be positive; got {floor}.")
    if not min_ratio > 1:
        raise ValueError(f"`min_ratio` must be above 1; got {min_ratio}.")
    lowest = 2.0**-23 * s.max(initial=0.0) if floor is None else floor
    log_sigma = np.log(np.maximum(s, max(lowest, np.finfo(float).tiny)))
    rows = [_first_rise(t, column, np.log(min_ratio), min_confidence) for column in log_sigma.T]
    return Emergence(*np.array(rows).reshape(-1, 5).T)


def _first_rise(t: Array, column: Array, rise: float, least: float) -> tuple[float, float, float, float, float]:
    analysis = analyse(t, -column, resolution=_RESOLUTION, closed=False)
    for f in analysis.findings if analysis else ():
        if f.size >= rise and f.confidence >= least:
            return f.midpoint, f.start, f.end, float(np.exp(f.size)), f.confidence
    return np.nan, np.nan, np.nan, np.nan, 0.0
