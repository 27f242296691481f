"""`train`, what it returns, and what it needs from an observer. Importing this module loads no PyTorch."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._progress import ProgressDisplay

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rankrise.lab.data import Dataset
    from rankrise.tracking import Exist, Measurement, Schedule

Status = Literal["finished", "stopped", "diverged"]


class TrainingWarning(UserWarning):
    """Something could not be saved, or is not as it was before; training went on."""


@dataclass(frozen=True)
class TrainingResult:
    """How a call of `train` ended, with the last numbers that it recorded.

    Attributes:
        status: "finished", and the run is sealed; "stopped" by a signal, or "diverged", and the run is open.
        step: The number of optimiser steps that were done.
        message: A sentence for the user.
        signal: The number of the signal that stopped training.
        train_loss: Mean over the last whole epoch. All scores are None until they are measured for the first time.
        train_accuracy: Mean over the last whole epoch; only for classification.
        test_loss: Loss on the test set at the last test.
        test_accuracy: Accuracy on the test set at the last test; not for regression.
    """

    status: Status
    step: int
    message: str
    signal: int | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None


class Observer(Protocol):
    """What training tells its numbers to. A `rankrise.tracking.RankTracker` is an observer."""

    def step(self, step: int, /, **scalars: object) -> None:
        """`step` optimiser steps are done; the observer measures the model if it is time, and records `scalars`."""

    def log(self, step: int, /, **scalars: object) -> None:
        """Record `scalars` at `step` without measuring."""

    def flush(self, *, sync: bool = False) -> None:
        """Write what still waits; with `sync`, return only when it is on the disk."""

    def close(self, *, seal: bool = True) -> None:
        """Training is over; with `seal`, the run is finished."""

    @property
    def has_late_rows(self) -> bool:
        """Whether something that was told is not on the disk because the disk refused it."""

    @property
    def latest(self) -> "Sequence[Measurement]":
        """What was measured last."""


class Observe(Protocol):
    """Opens the observer of a run: `RankTracker` itself, or a `functools.partial` of it with more options."""

    def __call__(
        self,
        model: "nn.Module",
        out: Path,
        *,
        every: "Schedule",
        spectra: "Schedule",
        resume: int | None,
        exist: "Exist",
        config: Mapping[str, Any],
        needs_folder: bool,
    ) -> Observer:
        """Open the run in `out` for the model as it is at step `resume`; None begins a run.

        With `exist="overwrite"`, what was recorded after that step is dropped.

        Raises:
            OSError: The folder cannot be written. Training does not begin, because `needs_folder` is True.
        """


def train(
    model: "nn.Module",
    dataset: "Dataset",
    config: TrainingConfig,
    *,
    out: str | os.PathLike[str],
    device: "torch.device | str | None" = None,
    compile: bool | None = None,
    spec: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 60.0,
    checkpoint_every: int | None = None,
    progress: ProgressDisplay | None = None,
    observe: Observe | None = None,
) -> TrainingResult:
    """Train a model with its ranks tracked from step 0; begin the run in `out`, or go on with it.

    The folder is that of a `RankTracker` with `checkpoints/` beside its tables. Called again after a crash, a signal or
    a lost machine, training goes on from the newest checkpoint that is whole; on the CPU the result is the same bit for
    bit as without the interruption. That holds with dropout too: what a model draws starts from `config.seed`, is saved
    with every checkpoint, and leaves PyTorch's global generators as they were. Recorded beside the ranks: `loss` at
    every step, `learning_rate` when ranks are measured, `train_loss` and `train_accuracy` (means over an epoch),
    `test_loss` and `test_accuracy`.

    Under `torchrun` every process calls this function; batches are split over the processes, the first process writes,
    and all of them read `out`.

    Once training has begun, SIGTERM and Ctrl-C end it after the step, with a checkpoint; a second Ctrl-C ends it at
    once. A loss that is not finite ends training too, with the last good checkpoint kept.

    Args:
        model: A module in float32 with its initial weights, which is trained in place. When a run goes on, the model
            must begin with the same weights again.
        dataset: What `rankrise.lab.data.load_dataset` or `from_tensors` returns; the same data when a run goes on.
        config: The recipe.
        out: The run directory.
        device: Where to train; a GPU if there is one, unless given.
        compile: Whether to use `torch.compile`; on a GPU unless given.
        spec: A mapping of JSON values that is written into `spec.json` under `config`; the recipe unless given.
        checkpoint_seconds: Time between two checkpoints; the time is longer if saving takes long.
        checkpoint_every: Steps between two checkpoints, whatever the time.
        progress: Is told where training stands, e.g. `show_progress()`, and closed at the end; nobody unless given.
        observe: Opens the observer; `RankTracker` unless given. `functools.partial(RankTracker, probes=[...])` adds
            probes.

    Returns:
        How training ended, and the last scores. A run that is finished already is not touched: its scores are returned,
        and its trained weights are loaded into `model`, which must have the weights that the run began with.

    Raises:
        ValueError: The batch does not fit the data or the processes, or the model the data; `out` holds another run
            (another recipe, other initial weights, other data) or is being written.
        OSError: The run cannot be begun, or its end cannot be saved.
    """
    from rankrise.lab.training._begin import run
    from rankrise.lab.training._job import Job, as_plain_spec, check_arguments, data_record
    from rankrise.lab.training._processes import choose_device, joined
    from rankrise.lab.training._snapshot import own_randomness
    from rankrise.tracking import RankTracker

    try:
        check_arguments(
            model, dataset, config, out=out, checkpoint_seconds=checkpoint_seconds, checkpoint_every=checkpoint_every
        )
        place = choose_device(device)
        with joined(place) as processes, own_randomness(place):
            return run(
                Job(
                    model,
                    dataset,
                    config,
                    out=Path(out),
                    device=place,
                    compile=place.type == "cuda" if compile is None else compile,
                    spec=as_plain_spec(config, spec),
                    data=data_record(dataset),
                    processes=processes,
                    checkpoint_seconds=checkpoint_seconds,
                    checkpoint_every=checkpoint_every,
                    progress=progress if processes.is_main else None,
                    observe=RankTracker if observe is None else observe,
                )
            )
    finally:
        if progress is not None:
            progress.close()


def load_weights(path: str | os.PathLike[str]) -> "dict[str, Tensor]":
    """Return the weights in the newest good checkpoint of a run; for a finished run, this is the trained network.

    Args:
        path: The run directory.

    Returns:
        Parameters and buffers by name, on the CPU, for `load_state_dict`.

    Raises:
        FileNotFoundError: There is no good checkpoint.

    >>> import tempfile
    >>> from rankrise.lab.data import DataConfig, load_dataset
    >>> from rankrise.lab.models import ToyHeadConfig, build_model
    >>> from rankrise.lab.training import TrainingConfig, train
    >>> model, folder = build_model(ToyHeadConfig(dim=4)), tempfile.mkdtemp()
    >>> data = load_dataset(DataConfig("teacher", samples=8, tokens=3, dim=4))
    >>> train(model, data, TrainingConfig(epochs=2, batch_size=8), out=folder, device="cpu").status
    'finished'
    >>> again = build_model(ToyHeadConfig(dim=4))
    >>> again.load_state_dict(load_weights(folder))
    <All keys matched successfully>
    """
    from rankrise.store import find_checkpoint

    checkpoint, skipped = find_checkpoint(Path(path))
    if checkpoint is None:
        raise FileNotFoundError(f"{path} must hold a good checkpoint; it has none. {' '.join(skipped)}".rstrip())
    return checkpoint.model


@contextlib.contextmanager
def joined_processes(device: str | None = None) -> Iterator[None]:
    """Keep the processes that `torchrun` started joined from run to run; a process that is alone does nothing.

    `train` joins the processes and parts them by itself. Joining a second time may find the addresses of the first time
    in torchrun's store and wait without end, so whoever runs several specs joins the processes around all of them.

    >>> with joined_processes():
    ...     pass
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from rankrise.lab.training._processes import choose_device, joined

    with joined(choose_device(device)):
        yield
