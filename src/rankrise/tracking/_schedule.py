"""When to measure: a schedule is any callable from a step to yes or no.

Those made here are frozen records, so that a run can say in its `spec.json` when it was measured.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from rankrise._arguments import as_count


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
    return Every(as_count(num_steps, "num_steps", least=1))


def at(*steps: int) -> At:
    """Yes at the steps given.

    >>> [step for step in range(10) if at(2, 5)(step)]
    [2, 5]
    """
    return At(frozenset(as_count(step, "steps") for step in steps))


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


def as_schedule(value: int | Schedule, name: str = "every") -> Schedule:
    """An integer means `every` so many steps; `name` is that of the argument, for the message.

    Raises:
        ValueError: Neither an integer of at least 1 nor a callable.
    """
    if callable(value):
        return value
    if not hasattr(value, "__index__"):
        raise ValueError(f"`{name}` must be a number of steps or a callable; got {value!r} ({type(value).__name__}).")
    return Every(as_count(value, name, least=1))


def spectra_schedule(ranks: Schedule, spectra: int | Schedule | None) -> Schedule:
    """The schedule of spectra: the given one, or a rarer one than that of ranks, because spectra cost more.

    >>> spectra_schedule(every(200), None)
    Every(num_steps=2000)
    """
    if spectra is not None:
        return as_schedule(spectra, "spectra")
    return every(10 * ranks.num_steps) if isinstance(ranks, Every) else log_spaced()


def schedule_name(schedule: Schedule) -> str:
    """The name of a schedule, the same in every process: without memory addresses."""
    if isinstance(schedule, Every | At):
        return repr(schedule)
    return str(getattr(schedule, "__qualname__", type(schedule).__qualname__))
