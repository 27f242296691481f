"""Carry runs out on several workers, whatever becomes of each run and of each worker.

The truth is on disk. A run is done once its sealed manifest verifies, so that the same runs given again, after any
crash, are passed over if they are done and go on otherwise, whatever Dask knew of them.
"""

import contextlib
import math
import os
import queue
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rankrise.lab.experiments import (
    Attempt,
    Estimator,
    PlannedRun,
    is_full,
    kind_of,
    write_durations,
)
from rankrise.lab.sweep._cluster import ALLOWED_FAILURES, Workers, connected
from rankrise.lab.sweep._work import perform

if TYPE_CHECKING:
    from distributed import Client, Future

_TICK = 0.5  # seconds between two looks at what is running
_POLL = 3.0  # seconds between two looks at a run of another process
_RETRIES = 2  # of a training whose process died
_RECONNECT = 60.0  # seconds to wait for a scheduler that went away
_SAVE = 10.0  # seconds between two savings of what runs took
_FAILED = ("failed", "diverged")


@dataclass(frozen=True)
class Standing:
    """How far a sweep is.

    Attributes:
        running: The runs that workers have now.
        num_total: Number of runs that were to be done when the sweep began.
        num_done: Number of those that are finished now.
        num_failed: Number of those that were given up.
        seconds_left: How long the rest will take on as many workers as there are.
    """

    running: tuple[PlannedRun, ...]
    num_total: int
    num_done: int
    num_failed: int
    seconds_left: float


class SweepWatch(Protocol):
    """What a sweep tells about its progress; the command line shows it."""

    def update(self, standing: Standing) -> None:
        """The sweep is as far as `standing` says; called twice a second or so."""

    def end(self, attempt: Attempt, standing: Standing) -> None:
        """A run has ended."""

    def note(self, text: str) -> None:
        """Something has happened that belongs to no run."""


def sweep(
    runs: Sequence[PlannedRun],
    *,
    out: Path,
    workers: Workers,
    device: str | None = None,
    watch: SweepWatch | None = None,
) -> list[Attempt]:
    """Do the runs that are not done, on several workers.

    Runs of the theory are solved inside the workers, trainings are processes of their own. The runs of a worker that
    dies are done elsewhere; a run that kills every worker it is given, or whose process dies three times, is reported
    as failed, and the others finish. A full disk stops the sweep. The workers must see `out` and the data under the
    same paths as this process.

    Args:
        runs: What `Grid.plan` or `plan_reproduction(...).runs` returned.
        out: Folder of the runs; their durations are kept there too.
        workers: Who does the runs.
        device: Where networks are trained; the best there is unless given. "cuda" on a cluster asks for workers that
            offer the resource `GPU`.
        watch: Told how far the sweep is.

    Returns:
        What became of each run, in the order of `runs`. On a full disk, later runs are left out.

    Raises:
        ModuleNotFoundError: Dask is not installed.
        OSError: No scheduler answers at the address.
        ValueError: A GPU is asked for, and no worker offers one.
    """
    book = _Book(runs, out, Estimator.of(out, device), watch)
    lost: float | None = None  # when the scheduler went away
    while book.left and not book.is_full:
        try:
            with connected(workers) as client:
                lost = None
                _Round(client, book, device).carry_out()
        except OSError:
            if lost is None or time.monotonic() - lost > _RECONNECT:
                raise
            time.sleep(_TICK)
        else:
            if book.left and not book.is_full:
                lost = time.monotonic()
                book.note("the scheduler went away; trying to reach it again")
    book.save()
    return [book.ends[run.folder] for run in runs if run.folder in book.ends]


class _Book:
    """What is left of a sweep, what became of the rest, and how long it will take."""

    def __init__(self, runs: Sequence[PlannedRun], out: Path, estimator: Estimator, watch: SweepWatch | None) -> None:
        self.ends = {run.folder: Attempt(run, "missing", run.problem) for run in runs if run.problem}
        self.ends |= {run.folder: Attempt(run, "skipped") for run in runs if run.state == "done"}
        waiting = [run for run in runs if run.folder not in self.ends]
        waiting.sort(
            key=lambda run: -estimator.seconds(run.spec)
        )  # the longest first, so that all workers end together
        self.left = {run.folder: run for run in waiting}
        self.is_full = False
        self.running: tuple[PlannedRun, ...] = ()
        self.num_workers = 1
        self._out, self._estimator, self._watch = out, estimator, watch
        self._num_total, self._num_failed = len(waiting), 0
        self._saved = time.monotonic()

    def end(self, attempt: Attempt) -> None:
        """Note what became of a run."""
        folder = attempt.run.folder
        self.ends[folder] = attempt
        del self.left[folder]
        self.is_full = self.is_full or attempt.fate == "full"
        self._num_failed += attempt.fate in _FAILED
        if attempt.fate == "finished" and attempt.run.state == "new":
            self._estimator.learn(attempt.run.spec, attempt.seconds)
            if time.monotonic() - self._saved > _SAVE:
                self.save()
        if self._watch is not None:
            self._watch.end(attempt, self.standing())

    def standing(self) -> Standing:
        num_ended = self._num_total - len(self.left)
        return Standing(
            running=self.running,
            num_total=self._num_total,
            num_done=num_ended - self._num_failed,
            num_failed=self._num_failed,
            seconds_left=self._estimator.total(run.spec for run in self.left.values()) / self.num_workers,
        )

    def show(self) -> None:
        if self._watch is not None:
            self._watch.update(self.standing())

    def note(self, text: str) -> None:
        if self._watch is not None:
            self._watch.note(text)

    def save(self) -> None:
        """Keep how long the runs took."""
        self._saved = time.monotonic()
        write_durations(self._out, self._estimator.measured)


class _Round:
    """Hands runs to the workers of one client, one to each thread at a time, until none is left or the client is lost.

    A worker never has a second run waiting: Dask counts the death of a worker against all runs that it had.
    """

    def __init__(self, client: "Client", book: _Book, device: str | None) -> None:
        self._client, self._book, self._device = client, book, device
        self._ended: queue.Queue[Future] = queue.Queue()
        self._given: dict[str, PlannedRun] = {}  # by the key of its task
        self._futures: dict[str, Future] = {}
        self._busy: dict[Path, float] = {}  # another process has these; when each is looked at again
        self._tries: Counter[Path] = Counter()

    def carry_out(self) -> None:
        looked = -math.inf
        while self._book.left and not self._book.is_full and self._client.status == "running":
            if time.monotonic() - looked >= _TICK:
                self._look_at_workers()
                self._book.show()
                looked = time.monotonic()
            self._submit()
            with contextlib.suppress(queue.Empty):
                self._take(self._ended.get(timeout=_TICK))

    def _submit(self) -> None:
        now = time.monotonic()
        given = {run.folder for run in self._given.values()}
        for run in self._book.left.values():
            if len(self._given) >= self._book.num_workers:
                break
            if run.folder in given or self._busy.get(run.folder, now) > now:
                continue
            self._tries[run.folder] += 1
            key = f"{run.folder.absolute()} {self._tries[run.folder]}"
            future = self._client.submit(
                perform,
                _absolute(run),
                self._device,
                key=key,
                pure=False,
                retries=_RETRIES,
                resources=self._wanted(run),
            )
            self._given[key], self._futures[key] = run, future
            future.add_done_callback(self._ended.put)

    def _take(self, future: "Future") -> None:
        run = self._given.pop(future.key)
        del self._futures[future.key]
        if future.status == "finished":
            attempt = future.result()
            if attempt is None:
                self._busy[run.folder] = time.monotonic() + _POLL
            else:
                self._book.end(replace(attempt, run=replace(attempt.run, folder=run.folder, data=run.data)))
        elif future.status == "error":
            self._book.end(_failure(run, future.exception()))

    def _look_at_workers(self) -> None:
        """Ask how many threads there are, and which runs have begun."""
        try:
            self._book.num_workers = max(1, sum(self._client.nthreads().values()))
            begun = {key for keys in self._client.processing().values() for key in keys}
        except (OSError, TimeoutError, RuntimeError):  # the scheduler has gone away; the status will say so
            return
        self._book.running = tuple(run for key, run in self._given.items() if key in begun)

    def _wanted(self, run: PlannedRun) -> dict[str, float]:
        """The resources that a run asks for: a GPU, on a cluster, for a network that is to be trained on one."""
        is_remote = self._client.cluster is None
        on_gpu = (self._device or "").startswith("cuda") and kind_of(run.spec).is_network
        return {"GPU": 1} if is_remote and on_gpu else {}


def _absolute(run: PlannedRun) -> PlannedRun:
    """The run as a worker in another folder finds it."""
    data = os.environ.get("RANKRISE_DATA") if run.data is None else run.data
    return replace(run, folder=run.folder.absolute(), data=Path(data or "data").absolute())


def _failure(run: PlannedRun, error: BaseException | None) -> Attempt:
    """A run whose task was given up by Dask: its worker or its process died again and again, or the disk is full."""
    if is_full(error):
        return Attempt(run, "full", str(error))
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return Attempt(run, "failed", f"It killed its worker {ALLOWED_FAILURES + 1} times")
    return Attempt(run, "failed", " ".join(str(error).split()) or type(error).__name__)
