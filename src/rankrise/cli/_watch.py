"""Progress of a plan of many runs on stderr: on a terminal one line that is overwritten, else a line for each run."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rankrise.lab.experiments import Attempt, PlannedRun
    from rankrise.lab.training import Report

_SECONDS = 15.0  # between two plain lines of one run


class PlanWatch:
    """Shows which run of how many, how far it is, and how long all of them will still take."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._clock = clock
        self._place = self._label = ""
        self._begun = self._last = 0.0
        self._estimate = self._after = 0.0

    def begin(self, run: "PlannedRun", number: int, total: int, estimate: float, after: float) -> None:
        """Say that a run begins."""
        self._place = f"[{number:>{len(str(total))}}/{total}]"
        self._label = f"{run.name}/{run.hash}, seed {run.spec.seed}"
        self._begun = self._last = self._clock()
        self._estimate, self._after = estimate, after
        if self._on_terminal:
            self._say(f"{self._place} {self._label}: {self._left(estimate + after)}", is_passing=True)

    def update(self, report: "Report") -> None:
        """Show that the run has got as far as `report` says."""
        every = 0.5 if self._on_terminal else _SECONDS
        if self._clock() - self._last < every:
            return
        self._last = self._clock()
        rest = report.remaining
        if rest is None:
            rest = max(self._estimate - (self._clock() - self._begun), 0.0)
        part = report.step / max(report.num_steps, 1)
        self._say(f"{self._place} {self._label}: {part:.0%}, {self._left(rest + self._after)}", is_passing=True)

    def end(self, attempt: "Attempt", after: float) -> None:
        """Say that a run has ended; the plan has already named the runs that were done before or have no data."""
        if attempt.fate in ("skipped", "missing"):
            return
        why = f" ({attempt.message})" if attempt.message and attempt.fate != "finished" else ""
        fate = f"{attempt.fate} after {self._duration(attempt.seconds)}{why}"
        self._say(f"{self._place} {self._label}: {fate}; {self._left(after)}")

    def close(self) -> None:
        """Nothing to do: every line stands by itself."""

    def note(self, text: str) -> None:
        """Write a line of another kind."""
        self._say(text)

    def _left(self, seconds: float) -> str:
        return f"about {self._duration(seconds)} left" if seconds >= 1 else "nearly done"

    def _duration(self, seconds: float) -> str:
        from rankrise.lab.training import duration

        return duration(seconds)

    def _say(self, text: str, *, is_passing: bool = False) -> None:
        if self._on_terminal:
            self._stream.write(f"\r{text}\x1b[K" + ("" if is_passing else "\n"))
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()
