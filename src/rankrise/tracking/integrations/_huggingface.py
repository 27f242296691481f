"""HF `Trainer`: a callback that does nothing but call a `RankTracker`."""

import functools
import importlib
import os
from collections.abc import Mapping
from typing import Any

from rankrise._extras import require
from rankrise.tracking._tracker import RankTracker


class _Hooks:
    """The hooks of a `TrainerCallback` that matter here."""

    def __init__(self, out: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.tracker: RankTracker | None = None
        self._out = out
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(huggingface_callback, self._out, **self._options), ()

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        if self.tracker is not None:
            self.tracker.close(seal=False)  # the training before was broken off
        self.tracker = RankTracker(model, self._out, resume=state.global_step, **self._options)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.tracker is not None
        self.tracker.step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        if self.tracker is not None:
            is_summary = "train_runtime" in (logs or {})  # the trainer logs a summary of the whole training at its end
            numbers = {
                k: v
                for k, v in (logs or {}).items()
                if isinstance(v, (int, float)) and not (is_summary and k.startswith("train_"))
            }
            self.tracker.log(state.global_step, **numbers)
            self.tracker.flush()  # a checkpoint may be saved next

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.tracker is not None
        self.tracker.close()
        self.tracker = None


def huggingface_callback(out: str | os.PathLike[str], **options: Any) -> Any:
    """Return a `TrainerCallback` that tracks the model: `Trainer(..., callbacks=[huggingface_callback("runs/mine")])`.

    The tracker is built when training begins. If the trainer resumed from a checkpoint, the run goes on from its step.
    What the trainer logs is recorded as well, except its summaries at the end (`train_…`).

    Args:
        out: The run directory.
        options: Options of `RankTracker`, except `resume`, which the trainer knows.
    """
    require("The callback of HF Trainer", "transformers")
    base = importlib.import_module("transformers").TrainerCallback
    return type("RankTrackerCallback", (_Hooks, base), {})(out, options)
