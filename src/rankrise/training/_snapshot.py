"""The state of a training as a checkpoint, and back."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.store import Checkpoint
from rankrise.training._config import TrainingConfig
from rankrise.training._optimiser import optimiser_tensors, restore_optimiser
from rankrise.training._plain import differences, plain


@dataclass
class Progression:
    """Where training stands, beside weights and optimiser."""

    step: int = 0
    totals: tuple[float, float] = (0.0, 0.0)  # sums of mean loss and number correct since the epoch began
    scores: dict[str, float] = field(default_factory=dict)  # the last of train_loss, train_accuracy, test_loss, …


def take_snapshot(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progression: Progression,
    *,
    config: TrainingConfig,
    steps_per_epoch: int,
    conditions: dict[str, object],
) -> Checkpoint:
    """What is needed to go on; tensors are not copied."""
    epoch, batch = divmod(progression.step, steps_per_epoch)
    state = asdict(progression) | {
        "epoch": epoch,
        "batch": batch,
        "config": asdict(config),
        "conditions": conditions,
    }
    return Checkpoint(progression.step, model_tensors(model), optimiser_tensors(optimiser, model), state)


def restore(checkpoint: Checkpoint, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progression:
    """Put a snapshot back.

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
    restore_optimiser(optimiser, model, checkpoint.optimiser)
    state = checkpoint.state
    loss, correct = state["totals"]
    return Progression(state["step"], (loss, correct), dict(state["scores"]))


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
