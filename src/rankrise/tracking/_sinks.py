"""Copies of the numbers for a dashboard: the user's own numbers, and a summary of every layer.

The run directory has all numbers anyway, those of single heads among them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rankrise._extras import require
from rankrise.tracking._summary import PREFIX

_STEP = f"{PREFIX}step"  # the x axis of every metric in W&B


class Sink(Protocol):
    """Anything that takes named numbers at a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show `values`, e.g. `{"rankrise/L03/kq/stable_rank/mean": 1.7, "loss": 0.4}`."""

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


class TensorBoardSink:
    """Writes scalars for TensorBoard: to the given `SummaryWriter`, or to new event files in a folder.

    A writer that was given is left open. A folder needs the package `tensorboard`.
    """

    def __init__(self, folder: Any) -> None:
        self._own = isinstance(folder, str | os.PathLike)
        if self._own:
            require("A TensorBoardSink", "tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            folder = SummaryWriter(os.fspath(folder))
        if not callable(getattr(folder, "add_scalar", None)):
            raise ValueError(f"A TensorBoardSink must be given a folder or a SummaryWriter; got {folder!r}.")
        self._writer = folder

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still buffered, and close the files if this sink made them."""
        if self._own:
            self._writer.close()
        else:
            self._writer.flush()


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
        self._run.define_metric(f"{PREFIX}L*", step_metric=_STEP)
        self._defined: set[str] = set()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log all values in one row."""
        for name in values.keys() - self._defined:
            self._defined.add(name)
            if not name.startswith(f"{PREFIX}L"):
                self._run.define_metric(name, step_metric=_STEP)
        self._run.log({_STEP: step, **values})

    def close(self) -> None:
        """End the run if this sink started it."""
        if self._own:
            self._run.finish()


class TrackioSink:
    """Logs to a run of trackio: the given one, or a new run on this machine; needs the package `trackio`."""

    def __init__(self, run: Any = None, *, project: str = "rankrise", name: str | None = None) -> None:
        self._own = run is None
        if run is None:
            require("A TrackioSink", "trackio")
            import trackio

            run = trackio.init(project=project, name=name, embed=False)
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log all values in one row."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run if this sink started it."""
        if self._own:
            self._run.finish()


class MlflowSink:
    """Logs to a run of MLflow: the one with the given id, or a new one; needs the package `mlflow-skinny` or `mlflow`.

    A new run is made at the tracking URI of MLflow. Without a server that is a database, for which MLflow needs the
    whole package `mlflow`; or, with the variable `MLFLOW_ALLOW_FILE_STORE=true`, a folder.
    """

    def __init__(self, run_id: str | None = None, *, tracking_uri: str | None = None) -> None:
        require("An MlflowSink", "mlflow")
        from mlflow import MlflowClient

        self._own = run_id is None
        self._client = MlflowClient(tracking_uri)
        self._run_id = run_id if run_id is not None else self._client.create_run("0").info.run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log all values in one request."""
        import time

        from mlflow.entities import Metric

        now = round(1e3 * time.time())
        self._client.log_batch(self._run_id, [Metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        """End the run if this sink started it."""
        if self._own:
            self._client.set_terminated(self._run_id)
