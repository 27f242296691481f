"""Numbers of a curve that several claims share."""

import numpy as np

from rankrise.runs import Array, NotMeasurable

_GRID = 2001


def time_of_drop(times: Array, losses: Array, part: float = 0.9) -> float:
    """The share of the time that holds `part` of the fall of a loss, in the steepest places: 0 for jumps, near `part`
    for a straight line.

    >>> round(time_of_drop(np.array([0.0, 1.0]), np.array([1.0, 0.0])), 3)
    0.9
    >>> time_of_drop(np.array([0.0, 0.5, 0.501, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])) < 0.002
    True
    """  # noqa: D205
    grid = np.linspace(times[0], times[-1], _GRID)
    falls = np.sort(np.maximum(-np.diff(np.interp(grid, times, losses)), 0))[::-1]
    total = falls.sum()
    if total <= 0:
        raise NotMeasurable("The loss does not fall.")
    return float((np.searchsorted(np.cumsum(falls), part * total * (1 - 1e-9)) + 1) / (_GRID - 1))


def num_stages(times: Array, losses: Array, active_from: Array, part: float = 0.05) -> int:
    """Coordinates that become active after at least another `part` of the fall of the loss; the first counts.

    Those that become active together, before the loss has moved, are one stage.

    Args:
        times: Of the curve.
        losses: The curve.
        active_from: Time at which each coordinate becomes active; inf for never.
        part: Of the fall of the loss.

    >>> times, losses = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    >>> num_stages(times, losses, np.array([0.1, 0.12, 0.5])), num_stages(times, losses, np.array([0.1, 0.11, 0.12]))
    (2, 1)
    """
    lowest = np.minimum.accumulate(losses)
    ever = np.sort(active_from[np.isfinite(active_from)])
    if lowest[-1] >= losses[0] or not len(ever):
        raise NotMeasurable("The loss does not fall, or no coordinate becomes active.")
    count, last = 0, -np.inf
    for done in (losses[0] - np.interp(ever, times, lowest)) / (losses[0] - lowest[-1]):
        if done >= last + part:
            count, last = count + 1, done
    return count


def active_at_half(times: Array, losses: Array, active_from: Array) -> float:
    """Of the coordinates that ever become active, the share that is when half of the fall of the loss is done.

    Args:
        times: Of the curve.
        losses: The curve.
        active_from: Time at which each coordinate becomes active; inf for never.
    """
    ever = np.isfinite(active_from)
    if losses[-1] >= losses[0] or not ever.any():
        raise NotMeasurable("The loss does not fall, or no coordinate becomes active.")
    half = times[np.argmax(losses <= 0.5 * (losses[0] + losses[-1]))]
    return float((active_from[ever] <= half).mean())


def listed(values: Array, form: str = ".2f") -> str:
    """Numbers for a sentence.

    >>> listed(np.array([1.0, 2.5]))
    '1.00, 2.50'
    """
    return ", ".join(format(float(value), form) for value in values)
