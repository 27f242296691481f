"""Fit and noise together: the curve made of lines under AR(1) noise whose correlation is chosen by BIC.

Noise of neighbouring samples is correlated, ρ^k at lag k, so a mean of m samples has variance σ²(1 + ρ) / ((1 − ρ) m):
the long-run variance, which is what a line must beat. For each ρ of a grid: σ from the differences of neighbours,
variance 2σ²(1 − ρ); the fit at the penalty that this asks; and the score

    n log mean e² + 3 #segments log n,   e_i = r_i − ρ r_{i−1} the innovations of the residuals r.

Wrong plateaus cannot pass for noise: at a sharp drop they leave an innovation that no ρ explains.
"""

from dataclasses import dataclass

import numpy as np

from rankrise.signals._checks import Array
from rankrise.signals._segments import segment

_RHOS = (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 0.95)
_PARAMETERS = 3.0  # of a segment: level, slope, place
_SCORE = 1.8  # price of a segment in the choice of ρ, in log n: at 3 noise takes over drops, at 1 drops take over noise


@dataclass(frozen=True)
class Noise:
    """Noise of standard deviation `sigma` and lag-one correlation `rho`."""

    sigma: float
    rho: float

    @property
    def long_run(self) -> float:
        """Variance that a mean of m samples has, times m."""
        return self.sigma**2 * (1 + self.rho) / (1 - self.rho)


def best_fit(t: Array, y: Array, resolution: float) -> tuple[Noise, Array, list[tuple[int, int]]]:
    """Noise, fit and segments.

    Args:
        t: Times (n,), scaled to [0, 1].
        y: Values (n,), scaled to [0, 1].
        resolution: Smallest noise assumed: what is finer is not told apart.
    """
    n = len(t)
    jitter = _spread(np.diff(y))
    best = None
    for rho in _RHOS:
        sigma = float(np.hypot(jitter / np.sqrt(2 * (1 - rho)), resolution))
        penalty = _PARAMETERS * Noise(sigma, rho).long_run * np.log(n)
        fit, ranges = segment(t, y, penalty)
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
