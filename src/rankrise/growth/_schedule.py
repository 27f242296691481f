"""When a growing adapter looks, grows and is cut.

both    begins with uniform ranks, grows to `over` times the budget in the first 0.4 of the steps, is cut at half of all
grow    begins with no direction, and then goes on as `both` does
early   begins with no direction, grows to the budget in the first 0.12 of the steps, and is not cut
cut     begins with uniform ranks of `over` times the budget and is cut at half of all; nothing grows in this mode,
        because it is the control of the others
"""

from dataclasses import dataclass
from typing import Literal, get_args

from rankrise._arguments import check_choice

Mode = Literal["both", "early", "grow", "cut"]
MODES: tuple[Mode, ...] = get_args(Mode)
_EVENTS = {"both": (8, 0.4), "grow": (8, 0.4), "early": (3, 0.12)}  # most events, part of the steps
_CUT_AT = 0.5
_MOST, _USUAL, _LEAST = 8, 4, 2  # numbers of micro-batches in the shortest part of a window, over all processes


@dataclass(frozen=True)
class Schedule:
    """The steps at which one training watches, grows and cuts; `growth_schedule` makes it."""

    mode: Mode
    over: float  # the most parameters, as a multiple of the budget
    events: tuple[int, ...]  # steps after which something may grow
    window: int  # number of steps for which the gradient is watched before an event
    micro_batches: int  # m: a window has m for its part "right", m for "left" and 2m for "signal"
    cut_at: int | None

    def opens_at(self, step: int) -> bool:
        """Whether a window begins after this step."""
        return any(event - self.window == step for event in self.events)


def growth_schedule(
    mode: Mode, total_steps: int, *, over: float = 2.0, per_step: int = 1, events: int | None = None
) -> Schedule:
    """Make the schedule of a training.

    Windows do not overlap. A window takes 4 times 8 micro-batches if there is room for that at every event. In a
    shorter training a window takes fewer, but not fewer than 4 times 4 as long as one event has room for them, so that
    there may be fewer events. In a training that is too short even for that, a window takes at least 4 times 2.

    Args:
        mode: One of the modes in the table at the top of this file.
        total_steps: Number of optimiser steps of the training.
        over: The most parameters, as a multiple of the budget.
        per_step: Number of micro-batches of one optimiser step, over all processes.
        events: The most events; by default 8, or 3 for `early`.

    Raises:
        ValueError: The mode is unknown, a value is out of its range, or one window takes more steps than there are.

    >>> growth_schedule("both", 1000).events
    (50, 100, 150, 200, 250, 300, 350, 400)
    >>> growth_schedule("early", 200).window
    16
    """
    check_choice("mode", mode, MODES)
    if total_steps < 1 or per_step < 1:
        raise ValueError(f"`total_steps` and `per_step` must be positive; got {total_steps} and {per_step}.")
    if over < 1:
        raise ValueError(f"`over` must be at least 1; got {over:g}.")
    cut_at = None if mode == "early" else max(1, int(_CUT_AT * total_steps))
    if mode == "cut":
        return Schedule(mode, over, (), 0, 0, cut_at)
    most, until = _EVENTS[mode]
    most = most if events is None else events
    end = int(until * total_steps)
    window = size = 0
    for size in range(_MOST, _LEAST - 1, -1):
        window = sum(-(-part // per_step) for part in (size, size, 2 * size))
        if end // (most if size > _USUAL else 1) >= window:
            break
    number = min(most, end // window)
    if number < 1:
        raise ValueError(
            f"Mode {mode!r} needs {window} steps to watch the gradient before {until:g} of the training is over; with "
            f"{total_steps} steps there are {end}. Train longer, accumulate more micro-batches, or use mode 'cut'."
        )
    return Schedule(mode, over, tuple(end * (i + 1) // number for i in range(number)), window, size, cut_at)
