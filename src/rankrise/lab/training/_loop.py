"""The loop: step, record, and at the right times test, save, report and stop."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankrise.lab.training._checkpointer import Checkpointer
from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._evaluate import build_evaluation, sum_dtype
from rankrise.lab.training._open import open_training
from rankrise.lab.training._optimiser import build_optimiser
from rankrise.lab.training._processes import AGREE_EVERY, Processes
from rankrise.lab.training._progress import Progress
from rankrise.lab.training._readback import Readback
from rankrise.lab.training._reporter import Reporter, StableRankSink
from rankrise.lab.training._result import Status, TrainingResult
from rankrise.lab.training._schedules import EveryAndLast, learning_rate, spectra_steps
from rankrise.lab.training._snapshot import DataRecord, Progression, are_finite, current_conditions, take_snapshot
from rankrise.lab.training._step import build_step
from rankrise.lab.training._stop import StopRequest
from rankrise.store import Checkpoint, is_sealed

if TYPE_CHECKING:
    from rankrise.lab.data import Batch, Dataset

_GO_ON, _STOP, _DIVERGED = range(3)  # the largest wish among the processes wins


class Loop:
    """A training in progress: everything `run` needs, and where it stands."""

    def __init__(
        self,
        model: nn.Module,
        dataset: "Dataset",
        config: TrainingConfig,
        *,
        out: Path,
        device: torch.device,
        compile: bool,
        spec: dict[str, Any],
        data: DataRecord,
        processes: Processes,
        stop: StopRequest,
        checkpoint_seconds: float,
        checkpoint_every: int | None,
        progress: Progress | None,
    ) -> None:
        """Open the run in `out`, with model and data on the device; see `train`."""
        self._model = model
        self._dataset = dataset
        self._config = config
        self._out = out
        self._processes = processes
        self._stop = stop
        self._steps_per_epoch = dataset.num_batches(config.batch_size)
        self._num_steps = config.epochs * self._steps_per_epoch
        self._conditions = current_conditions(config, device, processes.world_size)
        self._optimiser = build_optimiser(self._model, config, device)
        self._data, self._device = data, device
        self._ranks_due = EveryAndLast(config.track_every, self._num_steps)
        self._spectra_due = spectra_steps(config.num_spectra, self._num_steps)
        ranks = StableRankSink()
        self._tracker, progression = open_training(
            self._model,
            self._optimiser,
            config,
            out=out,
            spec=spec,
            every=self._ranks_due,
            spectra=self._spectra_due,
            data=data,
            device=device,
            sinks=[] if progress is None else [ranks],
            processes=processes,
            conditions=self._conditions,
        )
        self._step = progression.step
        self._totals = torch.tensor(progression.totals, device=device, dtype=sum_dtype(device))
        self._scores: dict[str, Tensor | float] = dict(progression.scores)
        self._checkpointer = Checkpointer(
            out,
            seconds=checkpoint_seconds,
            every=checkpoint_every,
            resumed=progression.step or None,
            before=self._complete_table,
        )
        parts: dict[str, Any] = {"device": device, "processes": processes}
        self._update = build_step(self._model, self._optimiser, config, task=dataset.task, compile=compile, **parts)
        self._evaluate = build_evaluation(self._model, self._dataset, config, **parts)
        self._readback = Readback(device, config.batch_size)
        self._reporter = Reporter(
            progress,
            ranks,
            begin=self._step,
            num_steps=self._num_steps,
            steps_per_epoch=self._steps_per_epoch,
            has_accuracy=dataset.task == "classify",
        )

    def run(self) -> TrainingResult:
        """Train to the end, or to where it must stop; seal the run if it is finished."""
        status: Status | None = None
        try:
            with self._stop:
                if self._processes.is_main:
                    self._checkpointer.clear_leftovers()
                status = self._finish(self._go_on())
        finally:
            self._tracker.close(seal=status == "finished")
        if status == "finished" and self._processes.is_main and not is_sealed(self._out):
            raise OSError(f"The run in {self._out} is trained, but could not be sealed. Make room, and run it again.")
        return self._result(status)

    def _go_on(self) -> Status:
        """Steps, until the last one or until something stops them."""
        self._model.train()
        if self._step == 0:
            self._tracker.step(0)
        while self._step < self._num_steps:
            epoch, start = divmod(self._step, self._steps_per_epoch)
            for batch in self._dataset.train_batches(
                batch_size=self._config.batch_size,
                seed=self._config.seed,
                epoch=epoch,
                start=start,
                rank=self._processes.rank,
                world_size=self._processes.world_size,
            ):
                self._take_step(batch)
                wish = self._agreed_wish()
                self._reporter.update(self._step, self._readback)
                if wish == _DIVERGED:
                    return "diverged"
                if self._step == self._num_steps:
                    break
                if wish == _STOP:
                    return "stopped"
                if self._processes.is_main and self._checkpointer.is_due(self._step):
                    self._save(self._checkpointer.try_to_save)
            assert self._step == (epoch + 1) * self._steps_per_epoch, "an epoch must have all its batches"
        return "finished"

    def _take_step(self, batch: "Batch") -> None:
        """Update the weights; record everything of this step."""
        rate = learning_rate(self._config, self._step, steps_per_epoch=self._steps_per_epoch)
        metrics = self._update(batch, rate)
        self._step += 1
        self._totals += metrics
        self._readback.add(self._step, metrics)
        is_measured = self._ranks_due(self._step) or self._spectra_due(self._step)
        scalars = {"loss": metrics[0]} | ({"learning_rate": rate} if is_measured else {})
        if self._readback.diverged_at is None:
            self._tracker.step(self._step, **scalars)
        else:  # there is nothing to measure
            self._tracker.log(self._step, **scalars)
        if self._step % self._steps_per_epoch == 0:
            self._end_epoch(self._step // self._steps_per_epoch)

    def _end_epoch(self, num_done: int) -> None:
        """Record means over the epoch, and test if it is time."""
        loss, correct = self._totals / self._steps_per_epoch
        self._totals = torch.zeros_like(self._totals)
        scores = {"train_loss": loss}
        if self._dataset.task == "classify":
            scores["train_accuracy"] = correct / self._config.batch_size
        if num_done % self._config.evaluate_every == 0 or num_done == self._config.epochs:
            scores |= self._evaluate()
        self._tracker.log(self._step, **scores)
        self._scores |= scores

    def _agreed_wish(self) -> int:
        """What to do now; many processes agree every few steps, so that none waits for one that has left."""
        wish = _GO_ON if self._stop.signal is None else _STOP
        if self._readback.diverged_at is not None:
            wish = _DIVERGED
        if self._processes.world_size > 1 and self._step % AGREE_EVERY and self._step < self._num_steps:
            return _GO_ON
        return self._processes.most(wish)

    def _save(self, save: Callable[[Checkpoint], None]) -> None:
        """Save, unless a loss or a weight is not finite: then it is noted as diverged."""
        self._readback.settle()
        if self._readback.diverged_at is not None:
            return
        scores = {name: float(value) for name, value in self._scores.items()}
        loss, correct = self._totals.tolist()
        snapshot = take_snapshot(
            self._model,
            self._optimiser,
            Progression(self._step, (loss, correct), scores),
            config=self._config,
            data=self._data,
            conditions=self._conditions,
            device=self._device,
        )
        if are_finite(snapshot):
            save(snapshot)
        else:
            self._readback.diverged_at = self._step

    def _complete_table(self) -> None:
        """Put all rows on the disk: a checkpoint promises the table up to its step."""
        self._tracker.flush(sync=True)
        if self._tracker.has_late_rows:
            raise OSError("rows of the table could not be written")

    def _finish(self, status: Status) -> Status:
        """Save the state a run ends in; it may turn out to have diverged."""
        self._readback.settle()
        if self._processes.is_main and status != "diverged":
            self._save(self._save_last if status == "finished" else self._checkpointer.try_to_save)
        has_diverged = self._processes.most(self._readback.diverged_at is not None)
        return "diverged" if has_diverged else status

    def _save_last(self, checkpoint: Checkpoint) -> None:
        try:
            self._checkpointer.save(checkpoint)
        except OSError as error:
            raise OSError(
                f"The end of the run in {self._out} could not be saved ({error.strerror or error}). "
                "Make room, and run it again: it goes on from its last good checkpoint."
            ) from error

    def _result(self, status: Status) -> TrainingResult:
        scores = {name: float(value) for name, value in self._scores.items()}
        return TrainingResult(status, self._step, self._message(status), self._stop.signal, **scores)

    def _message(self, status: Status) -> str:
        if status == "finished":
            return f"Finished {self._step} steps in {self._out}."
        last = self._checkpointer.last_good
        saved = "No checkpoint was saved here." if last is None else f"The last good checkpoint is of step {last}."
        if status == "stopped":
            number = self._stop.signal
            name = "a signal to another process" if number is None else signal.Signals(number).name
            return f"Stopped by {name} after step {self._step} of {self._num_steps}. {saved} Run it again to go on."
        step = self._readback.diverged_at
        where = "" if step is None else f" at step {step}"
        return f"The loss was no longer finite{where}. {saved} Try a smaller learning rate, a longer warm-up, or fp32."
