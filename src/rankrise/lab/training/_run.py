"""A call of `train`: checks, devices and processes around the loop."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rankrise.lab.training._checks import check_arguments, check_batch_size, check_fit
from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._finished import finished_result
from rankrise.lab.training._loop import Loop
from rankrise.lab.training._plain import plain
from rankrise.lab.training._processes import choose_device, joined
from rankrise.lab.training._progress import Progress
from rankrise.lab.training._random import own_randomness
from rankrise.lab.training._result import TrainingResult
from rankrise.lab.training._snapshot import data_record
from rankrise.lab.training._stop import StopRequest
from rankrise.store import has_run, is_sealed

if TYPE_CHECKING:
    from rankrise.lab.data import Dataset


def run(
    model: nn.Module,
    dataset: "Dataset",
    config: TrainingConfig,
    *,
    out: str | os.PathLike[str],
    device: torch.device | str | None,
    compile: bool | None,
    spec: Mapping[str, Any] | None,
    checkpoint_seconds: float,
    checkpoint_every: int | None,
    progress: Progress | None,
) -> TrainingResult:
    """Begin or resume, train, and seal; see `train`."""
    check_arguments(
        model,
        dataset,
        config,
        out=out,
        checkpoint_seconds=checkpoint_seconds,
        checkpoint_every=checkpoint_every,
    )
    out = Path(out)
    place = choose_device(device)
    with joined(place) as processes, own_randomness(place):
        check_batch_size(dataset, config, processes.world_size)
        wanted = _spec(config, spec)
        data = data_record(dataset)
        if has_run(out) and is_sealed(out):
            return finished_result(out, wanted, model.to(place), data)
        model, dataset = model.to(place), dataset.to(place)
        check_fit(model, dataset, place)
        loop = Loop(
            model,
            dataset,
            config,
            out=out,
            device=place,
            compile=place.type == "cuda" if compile is None else compile,
            spec=wanted,
            data=data,
            processes=processes,
            stop=StopRequest(),
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
