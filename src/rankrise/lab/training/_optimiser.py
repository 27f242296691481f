"""Optimisers, and their state as tensors with names: `exp_avg/blocks.0.attn.qkv.weight`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.lab.training._config import TrainingConfig


def build_optimiser(model: nn.Module, config: TrainingConfig, device: torch.device) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD over all parameters; fused, with the rate as a tensor, on a GPU."""
    is_cuda = device.type == "cuda"
    rate = torch.tensor(config.learning_rate, device=device) if is_cuda else config.learning_rate
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay, "fused": is_cuda or None}
    if config.optimiser == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=config.momentum, **options)
    kind = torch.optim.AdamW if config.optimiser == "adamw" else torch.optim.Adam
    return kind(model.parameters(), betas=config.betas, **options)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next update; on a GPU without waiting for it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state of an optimiser by the names of its parameters; not copied."""
    return {
        f"{kind}/{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put a state back that `optimiser_tensors` gave.

    Raises:
        ValueError: A tensor belongs to no parameter.
    """
    positions = {name: position for position, (name, _) in enumerate(model.named_parameters())}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if name not in positions:
            raise ValueError(f"{key!r} must belong to a parameter of the model; it has none of that name.")
        state.setdefault(positions[name], {})[kind] = value
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})
