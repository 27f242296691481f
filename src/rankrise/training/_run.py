"""A call of `train`: devices, processes and signals around the loop."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankrise.store import has_run, is_sealed
from rankrise.training._config import TrainingConfig
from rankrise.training._finished import finished_result
from rankrise.training._loop import Loop
from rankrise.training._plain import plain
from rankrise.training._processes import choose_device, joined
from rankrise.training._progress import Progress
from rankrise.training._result import TrainingResult
from rankrise.training._stop import StopRequest

if TYPE_CHECKING:
    from rankrise.data import Dataset


def run(
    model: nn.Module,
    dataset: "Dataset",
    config: TrainingConfig,
    *,
    out: Path,
    device: torch.device | str | None,
    compile: bool | None,
    spec: Mapping[str, Any] | None,
    checkpoint_seconds: float,
    checkpoint_every: int | None,
    progress: Progress | None,
) -> TrainingResult:
    """Begin or resume, train, and seal; see `train`."""
    place = choose_device(device)
    with joined(place) as processes, StopRequest() as stop:
        _check_batch(dataset, config, processes.world_size)
        wanted = _spec(config, spec)
        if has_run(out) and is_sealed(out):
            return finished_result(out, wanted)
        loop = Loop(
            model,
            dataset,
            config,
            out=out,
            device=place,
            compile=place.type == "cuda" if compile is None else compile,
            spec=wanted,
            processes=processes,
            stop=stop,
            checkpoint_seconds=checkpoint_seconds,
            checkpoint_every=checkpoint_every,
            progress=progress if processes.is_main else None,
        )
        return loop.run()


def _spec(config: TrainingConfig, spec: Mapping[str, Any] | None) -> dict[str, Any]:
    """What goes to `spec.json`, as it will come back from there.

    Raises:
        ValueError: It does not go through JSON.
    """
    try:
        wanted: dict[str, Any] = plain({"training": asdict(config)} if spec is None else dict(spec))
    except (TypeError, ValueError) as error:
        raise ValueError(f"`spec` must go through JSON; {error}. Pass numbers, strings, lists and dicts.") from None
    return wanted


def _check_batch(dataset: "Dataset", config: TrainingConfig, world_size: int) -> None:
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
