"""The state of a training as a checkpoint, and back."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._optimiser import optimiser_tensors, restore_optimiser
from rankrise.lab.training._plain import differences, plain
from rankrise.lab.training._random import random_state, restore_random_state, split_random_state
from rankrise.store import Checkpoint

if TYPE_CHECKING:
    from rankrise.lab.data import Dataset


@dataclass
class Progression:
    """Where training stands, beside weights and optimiser."""

    step: int = 0
    totals: tuple[float, float] = (0.0, 0.0)  # sums of mean loss and number correct since the epoch began
    scores: dict[str, float] = field(default_factory=dict)  # the last of train_loss, train_accuracy, test_loss, …


DataRecord = dict[str, Any]


def data_record(dataset: "Dataset") -> DataRecord:
    """What the data is, to notice other data when a run goes on."""
    return {
        "task": dataset.task,
        "num_train": dataset.num_train,
        "num_test": dataset.num_test,
        "input_shape": list(dataset.input_shape),
        "num_classes": dataset.num_classes,
        "fingerprint": list(dataset.fingerprint()),
    }


def take_snapshot(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progression: Progression,
    *,
    config: TrainingConfig,
    data: DataRecord,
    conditions: dict[str, object],
    device: torch.device,
) -> Checkpoint:
    """What is needed to go on; weights are not copied."""
    state = asdict(progression) | {"config": asdict(config), "data": data, "conditions": conditions}
    tensors = optimiser_tensors(optimiser, model) | random_state(device)
    return Checkpoint(progression.step, model_tensors(model), tensors, state)


def restore(
    checkpoint: Checkpoint, model: nn.Module, optimiser: torch.optim.Optimizer, *, device: torch.device
) -> Progression:
    """Put a snapshot back, with the state of the random generators.

    Raises:
        ValueError: The model has other tensors.
    """
    restore_model(checkpoint, model)
    tensors, random = split_random_state(checkpoint.optimiser)
    restore_optimiser(optimiser, model, tensors)
    restore_random_state(random, device)
    state = checkpoint.state
    loss, correct = state["totals"]
    return Progression(state["step"], (loss, correct), dict(state["scores"]))


def restore_model(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Put the weights back.

    Raises:
        ValueError: The model has other tensors.
    """
    tensors = model_tensors(model)
    shapes, saved = ({k: tuple(t.shape) for k, t in part.items()} for part in (tensors, checkpoint.model))
    if shapes != saved:
        strange = sorted(set(shapes.items()) ^ set(saved.items()))[0][0]
        raise ValueError(
            f"The model must have the tensors of the checkpoint at step {checkpoint.step}; {strange!r} differs. "
            "Build it as before, or choose another folder."
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(checkpoint.model[name])


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and stored buffers by name, each once, not copied."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    stored = model.state_dict()
    return own | {name: buffer for name, buffer in model.named_buffers() if name in stored}


def are_finite(checkpoint: Checkpoint) -> bool:
    """Whether every weight is a finite number; one wait for the device."""
    flags = [tensor.isfinite().all() for tensor in checkpoint.model.values() if tensor.is_floating_point()]
    return bool(torch.stack(flags).all())


def current_conditions(config: TrainingConfig, device: torch.device, world_size: int) -> dict[str, object]:
    """What must stay the same for the same bits."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
        "precision": config.precision,
        "world_size": world_size,
    }


def changed_conditions(state: dict[str, Any], now: dict[str, object]) -> str:
    """`threads was 2 and is 1`; empty if nothing changed."""
    return differences(state.get("conditions", {}), now)


def refuse_other_config(checkpoint: Checkpoint, config: TrainingConfig, out: Path) -> None:
    """Refuse to go on by another recipe.

    Raises:
        ValueError: With what differs.
    """
    changed = differences(checkpoint.state.get("config", {}), plain(asdict(config)))
    if changed:
        raise ValueError(
            f"The run in {out} must go on by its own recipe; {changed}. Choose another folder, or the old values."
        )


def refuse_other_data(checkpoint: Checkpoint, data: DataRecord, out: Path) -> None:
    """Refuse to go on with other data.

    Raises:
        ValueError: With what differs.
    """
    was = dict(checkpoint.state.get("data", data))
    now = dict(data)
    is_same = _are_close(was.pop("fingerprint", []), now.pop("fingerprint"))
    changed = differences(was, now) or ("" if is_same else "its samples are others")
    if changed:
        raise ValueError(
            f"The run in {out} must have the data it began with; {changed}. Restore the data, or choose another folder."
        )


def _are_close(was: list[float], now: list[float]) -> bool:
    """Up to what another device or machine may round otherwise."""
    return len(was) == len(now) and all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6), was, now))
