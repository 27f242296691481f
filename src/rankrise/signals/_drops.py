"""Drops of a curve made of lines: where it falls far faster than on both sides, the shape of each, and its confidence.

For an interval [a, b] of width w = b − a and side windows of length ℓ ≥ w that touch it,

    contrast = (fall in [a, b] / w) / max over sides of ((fall in the side + its error) / ℓ)

A convex decreasing curve, such as a power law, falls faster on the left than inside: its contrast is below 1 wherever
one looks. A warm-up or a cosine bends the curve slowly and stays near 1. A staircase has contrasts of 5 and more.

The shape of a drop is two lines joined by a logistic, fitted by least squares to the samples around it,

    y(t) = (1 − S)(a₀ + a₁ (t − m)) + S (b₀ + b₁ (t − m)),   S = 1 / (1 + exp(−(t − m) / s))

which is linear in a, b for a given midpoint m and scale s; both are searched on a grid that zooms in. The size of the
drop is a₀ − b₀.

The confidence in a drop is a logistic function of three numbers. `tests/signals/calibrate.py` fitted its coefficients
to staircases and smooth losses of many noise levels (200 curves of each kind, before the last change in how overlapping
drops are chosen); "right" means a planted stage within 5% of its spacing. The tests check it on other seeds.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankrise.signals._trend import Array

_SIDES = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0)  # lengths of the side windows, in widths of the drop
_FEWEST_BESIDE = 5  # samples in a side window
_FEWEST_WIDTHS = 1.0  # a side window is at least this long, in widths of the drop
_LARGEST_BESIDE = 0.5  # fall in a side window, in sizes of the drop
_SMALLEST_Z = 4.5
_SMALLEST_CONTRAST = 3.0
_CLEAR = math.log(10 / 3)  # a drop of contrast 10 is as clear as any


@dataclass(frozen=True)
class Drop:
    """A fall by `size` between times `start` and `end`, with `left` and `right` the far ends of its side windows.

    `z` is the size over its standard error, `contrast` as above.
    """

    start: float
    end: float
    left: float
    right: float
    size: float
    z: float
    contrast: float


def pieces(t: Array, fit: Array, ranges: list[tuple[int, int]], long_run: float) -> tuple[Array, Array]:
    """Return the knots (times and levels) of the fit; jumps within three standard errors are closed at their middle."""
    times, levels = [t[0]], [fit[0]]
    for (a, b), (_, c) in pairwise(ranges):
        error = np.sqrt(4 * long_run * (1 / (b - a) + 1 / (c - b)))
        if abs(fit[b - 1] - fit[b]) <= 3 * error:
            times.append((t[b - 1] + t[b]) / 2)
            levels.append((fit[b - 1] + fit[b]) / 2)
        else:
            times += [t[b - 1], t[b]]
            levels += [fit[b - 1], fit[b]]
    return np.array([*times, t[-1]]), np.array([*levels, fit[-1]])


def find_drops(t: Array, knots: Array, levels: Array, *, long_run: float, closed: bool) -> list[Drop]:
    """Return disjoint drops between knots, in order of time.

    Args:
        t: Times of the samples (n,).
        knots: Times of the knots of the fit.
        levels: The fit at the knots.
        long_run: Long-run variance of the noise.
        closed: Whether a drop needs a plateau after it; if not, it may reach the end of the curve.
    """
    i, j = np.triu_indices(len(knots), 1)
    a, b = knots[i], knots[j]
    keep = levels[i] - levels[j] > _SMALLEST_Z * np.sqrt(long_run / len(t))
    a, b = a[keep], b[keep]
    best, z_best, size_best = np.zeros((3, len(a)))
    reach = np.zeros((2, len(a)))
    still = (levels[-2] - levels[-1]) / (knots[-1] - knots[-2])  # rate of fall at the end of the curve
    for widths in _SIDES:
        left, right = _far_ends(t, a, b, widths)
        ahead, behind = _rate(t, knots, levels, left, a, long_run), _rate(t, knots, levels, b, right, long_run)
        size = _lowest(knots, levels, left, a) + _lowest(knots, -levels, b, right)
        z = size / np.sqrt(4 * long_run * (1 / ahead[1] + 1 / behind[1]) + 1e-300)
        outside = [ahead[0], behind[0]]
        fits = a - left >= _FEWEST_WIDTHS * (b - a) * (1 - 1e-9)
        if closed:
            fits &= right - b >= _FEWEST_WIDTHS * (b - a) * (1 - 1e-9)
        else:
            censored = (b == knots[-1]) & (size / (b - a) <= 2 * still)
            fits &= censored | (right - b >= _FEWEST_WIDTHS * (b - a) * (1 - 1e-9))
            outside[1] = np.where(censored, 0.0, outside[1])
        beside = np.maximum(_change(knots, levels, left, a), _change(knots, levels, b, right))
        fits &= beside <= _LARGEST_BESIDE * size
        slowest = np.maximum(np.maximum(outside[0], outside[1]), 1e-12 / (b - a))
        contrast = np.where(fits, size / (b - a) / slowest, 0.0)
        better = contrast > best
        best = np.where(better, contrast, best)
        z_best = np.where(better, z, z_best)
        size_best = np.where(better, size, size_best)
        reach = np.where(better, [left, right], reach)
    good = np.flatnonzero((best >= _SMALLEST_CONTRAST) & (z_best >= _SMALLEST_Z))
    table = np.stack([a, b, reach[0], reach[1], size_best, z_best, best], axis=1)[good]  # fields of Drop
    return _select([Drop(*map(float, row)) for row in table])


def _select(drops: list[Drop]) -> list[Drop]:
    """Return the disjoint drops of largest total worth, in order of time (weighted interval scheduling).

    Worth is the log of the contrast over the smallest allowed, capped: two clear drops beat the one that spans both,
    and one clear drop beats a part of it with a doubtful remainder.
    """
    drops = sorted(drops, key=lambda d: d.end)
    ends = [d.end for d in drops]
    total: list[float] = [0.0]
    chosen: list[tuple[int, ...]] = [()]
    for k, d in enumerate(drops):
        before = bisect_right(ends, d.start, hi=k)
        excess = math.log(d.contrast / _SMALLEST_CONTRAST)
        worth = total[before] + min(excess, _CLEAR) + 0.01 * excess
        take = worth > total[k]
        total.append(worth if take else total[k])
        chosen.append((*chosen[before], k) if take else chosen[k])
    return [drops[k] for k in chosen[-1]]


def _far_ends(t: Array, a: Array, b: Array, widths: float) -> tuple[Array, Array]:
    """Far ends of the side windows: `widths` times b − a away, a few samples at least, inside the curve."""
    few = _FEWEST_BESIDE
    left = np.minimum(a - widths * (b - a), t[np.maximum(np.searchsorted(t, a, "right") - 1 - few, 0)])
    right = np.maximum(b + widths * (b - a), t[np.minimum(np.searchsorted(t, b, "left") + few, len(t) - 1)])
    return np.maximum(left, t[0]), np.minimum(right, t[-1])


def _lowest(knots: Array, levels: Array, start: Array, end: Array) -> Array:
    """Lowest level of the fit in each [start, end]: a drop is counted from there, so that a spike before it is not."""
    inside = (knots >= start[:, None]) & (knots <= end[:, None])
    lowest: Array = np.where(inside, levels, np.inf).min(1, initial=np.inf)
    return np.minimum(lowest, np.minimum(np.interp(start, knots, levels), np.interp(end, knots, levels)))


def _change(knots: Array, levels: Array, start: Array, end: Array) -> Array:
    return np.abs(np.interp(start, knots, levels) - np.interp(end, knots, levels))


def _rate(t: Array, knots: Array, levels: Array, start: Array, end: Array, long_run: float) -> tuple[Array, Array]:
    """Rate of change of the fit in [start, end], as an upper bound by one standard error, and samples in there."""
    samples = np.maximum(np.searchsorted(t, end, "right") - np.searchsorted(t, start, "left"), 1)
    change = _change(knots, levels, start, end)
    length = np.maximum(end - start, 1e-300)
    return (change + np.sqrt(12 * long_run / samples)) / length, samples.astype(np.float64)


_TENTH = float(np.log(9.0))  # the logistic goes from 10% to 90% within ± this many scales
_FEWEST_AROUND = 8
_ZOOMS = 3


@dataclass(frozen=True)
class Shape:
    """Midpoint, scale of the logistic, and size at the midpoint."""

    midpoint: float
    scale: float
    size: float

    @property
    def start(self) -> float:
        """Where a tenth of the drop is done."""
        return self.midpoint - _TENTH * self.scale

    @property
    def end(self) -> float:
        """Where nine tenths of the drop are done."""
        return self.midpoint + _TENTH * self.scale


def fit_shape(t: Array, y: Array, *, start: float, end: float, size: float) -> Shape:
    """Return the best logistic for a drop found in [start, end]; t (n,) and y (n,) hold the samples around it."""
    width = end - start
    best = Shape((start + end) / 2, width / (2 * _TENTH), size)
    if len(t) < _FEWEST_AROUND:
        return best
    spacing = float(np.median(np.diff(t)))
    m = np.linspace(start - width / 4, end + width / 4, 17)
    s = np.geomspace(min(width, spacing) / 8, width / 2, 9)
    for _ in range(_ZOOMS):
        rss, fall, grid_m, grid_s = _evaluate(t, y, m, s)
        k = int(np.argmin(rss))
        best = Shape(float(grid_m[k]), float(grid_s[k]), float(fall[k]))
        step, ratio = m[1] - m[0], np.sqrt(s[1] / s[0])
        m = np.linspace(best.midpoint - step, best.midpoint + step, 9)
        s = best.scale * np.geomspace(1 / ratio, ratio, 5)
    return best


def _evaluate(t: Array, y: Array, m: Array, s: Array) -> tuple[Array, Array, Array, Array]:
    """Return the RSS and the size for every pair of midpoint and scale, and the pairs."""
    from scipy.special import expit  # this import takes half a second, which a run without stages need not spend

    grid_m, grid_s = (g.ravel() for g in np.meshgrid(m, s, indexing="ij"))
    unit = t[-1] - t[0]
    x = (t - grid_m[:, None]) / unit  # (pairs, n)
    after = expit((t - grid_m[:, None]) / grid_s[:, None])
    basis = np.stack([1 - after, (1 - after) * x, after, after * x], axis=-1)  # (pairs, n, 4)
    gram = basis.mT @ basis
    ridge = 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(4)
    moment = basis.mT @ y
    coefficients = np.linalg.solve(gram + ridge, moment[..., None])[..., 0]
    residual = y - (basis @ coefficients[..., None])[..., 0]
    return (residual**2).sum(1), coefficients[:, 0] - coefficients[:, 2], grid_m, grid_s


_LARGEST = 40.0  # a larger z or contrast is no further evidence
_INTERCEPT = -4.0  # the fit gave −3.55; a lower value reports a doubtful drop less often
_OF_Z = 1.45
_OF_CONTRAST = 1.3
_OF_MISMATCH = -1.94


def evidence(drop: Drop, shape: Shape) -> tuple[float, float, float]:
    """Log z, log contrast, and how far the fitted shape and the drop disagree in size (0 to 2, of the logarithm)."""
    ratio = shape.size / drop.size if drop.size > 0 else 0.0
    mismatch = abs(math.log(ratio)) if ratio > 0 else math.inf
    return math.log(min(drop.z, _LARGEST)), math.log(min(drop.contrast, _LARGEST)), min(mismatch, 2.0)


def confidence(drop: Drop, shape: Shape) -> float:
    """Return the probability that the drop is a stage and that its midpoint is right."""
    z, contrast, mismatch = evidence(drop, shape)
    logit = _INTERCEPT + _OF_Z * z + _OF_CONTRAST * contrast + _OF_MISMATCH * mismatch
    return 1 / (1 + math.exp(-logit))
