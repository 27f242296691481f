"""Carry a plan out: one run after another, whatever becomes of each run.

Several processes may carry the same plan out in one folder. Each process passes over the runs that another process is
writing and waits for those runs at its end, so that every process ends with all runs of the plan.
"""

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from rankrise.lab.experiments._estimate import Estimator, read_durations, write_durations
from rankrise.lab.experiments._execute import execute_run
from rankrise.lab.experiments._plan import PlannedRun, look_again
from rankrise.store import RunBusyError, has_run, is_locked, is_sealed

if TYPE_CHECKING:
    from rankrise.lab.training import Progress, Report

Fate = Literal["finished", "skipped", "missing", "stopped", "diverged", "failed", "full"]
_POLL = 3.0  # seconds between two looks at a run of another process
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Attempt:
    """What became of one run of a plan.

    `fate` is `missing` if the run has no data and was not tried, `skipped` if it was done before or by another process,
    `failed` if it raised an error, and `full` if the disk had no room left, after which no other run was tried.
    `message` says why.
    """

    run: PlannedRun
    fate: Fate
    message: str = ""
    seconds: float = 0.0
    signal: int | None = None


class Watch(Protocol):
    """What `carry_out` tells about its progress; the command line shows it."""

    def begin(self, run: PlannedRun, number: int, total: int, estimate: float, after: float) -> None:
        """A run begins, of about `estimate` seconds, with `after` seconds to follow."""

    def update(self, report: "Report") -> None:
        """The run that began last has got as far as `report` says."""

    def wait(self, run: PlannedRun) -> None:
        """Only runs of other processes are left; called once for each of those runs."""

    def end(self, attempt: Attempt, after: float) -> None:
        """A run has ended, with `after` seconds to follow; also called for runs that were not begun."""

    def close(self) -> None:
        """The run that began last reports nothing more."""


def carry_out(
    runs: Sequence[PlannedRun], *, out: Path, device: str | None = None, watch: Watch | None = None
) -> list[Attempt]:
    """Do the runs of a plan that are not done. A failed run does not stop the others; a signal or a full disk does.

    Args:
        runs: The runs of a plan, such as `Reproduction.runs`.
        out: Folder of the runs; their durations are kept there too.
        device: Where networks are trained; the best there is unless given.
        watch: Told when a run begins, gets on and ends.

    Returns:
        What became of each run, in the order of the plan. After a signal or on a full disk, later runs are left out.
    """
    estimator = Estimator(on_gpu=_has_gpu(device), measured=read_durations(out))
    left = [run for run in runs if not run.problem and run.state != "done"]
    total, ends = len(left), {}
    for run in runs:
        if run not in left:
            ends[run.folder] = Attempt(run, "missing" if run.problem else "skipped", run.problem)
            if watch is not None:
                watch.end(ends[run.folder], estimator.total(other.spec for other in left))
    busy: list[PlannedRun] = []  # another process had each of these when it was tried
    awaited: set[Path] = set()
    while left or busy:
        is_waiting = not left
        run = look_again(left.pop(0) if left else busy.pop(0))
        others = [other for other in (*left, *busy) if not _is_done(other)]  # by any process
        after = estimator.total(other.spec for other in others)
        if run.state == "done":
            attempt = Attempt(run, "skipped")
        else:
            found = None
            if not (is_waiting and is_locked(run.folder)):
                if watch is not None:
                    watch.begin(run, total - len(others), total, estimator.seconds(run.spec), after)
                found = _attempt(run, device, watch)
            if found is None:
                busy.append(run)
                if is_waiting:
                    _wait(run, awaited, watch)
                continue
            attempt = found
            if attempt.fate == "finished" and run.state == "new":
                estimator.learn(run.spec, attempt.seconds)
                write_durations(out, estimator.measured)
        ends[run.folder] = attempt
        if watch is not None:
            watch.end(attempt, after)
        if attempt.fate in ("stopped", "full"):
            break
    return [ends[run.folder] for run in runs if run.folder in ends]


def estimate_seconds(runs: Sequence[PlannedRun], *, out: Path, device: str | None = None) -> float:
    """How long the runs that are left will take: measured before where possible, else guessed from their size."""
    estimator = Estimator(on_gpu=_has_gpu(device), measured=read_durations(out))
    return estimator.total(run.spec for run in runs if not run.problem and run.state != "done")


def _is_done(run: PlannedRun) -> bool:
    return has_run(run.folder) and is_sealed(run.folder)


def _wait(run: PlannedRun, awaited: set[Path], watch: Watch | None) -> None:
    """Give another process a few seconds; which run is waited for is said once."""
    if watch is not None and run.folder not in awaited:
        watch.wait(run)
    awaited.add(run.folder)
    time.sleep(_POLL)


def _attempt(run: PlannedRun, device: str | None, progress: "Progress | None") -> Attempt | None:
    """Do a run; None if another process is writing it."""
    begun = time.monotonic()
    try:
        report = execute_run(run, device=device, progress=progress)
    except RunBusyError:
        return None
    except Exception as error:
        fate: Fate = "full" if is_full(error) else "failed"
        return Attempt(run, fate, " ".join(str(error).split()) or type(error).__name__, time.monotonic() - begun)
    finally:
        if progress is not None:
            progress.close()
    return Attempt(run, report.status, report.message, time.monotonic() - begun, report.signal)


def is_full(error: BaseException | None) -> bool:
    """Whether an error was caused by a disk, or a quota, that has no room left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_gpu(device: str | None) -> bool:
    if device is not None:
        return device.startswith("cuda")
    import torch

    return torch.cuda.is_available()
