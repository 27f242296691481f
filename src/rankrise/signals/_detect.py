"""What a user asks of a curve: the stages of a loss, and when singular values leave their floor."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rankrise.signals._analysis import Analysis, analyse, check_curve, check_fraction
from rankrise.signals._trend import Array


@dataclass(frozen=True)
class Stage:
    """One drop between two plateaus; a tenth of it is done at `start`, half at `midpoint`, nine tenths at `end`."""

    start: float
    midpoint: float
    end: float
    size: float
    confidence: float


@dataclass(frozen=True)
class Plateau:
    """What lies between two drops: from `start` to `end`, around `level` (the median), rising by `slope` a step."""

    start: float
    end: float
    level: float
    slope: float


@dataclass(frozen=True)
class Stages:
    """The stages of a curve in order of time; k stages have k + 1 plateaus around them, and no stages have none.

    `noise` is the standard deviation of one sample (of one block mean beyond 800 samples) and `correlation` that of
    neighbours, as estimated from the curve.
    """

    stages: tuple[Stage, ...]
    plateaus: tuple[Plateau, ...]
    noise: float
    correlation: float

    @property
    def midpoints(self) -> Array:
        """Midpoints of the drops (k,)."""
        return np.array([stage.midpoint for stage in self.stages])


def detect_stages(
    steps: ArrayLike, values: ArrayLike, *, min_confidence: float = 0.5, resolution: float = 2e-3
) -> Stages:
    """Plateaus and drops of a loss-like curve, each drop with a confidence.

    A drop is an interval in which the curve falls far faster than in the stretch before it and in the stretch after it,
    both at least as long as the drop. A convex curve such as a power law has none, whatever its steepness; warm-up and
    a cosine schedule bend a curve too slowly to make one. The curve is fitted by straight lines at a price set by its
    own noise, whose size and correlation are estimated with it; `docs/stages.md` has the method and its limits.

    Cost: O(n²) up to 800 samples, a tenth of a second there; longer curves are averaged to 800 blocks of neighbouring
    samples.

    Args:
        steps: Steps or times, strictly increasing, evenly spaced or not (n,), n ≥ 20.
        values: The curve (n,). Pass −values for one that rises, log values for drops of very different size.
        min_confidence: Drops of less confidence are left out.
        resolution: Smallest noise assumed, as a share of the range of `values`; drops of a few times that are the
            smallest that are found.

    Returns:
        The stages; empty where there are none and for a constant curve.

    Raises:
        ValueError: If shapes differ, there are fewer than 20 samples, a value is not finite, or steps do not increase.

    >>> import numpy as np
    >>> t = np.linspace(0, 100, 300)
    >>> noise = 0.05 * np.random.default_rng(0).standard_normal(300)
    >>> found = detect_stages(t, 2 - np.tanh(t - 30) / 2 - np.tanh(t - 70) / 2 + noise)
    >>> [round(stage.midpoint) for stage in found.stages], [round(p.level, 1) for p in found.plateaus]
    ([30, 70], [3.0, 2.0, 1.0])
    """
    t, y = check_curve(steps, values, name="values", ndim=1)
    check_fraction("min_confidence", min_confidence)
    if not 0 < resolution < 1:
        raise ValueError(f"`resolution` must be in (0, 1); got {resolution}.")
    analysis = analyse(t, y, resolution=resolution, closed=True)
    if analysis is None:
        return Stages((), (), 0.0, 0.0)
    stages = tuple(
        Stage(f.start, f.midpoint, f.end, f.size, f.confidence)
        for f in analysis.findings
        if f.confidence >= min_confidence
    )
    return Stages(stages, _plateaus(t, y, stages, analysis), analysis.noise, analysis.correlation)


def _plateaus(t: Array, y: Array, stages: tuple[Stage, ...], analysis: Analysis) -> tuple[Plateau, ...]:
    if not stages:
        return ()
    edges = [float(t[0]), *(edge for s in stages for edge in (s.start, s.end)), float(t[-1])]
    plateaus = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        end = max(start, end)
        inside = y[(t >= start) & (t <= end)]
        ends = np.interp([start, end], analysis.knots, analysis.levels)
        level = float(np.median(inside)) if len(inside) else float(ends.mean())
        slope = float(ends[1] - ends[0]) / (end - start) if end > start else 0.0
        plateaus.append(Plateau(start, end, level, slope))
    return tuple(plateaus)


_RESOLUTION = 2e-3


@dataclass(frozen=True)
class Emergence:
    """Arrays (k,), one entry for each singular value: NaN, and confidence 0, for a value that did not emerge.

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
        floor: Smaller values are raised to this, e.g. to what rounding leaves; by default 2⁻²³ of the largest value.
        min_ratio: Smallest growth that counts.
        min_confidence: Rises of less confidence are left out.

    Raises:
        ValueError: As for `detect_stages`; or a σ is negative, `floor` is not positive, or `min_ratio` is not above 1.

    >>> import numpy as np
    >>> t = np.linspace(0, 100, 200)
    >>> found = emergence_times(t, np.stack([1e-3 + 1 / (1 + np.exp(20 - t)), 1e-3 + 0 * t], axis=1))
    >>> bool(abs(found.times[0] - 16.6) < 0.5), found.confidences.round(1).tolist()  # σ passes √(1e-3) at 16.6
    (True, [1.0, 0.0])
    """
    t, s = check_curve(steps, sigma, name="sigma", ndim=2)
    check_fraction("min_confidence", min_confidence)
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
