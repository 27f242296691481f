"""A curve as straight lines under noise: the best lines at a price, with the noise estimated together with the fit.

Lines: least squares with a price on every line, solved exactly,

    min over knots of  Σ_segments RSS(segment) + penalty · #segments

by dynamic programming over the last knot (Auger and Lawrence 1989), O(n²) additions with prefix sums for the RSS.
Lines need not meet, so a sudden drop is a jump and a slow one is a steep line.

Noise: AR(1), whose correlation is chosen by a score. Noise of neighbouring samples is correlated, ρ^k at lag k, so a
mean of m samples has variance σ²(1 + ρ) / ((1 − ρ) m): the long-run variance, which is what a line must beat. For each
ρ of a grid σ comes from the differences of neighbours, which have variance 2σ²(1 − ρ); the fit is made at the penalty
that this σ asks for; and the fit has the score

    n log mean e² + 1.8 #segments log n,   e_i = r_i − ρ r_{i−1} the innovations of the residuals r.

Wrong plateaus cannot pass for noise: at a sharp drop they leave an innovation that no ρ explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SHORTEST = 3  # samples in a segment, because a line always passes through two


def residuals(t: Array, y: Array) -> list[Array]:
    """The RSS of a line through the samples [start, end), an array over every start for each end from 3 to n.

    They depend on no penalty, so that `best_fit` computes them once for all ρ.
    """
    sums = np.zeros((6, len(t) + 1))
    np.cumsum([np.ones(len(t)), t, y, t * t, t * y, y * y], axis=1, out=sums[:, 1:])
    ends = range(_SHORTEST, len(t) + 1)
    return [_rss(sums[:, end : end + 1] - sums[:, : end - _SHORTEST + 1]) for end in ends]


def segment(t: Array, y: Array, penalty: float, rss: Sequence[Array]) -> tuple[Array, list[tuple[int, int]]]:
    """Return the fit of y (n,) by lines over t, and the segments as half-open index ranges.

    Args:
        t: Times (n,).
        y: Values (n,).
        penalty: The price of a segment.
        rss: What `residuals` returned.
    """
    n = len(t)
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(n + 1, dtype=np.int64)
    for end, of_starts in enumerate(rss, _SHORTEST):
        cost = best[: len(of_starts)] + of_starts + penalty
        previous[end] = np.argmin(cost)
        best[end] = cost[previous[end]]
    ranges: list[tuple[int, int]] = []
    end = n
    while end > 0:
        ranges.append((int(previous[end]), end))
        end = int(previous[end])
    ranges.reverse()
    fit = np.concatenate([_line(t[a:b], y[a:b]) for a, b in ranges])
    return fit, ranges


def _rss(s: Array) -> Array:
    m, st, sy, stt, sty, syy = s
    vtt, vty, vyy = stt - st * st / m, sty - st * sy / m, syy - sy * sy / m
    slope_part = np.divide(vty * vty, vtt, out=np.zeros_like(vtt), where=vtt > 1e-14 * stt)
    rss: Array = np.maximum(vyy - slope_part, 0.0)
    return rss


def _line(t: Array, y: Array) -> Array:
    dt = t - t.mean()
    out: Array = y.mean() + dt * ((dt @ y) / (dt @ dt))
    return out


_RHOS = (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 0.95)
_PARAMETERS = 3.0  # parameters of a segment: level, slope, place
_SCORE = 1.8  # price of a segment in the choice of ρ, in log n: at 3 noise takes over drops, at 1 drops take over noise


@dataclass(frozen=True)
class Noise:
    """Noise of standard deviation `sigma` and lag-one correlation `rho`."""

    sigma: float
    rho: float

    @property
    def long_run(self) -> float:
        """Return the variance of a mean of m samples, times m."""
        return self.sigma**2 * (1 + self.rho) / (1 - self.rho)


def best_fit(t: Array, y: Array, resolution: float) -> tuple[Noise, Array, list[tuple[int, int]]]:
    """Return the noise, the fit and its segments.

    Args:
        t: Times (n,), scaled to [0, 1].
        y: Values (n,), scaled to [0, 1].
        resolution: Smallest noise assumed; finer differences are not resolved.
    """
    n = len(t)
    jitter = _spread(np.diff(y))
    rss = residuals(t, y)
    best = None
    for rho in _RHOS:
        sigma = float(np.hypot(jitter / np.sqrt(2 * (1 - rho)), resolution))
        penalty = _PARAMETERS * Noise(sigma, rho).long_run * np.log(n)
        fit, ranges = segment(t, y, penalty, rss)
        r = y - fit
        innovation = float(np.mean((r[1:] - rho * r[:-1]) ** 2)) + resolution**2 * (1 - rho**2)
        score = n * np.log(innovation) + _SCORE * len(ranges) * np.log(n)
        if best is None or score < best[0]:
            noise = Noise(float(np.sqrt(innovation / (1 - rho**2))), rho)
            best = (score, noise, fit, ranges)
    assert best is not None
    _, noise, fit, ranges = best
    return noise, fit, ranges


def _spread(x: Array) -> float:
    """Standard deviation of a normal sample, from its median absolute deviation: a few drops do not move it."""
    return float(1.4826 * np.median(np.abs(x - np.median(x))))
