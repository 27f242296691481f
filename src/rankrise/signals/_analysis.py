"""From a curve that a user gives to its drops with their shapes: check, scale, thin, fit lines, find drops, fit shapes.

Times and values are scaled to [0, 1] on the way in and back on the way out, so that no constant has a unit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rankrise.signals._drops import Drop, Shape, confidence, find_drops, fit_shape, pieces
from rankrise.signals._trend import Array, best_fit

# Two plateaus and a drop between them, three samples each, and as many again to tell them from noise.
FEWEST = 20


def check_curve(steps: ArrayLike, values: ArrayLike, *, name: str, ndim: int) -> tuple[Array, Array]:
    """Return `steps` (n,) and `values` (n,) or (n, k) in float64.

    Raises:
        ValueError: If they are no curve; the message names the argument, the rule and what was got.
    """
    t, y = _real("steps", steps), _real(name, values)
    if t.ndim != 1:
        raise ValueError(f"`steps` must have shape (n,); got {t.shape}.")
    if y.ndim != ndim or len(y) != len(t):
        rule = "(n,)" if ndim == 1 else "(n, k)"
        raise ValueError(f"`{name}` must have shape {rule} with n = {len(t)} as `steps`; got {y.shape}.")
    if len(t) < FEWEST:
        raise ValueError(f"`steps` must hold at least {FEWEST} samples to show a stage; got {len(t)}.")
    for argument, array in (("steps", t), (name, y)):
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            index = tuple(int(i) for i in bad[0])
            raise ValueError(f"`{argument}` must be finite; the value at {index} is {array[index]}: drop that sample.")
    late = np.flatnonzero(np.diff(t) <= 0)
    if len(late):
        i = int(late[0])
        raise ValueError(f"`steps` must increase strictly; step {t[i + 1]:g} comes after {t[i]:g} at index {i + 1}.")
    return t, y


def _real(name: str, values: ArrayLike) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be an array of real numbers; got {type(values).__name__}.") from error


def check_fraction(name: str, value: float) -> None:
    """Refuse a value that is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in [0, 1]; got {value}.")


_MOST_SAMPLES = 800  # longer curves are averaged in blocks; the fit costs the square of this
_ROUNDING = 1e-9


@dataclass(frozen=True)
class FoundDrop:
    """A drop, its shape and its confidence; times and sizes in the units of the caller."""

    start: float
    end: float
    midpoint: float
    size: float
    confidence: float
    drop: Drop  # numbers in scaled units
    shape: Shape  # numbers in scaled units


@dataclass(frozen=True)
class Analysis:
    """All findings in order of time, however weak; the noise of one sample, its correlation, and the fit."""

    findings: tuple[FoundDrop, ...]
    noise: float
    correlation: float
    knots: Array
    levels: Array


def analyse(t: Array, y: Array, *, resolution: float, closed: bool) -> Analysis | None:
    """Return the drops of a curve; None for a constant curve.

    Args:
        t: Times, increasing (n,).
        y: Values (n,).
        resolution: Smallest noise assumed, as a share of the range of y.
        closed: Whether a drop needs a plateau after it.
    """
    t, y = thin(t, y)
    origin, span = t[0], t[-1] - t[0]
    lowest, height = y.min(), np.ptp(y)
    if height <= 1e-12 * max(abs(lowest), abs(lowest + height)):
        return None
    x, v = (t - origin) / span, (y - lowest) / height
    noise, fit, ranges = best_fit(x, v, resolution)
    knots, levels = pieces(x, fit, ranges, noise.long_run)
    drops = find_drops(x, knots, levels, long_run=noise.long_run, closed=closed)
    findings = []
    for k, drop in enumerate(drops):
        left = max(drop.left, drops[k - 1].end if k else 0.0)
        right = min(drop.right, drops[k + 1].start if k + 1 < len(drops) else 1.0)
        around = (x >= left - _ROUNDING) & (x <= right + _ROUNDING)
        if not closed and 1 - drop.end < drop.end - drop.start:
            around[:] = False  # the run ends within the drop, so there is no plateau to fit
        shape = fit_shape(x[around], v[around], start=drop.start, end=drop.end, size=drop.size)
        if _gains(drop, knots, levels):
            findings.append(
                FoundDrop(
                    start=float(origin + span * max(shape.start, left)),
                    end=float(origin + span * min(shape.end, right)),
                    midpoint=float(origin + span * shape.midpoint),
                    size=float(height * shape.size),
                    confidence=confidence(drop, shape),
                    drop=drop,
                    shape=shape,
                )
            )
    return Analysis(
        tuple(findings), float(noise.sigma * height), noise.rho, origin + span * knots, lowest + height * levels
    )


def _gains(drop: Drop, knots: Array, levels: Array) -> bool:
    """Return whether the curve ends below every earlier level; the way down from a spike does not count."""
    before = float(levels[knots <= drop.start + _ROUNDING].min(initial=np.inf))
    after = float(np.interp(drop.end, knots, levels))
    return before - after >= 0.5 * drop.size


def thin(steps: Array, values: Array, most: int = _MOST_SAMPLES) -> tuple[Array, Array]:
    """A curve of at most `most` points: means over blocks of neighbouring samples if there are more.

    >>> thin(np.arange(4.0), np.array([1.0, 3.0, 5.0, 9.0]), most=2)
    (array([0.5, 2.5]), array([2., 7.]))
    """
    if len(steps) <= most:
        return steps, values
    edges = np.linspace(0, len(steps), most + 1).astype(np.int64)[:-1]
    counts = np.diff([*edges, len(steps)])
    return np.add.reduceat(steps, edges) / counts, np.add.reduceat(values, edges) / counts
