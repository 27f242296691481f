"""Begin a run, or go on with the one in the folder: from the newest checkpoint that is whole."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._plain import differences
from rankrise.lab.training._processes import Processes
from rankrise.lab.training._random import seed_random
from rankrise.lab.training._result import TrainingWarning
from rankrise.lab.training._snapshot import (
    DataRecord,
    Progression,
    changed_conditions,
    refuse_other_config,
    refuse_other_data,
    restore,
)
from rankrise.store import Checkpoint, find_checkpoint, has_run, load_checkpoint, load_spec
from rankrise.tracking import RankTracker, Schedule, Sink, TrackingWarning


def open_training(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    config: TrainingConfig,
    *,
    out: Path,
    spec: Mapping[str, Any],
    every: Schedule,
    spectra: Schedule,
    data: DataRecord,
    device: torch.device,
    sinks: list[Sink],
    processes: Processes,
    conditions: dict[str, object],
) -> tuple[RankTracker, Progression]:
    """Restore the newest good checkpoint and open the tracker there; the main process chooses, the others follow.

    When no checkpoint is good, training starts again at step 0 with a warning: everything is a function of the seeds,
    so only time is lost, and a job that nobody watches goes on.

    Raises:
        ValueError: The folder holds another run, or another process writes it.
        OSError: It cannot be written.
    """

    def track(resume: int | None) -> RankTracker:
        return RankTracker(
            model,
            out,
            every=every,
            spectra=spectra,
            resume=resume,
            sinks=sinks,
            config=spec,
        )

    def restored(checkpoint: Checkpoint | None) -> Progression:
        if checkpoint is None:
            seed_random(device, seed=config.seed, rank=processes.rank, step=0)
            return Progression()
        refuse_other_config(checkpoint, config, out)
        refuse_other_data(checkpoint, data, out)
        _warn_of_conditions(checkpoint, conditions, out)
        return restore(checkpoint, model, optimiser, device=device)

    with contextlib.ExitStack() as undo:
        if processes.is_main:
            undo.callback(processes.most, -1)  # whatever happens, the others get an answer
            checkpoint = _choose_checkpoint(out, spec)
            progression = restored(checkpoint)
            with _opening_must_work():
                tracker = track(progression.step if progression.step or has_run(out) else None)
            undo.pop_all()
            processes.most(progression.step)
            return tracker, progression
    step = processes.most(-1)
    if step < 0:
        raise ValueError(f"The main process must open the run in {out}; it could not, and says why.")
    checkpoint = load_checkpoint(out, step) if step else None
    progression = restored(checkpoint)
    seed_random(device, seed=config.seed, rank=processes.rank, step=step)
    return track(step or None), progression


@contextlib.contextmanager
def _opening_must_work() -> Iterator[None]:
    """Turn the tracker's warning that it has no folder into an error: here training does not go on without it.

    Raises:
        OSError: With the reason and what to do.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Opening the run directory", TrackingWarning)
        try:
            yield
        except TrackingWarning as warning:
            raise OSError(str(warning).partition(" Training goes on")[0]) from warning.__context__


def _choose_checkpoint(out: Path, spec: Mapping[str, Any]) -> Checkpoint | None:
    if has_run(out):
        changed = differences(load_spec(out).get("config"), spec)
        if changed:
            raise ValueError(
                f"The run in {out} must go on as it began; {changed}. Choose another folder, or the old values."
            )
    checkpoint, skipped = find_checkpoint(out)
    if skipped:
        instead = f"step {checkpoint.step}" if checkpoint else "the beginning, as no other is left"
        warnings.warn(f"{' '.join(skipped)} Training goes on from {instead}.", TrainingWarning, stacklevel=2)
    return checkpoint


def _warn_of_conditions(checkpoint: Checkpoint, conditions: dict[str, object], out: Path) -> None:
    changed = changed_conditions(checkpoint.state, conditions)
    if changed:
        warnings.warn(
            f"The run in {out} goes on under other conditions: {changed}. The last bits of its numbers may differ "
            "from those of an uninterrupted run.",
            TrainingWarning,
            stacklevel=2,
        )
