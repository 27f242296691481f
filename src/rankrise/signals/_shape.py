"""Shape of one drop: two lines joined by a logistic, fitted by least squares to the samples around it.

    y(t) = (1 − S)(a₀ + a₁ (t − m)) + S (b₀ + b₁ (t − m)),   S = 1 / (1 + exp(−(t − m) / s))

linear in a, b for given midpoint m and scale s, which are searched on a grid that zooms in. The drop is a₀ − b₀.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from rankrise.signals._checks import Array

_TENTH = float(np.log(9.0))  # the logistic goes from 10% to 90% within ± this many scales
_FEWEST = 8
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
        """Where nine tenths are."""
        return self.midpoint + _TENTH * self.scale


def fit_shape(t: Array, y: Array, *, start: float, end: float, size: float) -> Shape:
    """The best logistic for a drop found in [start, end]; t (n,) and y (n,) hold the samples around it."""
    width = end - start
    best = Shape((start + end) / 2, width / (2 * _TENTH), size)
    if len(t) < _FEWEST:
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
    """RSS and size for every pair of midpoint and scale, with the pairs."""
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
