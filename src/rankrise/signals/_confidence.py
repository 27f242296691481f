"""How far to believe a drop: a logistic in three numbers, with coefficients fitted to curves whose stages are known.

Fitted by `tests/signals/calibrate.py` (200 curves of each kind, before the last change in how overlapping drops are
chosen) to staircases and smooth losses of many noise levels; "right" means a planted stage within 5% of its spacing.
The tests check it on other seeds.
"""

import math

from rankrise.signals._drops import Drop
from rankrise.signals._shape import Shape

_LARGEST = 40.0  # beyond this, z and the contrast say no more
_INTERCEPT = -4.0  # fitted −3.55; lowered so that doubt stays on the side of none
_OF_Z = 1.45
_OF_CONTRAST = 1.3
_OF_MISMATCH = -1.94


def evidence(drop: Drop, shape: Shape) -> tuple[float, float, float]:
    """Log z, log contrast, and how far the fitted shape and the drop disagree in size (0 to 2, of the logarithm)."""
    ratio = shape.size / drop.size if drop.size > 0 else 0.0
    mismatch = abs(math.log(ratio)) if ratio > 0 else math.inf
    return math.log(min(drop.z, _LARGEST)), math.log(min(drop.contrast, _LARGEST)), min(mismatch, 2.0)


def confidence(drop: Drop, shape: Shape) -> float:
    """Probability that the drop is a stage and its midpoint right, in [0, 1]."""
    z, contrast, mismatch = evidence(drop, shape)
    logit = _INTERCEPT + _OF_Z * z + _OF_CONTRAST * contrast + _OF_MISMATCH * mismatch
    return 1 / (1 + math.exp(-logit))
