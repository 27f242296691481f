"""When to measure: a schedule is any callable from a step to yes or no.

Those made here are frozen records, so that a run can say in its `spec.json` when it was measured.
"""

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """Anything that answers, for a step, whether to measure."""

    def __call__(self, step: int, /) -> bool:
        """Whether to measure at `step`."""


@dataclass(frozen=True)
class Every:
    """Yes at multiples of `num_steps`."""

    num_steps: int

    def __call__(self, step: int) -> bool:
        return step % self.num_steps == 0


@dataclass(frozen=True)
class At:
    """Yes at the steps listed."""

    steps: frozenset[int]

    def __call__(self, step: int) -> bool:
        return step in self.steps

    def __repr__(self) -> str:
        return f"at({', '.join(map(str, sorted(self.steps)))})"


def every(num_steps: int) -> Every:
    """Yes at steps 0, n, 2n, ….

    >>> [step for step in range(10) if every(4)(step)]
    [0, 4, 8]
    """
    if num_steps < 1:
        raise ValueError(f"`num_steps` must be at least 1; got {num_steps}.")
    return Every(num_steps)


def at(*steps: int) -> At:
    """Yes at the steps given.

    >>> [step for step in range(10) if at(2, 5)(step)]
    [2, 5]
    """
    return At(frozenset(steps))


def log_spaced(first: int = 1, last: int = 1_000_000, *, num: int = 60) -> At:
    """Yes at about `num` steps, in geometric progression from `first` to `last`, both included.

    Early in training much happens in few steps; a geometric clock sees it and costs little later. Steps that round to
    the same integer are one.

    >>> sorted(log_spaced(1, 1000, num=7).steps)
    [1, 3, 10, 32, 100, 316, 1000]
    """
    if not 1 <= first < last or num < 2:
        raise ValueError(f"1 ≤ `first` < `last` and `num` ≥ 2 must hold; got {first}, {last} and {num}.")
    ratio = math.log(last / first) / (num - 1)
    return At(frozenset(round(first * math.exp(i * ratio)) for i in range(num)))


def as_schedule(value: int | Schedule) -> Schedule:
    """An integer means `every` so many steps."""
    if isinstance(value, int):
        return every(value)
    if not callable(value):
        raise ValueError(f"A schedule must be a number of steps or a callable; got {type(value).__name__}.")
    return value
