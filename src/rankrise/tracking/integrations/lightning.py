"""Lightning, under either of its names: a callback that calls a `RankTracker`, and logs what it measured."""

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise._extras import is_installed, require
from rankrise.tracking.integrations._opening import open_tracker

if TYPE_CHECKING:
    from rankrise.tracking import RankTracker

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[Any, ...]:
    """`Callback` of `lightning.pytorch`, of `pytorch_lightning`, or of both: those that are imported by now."""
    names = [name for name in _NAMESPACES if name in sys.modules]
    if not names:
        names = [name for name in _NAMESPACES if is_installed(name.partition(".")[0])][:1]
    if not names:
        require("The callback of Lightning", "lightning")
    return tuple(importlib.import_module(name).Callback for name in names)


class RankCallback(*_bases()):  # type: ignore[misc]
    """Tracks the module that a Lightning `Trainer` trains: `Trainer(callbacks=[RankCallback("runs/mine")])`.

    The tracker is built when training begins. If the trainer resumed from a checkpoint, the run goes on from its step,
    and what was recorded later is dropped with a warning. Six numbers for each layer go to every logger of the trainer
    at every measurement, whatever `log_every_n_steps` says; their step is `trainer.global_step`, as in the run
    directory.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Keep the options until training begins.

        Args:
            out: The run directory; `rankrise` in the trainer's `default_root_dir` unless given.
            options: Options of `RankTracker`, except `resume`, which the trainer knows.
        """
        super().__init__()
        self.tracker: RankTracker | None = None
        self._out = out
        self._options = options
        self._last_step = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), self._out, **self._options), ()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Build the tracker, before the first update or with the weights of the checkpoint."""
        self._last_step = trainer.global_step
        out = Path(trainer.default_root_dir) / "rankrise" if self._out is None else Path(self._out)
        self.tracker = open_tracker(pl_module, out, trainer.global_step, self._options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Measure if it is time, and record the loss and the learning rate."""
        assert self.tracker is not None
        if trainer.global_step > self._last_step:  # not while gradients are being accumulated
            self._last_step = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            numbers = {} if loss is None else {"loss": loss}
            if trainer.optimizers:
                numbers["learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
            before = self.tracker.latest
            self.tracker.step(trainer.global_step, **numbers)
            self._log(before, trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Write what waits, so that the run is not behind its checkpoint."""
        if self.tracker is not None:
            self.tracker.flush()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the run open, to be resumed."""
        if self.tracker is not None:
            self.tracker.close(seal=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Seal the run."""
        assert self.tracker is not None
        before = self.tracker.latest
        self.tracker.close()
        self._log(before, trainer)

    def _log(self, before: object, trainer: Any) -> None:
        """Hand a new measurement to the loggers: `self.log` would keep it back until `log_every_n_steps`."""
        assert self.tracker is not None
        if self.tracker.latest is before or not self.tracker.summary:
            return
        for logger in trainer.loggers:
            logger.log_metrics(self.tracker.summary, step=trainer.global_step)
