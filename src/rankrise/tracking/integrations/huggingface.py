"""HF `Trainer`: a callback that calls a `RankTracker`, and hands what it measured to the trainer's own loggers."""

import functools
import os
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rankrise._extras import require
from rankrise.tracking._recorder import TrackingWarning
from rankrise.tracking._summary import PREFIX
from rankrise.tracking._tracker import RankTracker
from rankrise.tracking.integrations._opening import open_tracker

require("The callback of HF Trainer", "transformers")

from transformers import PrinterCallback, ProgressCallback, TrainerCallback  # noqa: E402 what is missing is said above

if TYPE_CHECKING:
    from transformers import Trainer


class RankCallback(TrainerCallback):
    """Tracks the model that a `Trainer` trains: `RankCallback("runs/mine").attach(trainer)`.

    The tracker is built when training begins. If the trainer resumed from a checkpoint, the run goes on from its step,
    and what was recorded later is dropped with a warning. What the trainer logs is recorded as well, except its
    summaries at the end (`train_…`).

    A callback that is attached gives six numbers for each layer to `trainer.log`, and so to every logger the trainer
    has. Without `attach`, as in `Trainer(..., callbacks=[RankCallback("runs/mine")])`, only the run directory is
    written. The class itself may be given too; then `out` is `<output_dir>/rankrise`.
    """

    def __init__(self, out: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Keep the options until training begins.

        Args:
            out: The run directory; `rankrise` in the trainer's `output_dir` unless given.
            options: Options of `RankTracker`, except `resume`, which the trainer knows.
        """
        super().__init__()
        self.tracker: RankTracker | None = None
        self._out = out
        self._options = options
        self._trainer: weakref.ref[Trainer] | None = None
        self._said = False

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), self._out, **self._options), ()

    def attach(self, trainer: "Trainer") -> Self:
        """Add the callback to a trainer, unless it is one of its callbacks, and log through that trainer.

        The trainer is not kept alive. Returns the callback.
        """
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        self._trainer = weakref.ref(trainer)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Build the tracker, before the first update or with the weights of the checkpoint."""
        if self.tracker is not None:
            self.tracker.close(seal=False)  # the training before was broken off
        out = Path(args.output_dir) / "rankrise" if self._out is None else Path(self._out)
        self.tracker = open_tracker(model, out, state.global_step, self._options)
        if self._trainer is None and not self._said and getattr(args, "report_to", None):
            self._said = True
            warnings.warn(
                f"The ranks go to {self.tracker.out} only; to have them in {', '.join(args.report_to)} too, call "
                "`attach(trainer)` of the RankCallback once the trainer is built.",
                TrackingWarning,
                stacklevel=2,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure if it is time."""
        assert self.tracker is not None
        before = self.tracker.latest
        self.tracker.step(state.global_step)
        self._log(before, control)

    def on_log(self, args: Any, state: Any, control: Any, *, logs: Any = None, **_: Any) -> None:
        """Record what the trainer logs; what this callback logged itself is recorded already."""
        logs = logs or {}
        if self.tracker is None or any(name.startswith(PREFIX) for name in logs):
            return
        is_summary = "train_runtime" in logs  # the trainer logs a summary of the whole training at its end
        numbers = {
            name: value
            for name, value in logs.items()
            if isinstance(value, (int, float)) and not (is_summary and name.startswith("train_"))
        }
        self.tracker.log(state.global_step, **numbers)
        self.tracker.flush()  # a checkpoint may be saved next

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal the run."""
        assert self.tracker is not None
        tracker, self.tracker = self.tracker, None
        before = tracker.latest
        tracker.close()
        self._log(before, control, tracker)

    def _log(self, before: object, control: Any, tracker: RankTracker | None = None) -> None:
        """Hand a new measurement to the trainer.

        `Trainer.log` also takes back the order to log at this step, which is given before callbacks of the user are
        called; the order is restored, or else the trainer would not log its own loss. The callbacks that print what is
        logged are left out: six numbers for each layer would bury the loss on the screen.
        """
        tracker = self.tracker if tracker is None else tracker
        trainer = None if self._trainer is None else self._trainer()
        if tracker is None or trainer is None or tracker.latest is before or not tracker.summary:
            return
        should_log, handler = control.should_log, trainer.callback_handler
        callbacks = handler.callbacks
        handler.callbacks = [c for c in callbacks if not isinstance(c, (PrinterCallback, ProgressCallback))]
        try:
            trainer.log(tracker.summary)
        finally:
            control.should_log, handler.callbacks = should_log, callbacks
