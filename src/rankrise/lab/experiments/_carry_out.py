"""Carry a plan out: one run after another in this process, whatever becomes of each run.

`rankrise.lab.sweep` carries the same runs out on several workers.
"""

import contextlib
import errno
import json
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self

from rankrise.lab.experiments._execute import execute_run
from rankrise.lab.experiments._plan import PlannedRun, look_again
from rankrise.lab.experiments._spec import spec_hash
from rankrise.lab.experiments.kinds import Spec, kind_of
from rankrise.store import RunBusyError, UntrustedFolder, read_json, replacing

if TYPE_CHECKING:
    from rankrise.lab.training import ProgressDisplay, Report

Fate = Literal["finished", "skipped", "missing", "stopped", "diverged", "failed", "full"]
DURATIONS = "durations.json"
_BUSY = "Another process is writing this run: wait until that process has ended, and run the same command again"
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


class PlanWatcher(Protocol):
    """What `carry_out` tells about its progress; the command line shows it."""

    def begin(self, run: PlannedRun, number: int, total: int, estimate: float, after: float) -> None:
        """A run begins, of about `estimate` seconds, with `after` seconds to follow."""

    def update(self, report: "Report") -> None:
        """The run that began last has got as far as `report` says."""

    def end(self, attempt: Attempt, after: float) -> None:
        """A run has ended, with `after` seconds to follow; also called for runs that were not begun."""

    def close(self) -> None:
        """The run that began last reports nothing more."""


def carry_out(
    runs: Sequence[PlannedRun], *, out: Path, device: str | None = None, watch: PlanWatcher | None = None
) -> list[Attempt]:
    """Do the runs of a plan that are not done. A failed run does not stop the others; a signal or a full disk does.

    Args:
        runs: The runs of a plan, such as `Reproduction.runs`.
        out: Folder of the runs; their durations are kept there too.
        device: Where networks are trained; the best there is unless given.
        watch: Called when a run begins, gets on and ends.

    Returns:
        What became of each run, in the order of the plan. After a signal or on a full disk, later runs are left out.
    """
    estimator = Estimator.of(out, device)
    left = [run for run in runs if not run.problem and run.state != "done"]
    total, ends = len(left), {}
    for run in runs:
        if run not in left:
            ends[run.folder] = Attempt(run, "missing" if run.problem else "skipped", run.problem)
            if watch is not None:
                watch.end(ends[run.folder], estimator.total(other.spec for other in left))
    while left:
        run = look_again(left.pop(0))
        after = estimator.total(other.spec for other in left)
        if run.state == "done":
            attempt = Attempt(run, "skipped")
        else:
            if watch is not None:
                watch.begin(run, total - len(left), total, estimator.seconds(run.spec), after)
            attempt = attempt_run(run, device=device, progress=watch) or Attempt(run, "failed", _BUSY)
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
    estimator = Estimator.of(out, device)
    return estimator.total(run.spec for run in runs if not run.problem and run.state != "done")


def attempt_run(
    run: PlannedRun, *, device: str | None = None, progress: "ProgressDisplay | None" = None
) -> Attempt | None:
    """Do a run and return what became of it; None if another process is writing it.

    Args:
        run: The run as it was planned.
        device: Where a network is trained; by default the best device there is.
        progress: Called with how far the run has got.
    """
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


# How long runs take: measured where a run like it was made here, else a guess that is corrected as runs end


@dataclass
class Estimator:
    """How many seconds runs take on this machine.

    Args:
        on_gpu: Whether networks are trained on a GPU.
        measured: Seconds by the hash of a spec with its seed at 0, because the seed does not change the duration.
    """

    on_gpu: bool = False
    measured: dict[str, float] = field(default_factory=dict)
    _ratios: dict[str, list[float]] = field(default_factory=dict)  # measured / guessed, by kind

    @classmethod
    def of(cls, out: Path, device: str | None) -> Self:
        """Make an estimator that knows the durations of the runs that are in the folder `out`."""
        return cls(on_gpu=_has_gpu(device), measured=read_durations(out))

    def seconds(self, spec: Spec) -> float:
        """Seconds of a whole run: those of a run like it, else a guess times the ratio by which guesses were wrong."""
        known = self.measured.get(_key(spec))
        if known is not None:
            return known
        correction = statistics.median(self._ratios.get(kind_of(spec).name, [1.0]))
        return guess_seconds(spec, on_gpu=self.on_gpu) * correction

    def total(self, specs: Iterable[Spec]) -> float:
        """Seconds of several runs, one after another."""
        return sum(self.seconds(spec) for spec in specs)

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take the duration of a whole run into account."""
        self.measured[_key(spec)] = seconds
        guessed = guess_seconds(spec, on_gpu=self.on_gpu)
        self._ratios.setdefault(kind_of(spec).name, []).append(seconds / guessed)


def guess_seconds(spec: Spec, *, on_gpu: bool) -> float:
    """What the kind of a spec guesses from the size of the run alone.

    >>> from rankrise.lab.experiments import experiments
    >>> 300 < guess_seconds(experiments()["vit-cifar10"].paper, on_gpu=True) < 1500
    True
    """
    return kind_of(spec).guess_seconds(spec, on_gpu=on_gpu)


def read_durations(out: Path) -> dict[str, float]:
    """What runs took here before; empty when nothing is known, or when the file is not readable."""
    try:
        with UntrustedFolder(out) as folder:
            record = read_json(folder, DURATIONS)
        return {str(key): float(value) for key, value in record.items() if 0 < float(value) < math.inf}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_durations(out: Path, measured: dict[str, float]) -> None:
    """Keep durations beside the runs, together with those of other processes.

    A disk that refuses the file is ignored, because durations only improve an estimate.
    """
    known = {**read_durations(out), **measured}
    text = json.dumps({key: max(round(value, 2), 0.01) for key, value in sorted(known.items())}, indent=1)
    with contextlib.suppress(OSError), replacing(out / DURATIONS, "durations") as temporary:
        temporary.write_text(text)


def _key(spec: Spec) -> str:
    return spec_hash(replace(spec, seed=0))
