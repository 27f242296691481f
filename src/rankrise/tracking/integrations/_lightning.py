"""Lightning, under either of its names: a callback that does nothing but call a `RankTracker`."""

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from rankrise._extras import require
from rankrise.tracking._tracker import RankTracker

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


class _Hooks:
    """The hooks of a Lightning callback that matter here."""

    def __init__(self, out: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.tracker: RankTracker | None = None
        self._out = out
        self._options = options
        self._last_step = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(lightning_callback, self._out, **self._options), ()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._last_step = trainer.global_step
        self.tracker = RankTracker(pl_module, self._out, resume=trainer.global_step, **self._options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.tracker is not None
        if trainer.global_step > self._last_step:  # not while gradients are being accumulated
            self._last_step = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            numbers = {} if loss is None else {"loss": loss}
            if trainer.optimizers:
                numbers["learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
            self.tracker.step(trainer.global_step, **numbers)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        if self.tracker is not None:
            self.tracker.flush()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.tracker is not None:
            self.tracker.close(seal=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        assert self.tracker is not None
        self.tracker.close()


def lightning_callback(out: str | os.PathLike[str], **options: Any) -> Any:
    """Return a `Callback` that tracks the module it trains: `Trainer(callbacks=[lightning_callback("runs/mine")])`.

    It is a callback of `lightning.pytorch`, of `pytorch_lightning`, or of both, whichever is imported by then. If the
    trainer resumed from a checkpoint, the run goes on from its step.

    Args:
        out: The run directory.
        options: Options of `RankTracker`, except `resume`, which the trainer knows.
    """
    imported = [name for name in _NAMESPACES if name in sys.modules]
    if not imported:
        require("The callback of Lightning", "lightning")
        imported = list(_NAMESPACES[:1])
    bases = tuple(importlib.import_module(name).Callback for name in imported)
    return type("RankTrackerCallback", (_Hooks, *bases), {})(out, options)
