"""Copies of the numbers for a dashboard. The run directory has all numbers anyway."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rankrise._extras import require

_STEP = "rankrise/step"  # the x axis of every metric in W&B


class Sink(Protocol):
    """Anything that takes named numbers at a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show `values`, e.g. `{"attn/L03/H05/kq/stable_rank": 1.7, "loss": 0.4}`."""

    def close(self) -> None:
        """Release what the sink holds; no more numbers will come."""


def check_sinks(sinks: object) -> None:
    """Refuse anything but a list of sinks; a class instead of an object is a common mistake.

    >>> check_sinks([])
    """
    if not isinstance(sinks, Sequence):
        raise ValueError(f"`sinks` must be a list of sinks; got {sinks!r}.")
    for sink in sinks:
        if isinstance(sink, type) or not (
            callable(getattr(sink, "log", None)) and callable(getattr(sink, "close", None))
        ):
            raise ValueError(f"A sink must be an object with `log(step, values)` and `close()`; got {sink!r}.")


def tag(layer: int, head: int, circuit: str, quantity: str) -> str:
    """The name of a number on a dashboard.

    >>> tag(3, 5, "kq", "stable_rank"), tag(3, -1, "q", "stable_rank"), tag(-1, -1, "", "loss")
    ('attn/L03/H05/kq/stable_rank', 'attn/L03/q/stable_rank', 'loss')
    """
    where = f"attn/L{layer:02d}/" if layer >= 0 else ""
    where += f"H{head:02d}/" if head >= 0 else ""
    return f"{where}{circuit}/{quantity}" if circuit else f"{where}{quantity}"


class TensorBoardSink:
    """Writes event files for TensorBoard in `folder`; needs the package `tensorboard`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("A TensorBoardSink", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.fspath(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still buffered and close the file."""
        self._writer.close()


class WandbSink:
    """Logs to a run of Weights & Biases: the given one, or a new offline run; needs the package `wandb`.

    The training step is logged as a metric and is the x axis of all others. W&B's own step cannot go back, but a
    resumed training does.
    """

    def __init__(self, run: Any = None, *, project: str = "rankrise", folder: str | os.PathLike[str] = ".") -> None:
        self._own = run is None
        if run is None:
            require("A WandbSink", "wandb")
            import wandb

            run = wandb.init(project=project, mode="offline", dir=os.fspath(folder))
        self._run = run
        self._run.define_metric("attn/*", step_metric=_STEP)
        self._defined: set[str] = set()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log all values in one row."""
        for name in values.keys() - self._defined:
            self._defined.add(name)
            if not name.startswith("attn/"):
                self._run.define_metric(name, step_metric=_STEP)
        self._run.log({_STEP: step, **values})

    def close(self) -> None:
        """End the run if this sink started it."""
        if self._own:
            self._run.finish()
