"""What a model draws while it trains (dropout), apart from the user's random state and saved with a checkpoint."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

_PREFIX = "random/"


@contextlib.contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Inside, what is drawn leaves no trace in the generators of PyTorch outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_random(device: torch.device, *, seed: int, rank: int, step: int) -> None:
    """Start the generators of this process."""
    mixed = (seed * 1_000_003 + rank * 7919 + step) % 2**63
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(mixed)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of the generators, as tensors of bytes."""
    state = {f"{_PREFIX}cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state[f"{_PREFIX}cuda"] = torch.cuda.get_rng_state(device)
    return state


def split_random_state(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a checkpoint without a random state, and the random state."""
    random = {name: tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
    return {name: tensor for name, tensor in tensors.items() if name not in random}, random


def restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Put a state back; of a kind of device that was not there then, nothing."""
    if f"{_PREFIX}cpu" in state:
        torch.set_rng_state(state[f"{_PREFIX}cpu"])
    if device.type == "cuda" and f"{_PREFIX}cuda" in state:
        torch.cuda.set_rng_state(state[f"{_PREFIX}cuda"], device)
