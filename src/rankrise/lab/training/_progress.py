"""What a user sees while training runs, on stderr: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rankrise.lab.training._job import Job
    from rankrise.lab.training._step import Readback
    from rankrise.tracking import Measurement

_LINE_SECONDS = 5.0  # between two plain lines
_REPORT_SECONDS = 0.25  # between two reports


@dataclass(frozen=True)
class Report:
    """Where training stands. What is not known yet, or has no meaning, is None.

    Attributes:
        step: Number of optimiser steps done.
        num_steps: Number of optimiser steps of the whole run.
        epoch: The epoch that is running, counted from 1.
        num_epochs: Number of epochs of the whole run.
        rate: Steps per second.
        loss: Loss of a recent batch.
        accuracy: Accuracy on a recent batch.
        stable_rank: Stable rank of the change of W_K W_Qᵀ when it was last measured, mean over all heads.
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
        """Seconds that are left at this rate."""
        return (self.num_steps - self.step) / self.rate if self.rate else None

    @property
    def numbers(self) -> str:
        """All numbers but the step, for people.

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


class ProgressDisplay(Protocol):
    """Anything that shows a report. It is called a few times a second at most, in the main process."""

    def update(self, report: Report) -> None:
        """Show where training stands."""

    def close(self) -> None:
        """Training is over; no more reports will come."""


class PlainProgress:
    """Prints at most one line every five seconds, and one at the end."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._next = clock()
        self._unsaid: Report | None = None

    def update(self, report: Report) -> None:
        """Print the report if it is time."""
        self._unsaid = report
        if self._clock() >= self._next:
            self._next = self._clock() + _LINE_SECONDS
            self._say()

    def close(self) -> None:
        """Print the last report if it was not printed yet."""
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


def show_progress() -> ProgressDisplay:
    """Return a bar if stderr is a terminal, else plain lines."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()


def duration(seconds: float) -> str:
    """Write a time for people.

    >>> duration(7), duration(75), duration(3725)
    ('7 s', '1 min 15 s', '1 h 02 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


class Reporter:
    """Tells a display a few times a second where training stands, without waiting for the device at every step."""

    def __init__(self, job: "Job", *, begin: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Note the step at which training begins, from which the rate is counted."""
        self._progress = job.progress
        self._num_steps, self._steps_per_epoch = job.num_steps, job.steps_per_epoch
        self._has_accuracy = job.dataset.task == "classify"
        self._clock = clock
        self._before = (begin, clock())
        self._next = clock() + _REPORT_SECONDS
        self._rate: float | None = None
        self._stable_rank: float | None = None

    def update(self, step: int, readback: "Readback", latest: "Sequence[Measurement]") -> None:
        """Report if it is time, or if training is at its end."""
        if self._progress is None or (step < self._num_steps and self._clock() < self._next):
            return
        now = self._clock()
        self._next = now + _REPORT_SECONDS
        then, at = self._before
        if now > at and step > then:
            rate = (step - then) / (now - at)
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
            self._before = (step, now)
        mean = mean_stable_rank(latest)
        self._stable_rank = self._stable_rank if mean is None else mean
        self._progress.update(
            Report(
                step,
                self._num_steps,
                epoch=(max(step, 1) - 1) // self._steps_per_epoch + 1,
                num_epochs=self._num_steps // self._steps_per_epoch,
                rate=self._rate,
                loss=_known(readback.loss),
                accuracy=_known(readback.accuracy) if self._has_accuracy else None,
                stable_rank=self._stable_rank,
            )
        )


def mean_stable_rank(measurements: "Sequence[Measurement]") -> float | None:
    """Mean stable rank of the change of W_K W_Qᵀ over all heads; NaN values do not count, and None means no value."""
    found = [m.values for m in measurements if m.name == "stable_rank" and m.circuit == "kq" and m.heads]
    values = [value for part in found for value in part.flatten().tolist() if value == value]
    return sum(values) / len(values) if values else None


def _known(value: float) -> float | None:
    return value if value == value else None
