"""`train`: the entry, free to import."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._progress import Progress
from rankrise.lab.training._result import TrainingResult

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankrise.lab.data import Dataset


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
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a model with its ranks tracked from step 0; begin the run in `out`, or go on with it.

    The folder is that of a `RankTracker` with `checkpoints/` beside its tables. Called again after a crash, a signal or
    a lost machine, training goes on from the newest checkpoint that is whole; on the CPU the result is the same bit for
    bit as without the interruption. That holds with dropout too: what a model draws starts from `config.seed`, is saved
    with every checkpoint, and leaves PyTorch's global generators as they were. Recorded beside the ranks: `loss` at
    every step, `learning_rate` when ranks are measured, `train_loss` and `train_accuracy` (means over an epoch),
    `test_loss` and `test_accuracy`.

    Under `torchrun` every process calls this; batches are split over them, the first one writes, and all read `out`.

    Once training has begun, SIGTERM and Ctrl-C end it after the step, with a checkpoint; a second Ctrl-C at once. A
    loss that is not finite ends it too, with the last good checkpoint kept.

    Args:
        model: In float32 with its initial weights; trained in place. The same weights again when a run goes on.
        dataset: From `rankrise.lab.data.load_dataset` or `from_tensors`. The same data again when a run goes on.
        config: The recipe.
        out: The run directory.
        device: A GPU if there is one, unless given.
        compile: Whether to use `torch.compile`; on a GPU unless given.
        spec: Goes to `spec.json`, under `config`; JSON values. The recipe, unless given.
        checkpoint_seconds: Time between two checkpoints, more if saving takes long.
        checkpoint_every: Steps between two checkpoints, whatever the time.
        progress: Is told where training stands, e.g. `show_progress()`, and closed at the end; nobody unless given.

    Returns:
        How it ended, and the last scores. A run that is finished already is not touched: its scores are returned, and
        its trained weights loaded into `model`, which must have the weights it began with.

    Raises:
        ValueError: The batch does not fit the data or the processes, or the model the data; `out` holds another run
            (another recipe, other initial weights, other data) or is being written.
        OSError: The run cannot be begun, or its end cannot be saved.
    """
    from rankrise.lab.training._run import run

    try:
        return run(
            model,
            dataset,
            config,
            out=out,
            device=device,
            compile=compile,
            spec=spec,
            checkpoint_seconds=checkpoint_seconds,
            checkpoint_every=checkpoint_every,
            progress=progress,
        )
    finally:
        if progress is not None:
            progress.close()
