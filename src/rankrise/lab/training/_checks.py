"""What `train` is given, looked at before anything is written."""

import os
from typing import TYPE_CHECKING

import torch
from torch import nn

from rankrise._arguments import as_count
from rankrise.lab.data import Dataset
from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._losses import mean_loss

if TYPE_CHECKING:
    from rankrise.lab.data import Batch


def check_arguments(
    model: object,
    dataset: object,
    config: object,
    *,
    out: object,
    checkpoint_seconds: object,
    checkpoint_every: object,
) -> None:
    """Refuse what is of another kind.

    Raises:
        ValueError: Names the argument.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` must be a torch.nn.Module; got {type(model).__name__}.")
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"`dataset` must be a rankrise.lab.data.Dataset; got {type(dataset).__name__}. "
            "Make one with `load_dataset`, or of your own tensors with `from_tensors`."
        )
    if not isinstance(config, TrainingConfig):
        raise ValueError(f"`config` must be a TrainingConfig; got {type(config).__name__}.")
    if not isinstance(out, str | os.PathLike):
        raise ValueError(f"`out` must be the path of a folder; got {out!r}.")
    if checkpoint_every is not None:
        as_count(checkpoint_every, "checkpoint_every", least=1)
    if not isinstance(checkpoint_seconds, int | float) or not checkpoint_seconds >= 0:
        raise ValueError(f"`checkpoint_seconds` must be a number of at least 0; got {checkpoint_seconds!r}.")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ValueError(
                f"`model` must be in float32; {name!r} is in {kind}. Call `model.float()`; "
                "products in bfloat16 are `precision='bf16'` of the config."
            )


def check_batch_size(dataset: Dataset, config: TrainingConfig, world_size: int) -> None:
    """Refuse batches that do not fit.

    Raises:
        ValueError: Larger than the data, or not divisible over the processes.
    """
    if dataset.num_batches(config.batch_size) == 0:
        raise ValueError(
            f"`batch_size` must be at most the number of training samples, {dataset.num_train}; "
            f"got {config.batch_size}. Choose a smaller batch."
        )
    if config.batch_size % (config.accumulate * world_size):
        raise ValueError(
            f"`batch_size` must be divisible by `accumulate` × processes, {config.accumulate} × {world_size}; "
            f"got {config.batch_size}."
        )


def check_fit(model: nn.Module, dataset: Dataset, device: torch.device) -> None:
    """Refuse a model that cannot take a batch: one pass over two samples, all on `device`.

    Raises:
        ValueError: With the shapes, and what PyTorch said.
    """
    batch: Batch | None = next(dataset.test_batches(batch_size=2), None)
    if batch is None:
        return
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            outputs = model(batch.inputs)
            loss = mean_loss(dataset.task, outputs, batch.targets)
        problem = "" if loss.ndim == 0 else "the loss is no number"
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        problem = str(error).strip().partition("\n")[0]
    finally:
        model.train(was_training)
    if problem:
        raise ValueError(
            f"`model` must take the inputs of `dataset`, {tuple(batch.inputs.shape)}, to what its task "
            f"{dataset.task!r} needs; it fails: {problem.rstrip('.')}. Change the model's sizes, or the data."
        )
