"""One training as the package sees it: the record `Job`, and the checks before anything is written."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankrise._arguments import as_count
from rankrise.lab.data import Dataset
from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._processes import Processes
from rankrise.lab.training._step import EveryAndLast, mean_loss, spectra_steps
from rankrise.tracking import At

if TYPE_CHECKING:
    from rankrise.lab.data import Batch
    from rankrise.lab.training._progress import ProgressDisplay
    from rankrise.lab.training._train import Observe

DataRecord = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Everything that one call of `train` was asked for, with its defaults chosen; see `train`.

    Attributes:
        spec: What goes into `spec.json`, as JSON gives it back.
        data: The record of the data set, see `data_record`.
        processes: This process among those that train together.
    """

    model: nn.Module
    dataset: Dataset
    config: TrainingConfig
    out: Path
    device: torch.device
    compile: bool
    spec: dict[str, Any]
    data: DataRecord
    processes: Processes
    checkpoint_seconds: float
    checkpoint_every: int | None
    progress: "ProgressDisplay | None"
    observe: "Observe"

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one pass over the data."""
        return self.dataset.num_batches(self.config.batch_size)

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.config.epochs * self.steps_per_epoch

    @cached_property
    def ranks_due(self) -> EveryAndLast:
        """When ranks are measured."""
        return EveryAndLast(self.config.track_every, self.num_steps)

    @cached_property
    def spectra_due(self) -> At:
        """When whole spectra are measured."""
        return spectra_steps(self.config.num_spectra, self.num_steps)

    @cached_property
    def conditions(self) -> dict[str, object]:
        """What must stay the same for a resumed run to have the same bits."""
        is_cuda = self.device.type == "cuda"
        return {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self.device) if is_cuda else self.device.type,
            "threads": torch.get_num_threads(),
            "precision": self.config.precision,
            "world_size": self.processes.world_size,
        }


def data_record(dataset: Dataset) -> DataRecord:
    """What the data is, to notice other data when a run goes on."""
    return {
        "task": dataset.task,
        "num_train": dataset.num_train,
        "num_test": dataset.num_test,
        "input_shape": list(dataset.input_shape),
        "num_classes": dataset.num_classes,
        "fingerprint": list(dataset.fingerprint()),
    }


def as_plain_spec(config: TrainingConfig, spec: Mapping[str, Any] | None) -> dict[str, Any]:
    """What goes into `spec.json`, as it will come back from there; the recipe if no spec is given.

    Raises:
        ValueError: JSON cannot hold the spec.
    """
    try:
        wanted: dict[str, Any] = plain({"training": config.record()} if spec is None else dict(spec))
    except (TypeError, ValueError) as error:
        raise ValueError(f"`spec` must go through JSON; {error}. Pass numbers, strings, lists and dicts.") from None
    return wanted


def plain(value: object) -> Any:
    """The value as JSON gives it back: tuples become lists.

    >>> plain({"betas": (0.9, 0.999)})
    {'betas': [0.9, 0.999]}
    """
    return json.loads(json.dumps(value))


def differences(was: object, now: object) -> str:
    """What differs between two values, in words; empty if nothing does.

    >>> differences({"a": {"rate": 0.1, "seed": 1}}, {"a": {"rate": 0.2, "seed": 1}})
    '`a.rate` was 0.1 and is 0.2'
    """
    return "; ".join(_differences(was, now, ""))


def _differences(was: object, now: object, name: str) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*was, *now)):
            yield from _differences(was.get(key), now.get(key), f"{name}.{key}".lstrip("."))
    elif was != now:
        yield f"`{name}` was {was!r} and is {now!r}"


def check_arguments(
    model: object,
    dataset: object,
    config: object,
    *,
    out: object,
    checkpoint_seconds: object,
    checkpoint_every: object,
) -> None:
    """Refuse arguments of another kind.

    Raises:
        ValueError: An argument has the wrong type or value; the message names it.
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


def check_batch_size(job: Job) -> None:
    """Refuse batches that do not fit.

    Raises:
        ValueError: A batch is larger than the data, or not divisible over the processes.
    """
    config, world_size = job.config, job.processes.world_size
    if job.steps_per_epoch == 0:
        raise ValueError(
            f"`batch_size` must be at most the number of training samples, {job.dataset.num_train}; "
            f"got {config.batch_size}. Choose a smaller batch."
        )
    if config.batch_size % (config.accumulate * world_size):
        raise ValueError(
            f"`batch_size` must be divisible by `accumulate` × processes, {config.accumulate} × {world_size}; "
            f"got {config.batch_size}."
        )


def check_fit(job: Job) -> None:
    """Refuse a model that cannot take a batch: one pass over two samples, all on the device of the job.

    Raises:
        ValueError: The pass failed; the message has the shapes, and what PyTorch said.
    """
    model, dataset = job.model, job.dataset
    batch: Batch | None = next(dataset.test_batches(batch_size=2), None)
    if batch is None:
        return
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[job.device] if job.device.type == "cuda" else []):
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
