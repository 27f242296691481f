"""Which learning rate to try next, and which is best: a grid that goes on until the best has neighbours."""

import math
from collections.abc import Mapping, Sequence

_MOST_ADDED = 4  # beyond the grid


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate with the least loss; one that diverged is never best.

    >>> best_rate({1e-3: 2.0, 2e-3: 1.5, 4e-3: float("nan")})
    0.002
    """
    return min(losses, key=lambda rate: (_finite(losses[rate]), rate))


def is_bracketed(losses: Mapping[float, float]) -> bool:
    """Whether the best rate lies between two that were tried."""
    return min(losses) < best_rate(losses) < max(losses)


def next_rate(losses: Mapping[float, float], grid: Sequence[float]) -> float | None:
    """The rate to try after those with a loss: the grid, then one more beyond the edge where the best lies.

    Args:
        losses: By rate, of those that were tried.
        grid: Rising.

    Returns:
        A rate; None when the best is bracketed, or four were added.

    >>> next_rate({1e-3: 2.0}, (1e-3, 2e-3))
    0.002
    >>> next_rate({1e-3: 2.0, 2e-3: 1.5}, (1e-3, 2e-3))
    0.004
    >>> next_rate({1e-3: 2.0, 2e-3: 1.5, 4e-3: 3.0}, (1e-3, 2e-3)) is None
    True
    """
    for rate in grid:
        if rate not in losses:
            return rate
    if is_bracketed(losses) or len(losses) >= len(grid) + _MOST_ADDED:
        return None
    best = best_rate(losses)
    return best * grid[-1] / grid[-2] if best == max(losses) else best * grid[0] / grid[1]


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
