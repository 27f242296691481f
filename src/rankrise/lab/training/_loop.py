"""The loop: step, record, and at the right times test, save, report and stop."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankrise.lab.training._job import Job
from rankrise.lab.training._processes import AGREE_EVERY, StopRequest
from rankrise.lab.training._progress import Reporter
from rankrise.lab.training._snapshot import Checkpointer, Progression, are_finite, take_snapshot
from rankrise.lab.training._step import Readback, build_evaluation, build_step, learning_rate, sum_dtype
from rankrise.lab.training._train import Observer, Status, TrainingResult
from rankrise.store import TrainingState, is_sealed

if TYPE_CHECKING:
    from rankrise.lab.data import Batch

_GO_ON, _STOP, _DIVERGED = range(3)  # the largest wish among the processes wins


class Loop:
    """A training in progress: the job, the observer that is told everything, and where training stands."""

    def __init__(
        self, job: Job, optimiser: torch.optim.Optimizer, observer: Observer, progression: Progression
    ) -> None:
        """Prepare to go on from `progression`, with model and data on the device and the observer open."""
        device, config = job.device, job.config
        self._job = job
        self._optimiser = optimiser
        self._observer = observer
        self._stop = StopRequest()
        self._step = progression.step
        self._totals = torch.tensor(progression.totals, device=device, dtype=sum_dtype(device))
        self._scores: dict[str, Tensor | float] = dict(progression.scores)
        self._checkpointer = Checkpointer(
            job.out,
            seconds=job.checkpoint_seconds,
            every=job.checkpoint_every,
            resumed=progression.step or None,
            before=self._complete_table,
        )
        self._update = build_step(
            job.model,
            optimiser,
            config,
            task=job.dataset.task,
            device=device,
            processes=job.processes,
            compile=job.compile,
        )
        self._evaluate = build_evaluation(job.model, job.dataset, config, device=device, processes=job.processes)
        self._readback = Readback(device, config.batch_size)
        self._reporter = Reporter(job, begin=self._step)

    def run(self) -> TrainingResult:
        """Train to the end, or until something stops training; seal the run if it is finished."""
        status: Status | None = None
        try:
            with self._stop:
                if self._job.processes.is_main:
                    self._checkpointer.clear_leftovers()
                status = self._finish(self._go_on())
        finally:
            self._observer.close(seal=status == "finished")
        if status == "finished" and self._job.processes.is_main and not is_sealed(self._job.out):
            raise OSError(
                f"The run in {self._job.out} is trained, but could not be sealed. Make room, and run it again."
            )
        return self._result(status)

    def _go_on(self) -> Status:
        """Take steps until the last one, or until something stops training."""
        self._job.model.train()
        if self._step == 0:
            self._observer.step(0)
        while self._step < self._job.num_steps:
            epoch, start = divmod(self._step, self._job.steps_per_epoch)
            for batch in self._job.dataset.train_batches(
                batch_size=self._job.config.batch_size,
                seed=self._job.config.seed,
                epoch=epoch,
                start=start,
                rank=self._job.processes.rank,
                world_size=self._job.processes.world_size,
            ):
                self._take_step(batch)
                wish = self._agreed_wish()
                self._reporter.update(self._step, self._readback, self._observer.latest)
                if wish == _DIVERGED:
                    return "diverged"
                if self._step == self._job.num_steps:
                    break
                if wish == _STOP:
                    return "stopped"
                if self._job.processes.is_main and self._checkpointer.is_due(self._step):
                    self._save(self._checkpointer.try_to_save)
            assert self._step == (epoch + 1) * self._job.steps_per_epoch, "an epoch must have all its batches"
        return "finished"

    def _take_step(self, batch: "Batch") -> None:
        """Update the weights, and tell the observer everything about this step."""
        rate = learning_rate(self._job.config, self._step, steps_per_epoch=self._job.steps_per_epoch)
        metrics = self._update(batch, rate)
        self._step += 1
        self._totals += metrics
        self._readback.add(self._step, metrics)
        is_measured = self._job.ranks_due(self._step) or self._job.spectra_due(self._step)
        scalars = {"loss": metrics[0]} | ({"learning_rate": rate} if is_measured else {})
        if self._readback.diverged_at is None:
            self._observer.step(self._step, **scalars)
        else:  # weights that are not finite cannot be measured
            self._observer.log(self._step, **scalars)
        if self._step % self._job.steps_per_epoch == 0:
            self._end_epoch(self._step // self._job.steps_per_epoch)

    def _end_epoch(self, num_done: int) -> None:
        """Record means over the epoch, and test if it is time."""
        loss, correct = self._totals / self._job.steps_per_epoch
        self._totals = torch.zeros_like(self._totals)
        scores = {"train_loss": loss}
        if self._job.dataset.task == "classify":
            scores["train_accuracy"] = correct / self._job.config.batch_size
        if num_done % self._job.config.evaluate_every == 0 or num_done == self._job.config.epochs:
            scores |= self._evaluate()
        self._observer.log(self._step, **scores)
        self._scores |= scores

    def _agreed_wish(self) -> int:
        """Return what to do now; processes agree every few steps, so that none waits for one that has left."""
        wish = _GO_ON if self._stop.signal is None else _STOP
        if self._readback.diverged_at is not None:
            wish = _DIVERGED
        if self._job.processes.world_size > 1 and self._step % AGREE_EVERY and self._step < self._job.num_steps:
            return _GO_ON
        return self._job.processes.most(wish)

    def _save(self, save: Callable[[TrainingState], None]) -> None:
        """Save, unless a loss or a weight is not finite: then training is noted as diverged."""
        self._readback.settle()
        if self._readback.diverged_at is not None:
            return
        scores = {name: float(value) for name, value in self._scores.items()}
        loss, correct = self._totals.tolist()
        snapshot = take_snapshot(self._job, self._optimiser, Progression(self._step, (loss, correct), scores))
        if are_finite(snapshot):
            save(snapshot)
        else:
            self._readback.diverged_at = self._step

    def _complete_table(self) -> None:
        """Put all rows on the disk, because a checkpoint promises the table up to its step."""
        self._observer.flush(sync=True)
        if self._observer.has_late_rows:
            raise OSError("rows of the table could not be written")

    def _finish(self, status: Status) -> Status:
        """Save the state in which a run ends; the run may turn out to have diverged."""
        self._readback.settle()
        if self._job.processes.is_main and status != "diverged":
            self._save(self._save_last if status == "finished" else self._checkpointer.try_to_save)
        has_diverged = self._job.processes.most(self._readback.diverged_at is not None)
        return "diverged" if has_diverged else status

    def _save_last(self, checkpoint: TrainingState) -> None:
        try:
            self._checkpointer.save(checkpoint)
        except OSError as error:
            raise OSError(
                f"The end of the run in {self._job.out} could not be saved ({error.strerror or error}). "
                "Make room, and run it again: it goes on from its last good checkpoint."
            ) from error

    def _result(self, status: Status) -> TrainingResult:
        scores = {name: float(value) for name, value in self._scores.items()}
        return TrainingResult(status, self._step, self._message(status), self._stop.signal, **scores)

    def _message(self, status: Status) -> str:
        if status == "finished":
            return f"Finished {self._step} steps in {self._job.out}."
        last = self._checkpointer.last_good
        saved = "No checkpoint was saved here." if last is None else f"The last good checkpoint is of step {last}."
        if status == "stopped":
            number = self._stop.signal
            name = "a signal to another process" if number is None else signal.Signals(number).name
            return f"Stopped by {name} after step {self._step} of {self._job.num_steps}. {saved} Run it again to go on."
        step = self._readback.diverged_at
        where = "" if step is None else f" at step {step}"
        return f"The loss was no longer finite{where}. {saved} Try a smaller learning rate, a longer warm-up, or fp32."
