"""What a user sees while training runs, on stderr: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

_SECONDS = 5.0  # between two plain lines


@dataclass(frozen=True)
class Report:
    """Where training stands. What is not known yet, or has no meaning, is None.

    Attributes:
        step: Optimiser steps done, of `num_steps`.
        num_steps: Of the whole run.
        epoch: Running, counted from 1, of `num_epochs`.
        num_epochs: Of the whole run.
        rate: Steps per second.
        loss: Of a recent batch.
        accuracy: Of a recent batch.
        stable_rank: Of the change of W_K W_Qᵀ, mean over all heads, when last measured.
    """

    step: int
    num_steps: int
    epoch: int
    num_epochs: int
    rate: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    stable_rank: float | None = None

    @property
    def remaining(self) -> float | None:
        """Seconds to go, at this rate."""
        return (self.num_steps - self.step) / self.rate if self.rate else None

    @property
    def numbers(self) -> str:
        """All but the step, for people.

        >>> Report(50, 100, 1, 2, rate=10.0, loss=0.25, stable_rank=1.5).numbers
        'loss 0.2500, stable rank 1.50, 10.0 steps/s, 5 s left'
        """
        parts = [
            None if self.loss is None else f"loss {self.loss:.4f}",
            None if self.accuracy is None else f"accuracy {self.accuracy:.1%}",
            None if self.stable_rank is None else f"stable rank {self.stable_rank:.2f}",
            None if self.rate is None else f"{self.rate:.1f} steps/s",
            None if self.remaining is None else f"{duration(self.remaining)} left",
        ]
        return ", ".join(part for part in parts if part)


class Progress(Protocol):
    """Anything that shows a report. It is called a few times a second at most, in the main process."""

    def update(self, report: Report) -> None:
        """Show where training stands."""

    def close(self) -> None:
        """Nothing more will come."""


class PlainProgress:
    """Lines, at most one every five seconds and one at the end."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._next = clock()
        self._unsaid: Report | None = None

    def update(self, report: Report) -> None:
        """Print, if it is time."""
        self._unsaid = report
        if self._clock() >= self._next:
            self._next = self._clock() + _SECONDS
            self._say()

    def close(self) -> None:
        """Print the last report, if it was not."""
        self._say()

    def _say(self) -> None:
        report, self._unsaid = self._unsaid, None
        if report is not None:
            where = f"step {report.step}/{report.num_steps}, epoch {report.epoch}/{report.num_epochs}"
            self._stream.write(f"{where}: {report.numbers}\n")
            self._stream.flush()


class RichProgress:
    """A bar with the numbers beside it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
        console = Console(file=stream, stderr=stream is None)
        self._bar = Progress(*columns, console=console, transient=False)
        self._task = self._bar.add_task("", total=None, epoch="", numbers="")
        self._bar.start()

    def update(self, report: Report) -> None:
        """Move the bar."""
        self._bar.update(
            self._task,
            completed=report.step,
            total=report.num_steps,
            epoch=f"{report.epoch}/{report.num_epochs}",
            numbers=report.numbers,
        )

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def show_progress() -> Progress:
    """A bar if stderr is a terminal, else plain lines."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(7), duration(75), duration(3725)
    ('7 s', '1 min 15 s', '1 h 02 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
