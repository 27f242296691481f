"""Progress of a sweep on stderr: a live table on a terminal, and elsewhere a line for each run that ends."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TextIO

from rankrise.store import show as printable

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.lab.experiments import Attempt, PlannedRun
    from rankrise.lab.sweep import Standing

_SECONDS = 30.0  # time between two plain lines while no run ends
_MOST_LINES = 12  # runs that the table names


class SweepLines:
    """A context that shows a sweep: how many runs are running, done and failed, and how long the rest will take."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._last = clock()
        self._begun: dict[str, float] = {}
        self._live = Live(console=Console(file=self._stream), auto_refresh=False, transient=True)
        self._on_terminal = self._stream.isatty()

    def __enter__(self) -> Self:
        if self._on_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, standing: "Standing") -> None:
        """Show how far the sweep is."""
        if self._on_terminal:
            self._live.update(self._table(standing), refresh=True)
        elif self._clock() - self._last >= _SECONDS:
            self._say(_counts(standing))

    def end(self, attempt: "Attempt", standing: "Standing") -> None:
        """Write a line for a run that has ended, except for a skipped one, which the plan has counted already."""
        from rankrise.lab.training import duration

        if attempt.fate != "skipped":
            why = f" ({printable(attempt.message)})" if attempt.message and attempt.fate != "finished" else ""
            self._say(
                f"{_label(attempt.run)}: {attempt.fate} after {duration(attempt.seconds)}{why}; {_counts(standing)}"
            )
        self.update(standing)

    def note(self, text: str) -> None:
        """Write a line of another kind."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._last = self._clock()
        if self._on_terminal:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _table(self, standing: "Standing") -> "Table":
        from rich.table import Table
        from rich.text import Text

        from rankrise.lab.training import duration

        now = self._clock()
        labels = [_label(run) for run in standing.running]
        self._begun = {label: self._begun.get(label, now) for label in labels}
        table = Table(title=_counts(standing), title_justify="left", box=None, pad_edge=False)
        table.add_column("running")
        table.add_column("for", justify="right")
        for label in labels[:_MOST_LINES]:
            table.add_row(Text(label), duration(now - self._begun[label]))
        if len(labels) > _MOST_LINES:
            table.add_row(f"and {len(labels) - _MOST_LINES} more", "")
        return table


def _label(run: "PlannedRun") -> str:
    return f"{run.name}/{run.hash}, seed {run.spec.seed}"


def _counts(standing: "Standing") -> str:
    from rankrise.lab.training import duration

    left = f", about {duration(standing.seconds_left)} left" if standing.seconds_left >= 1 else ""
    counts = f"{standing.num_done} of {standing.num_total} done, {len(standing.running)} running"
    return f"{counts}, {standing.num_failed} failed{left}"
