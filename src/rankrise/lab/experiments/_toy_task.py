"""From a toy's values to its data, its network and its start."""

import torch
from torch import Tensor

from rankrise import theory
from rankrise.lab.experiments._theory_specs import ToyTask

_NOISE = 0x5EED  # added to the seed of targets that are noise, so that they are not the tokens again
_ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}


def toy_data(task: ToyTask, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, each (samples, tokens, dim); labels (samples, tokens) for cross-entropy."""
    x, y, q = theory.teacher_task(samples=task.samples, tokens=task.tokens, dim=task.dim, seed=seed)
    if task.targets == "noise":
        y = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + _NOISE), dtype=x.dtype)
    elif task.activation is not None:
        y = _block(task, x, x, seed, loss="mse").h(x, q)
    return x, y.argmax(-1) if task.loss == "cross_entropy" else y


def toy_network(task: ToyTask, seed: int) -> theory.DiagonalNetwork:
    """The network that learns, with q = [a, b], 2d products."""
    x, y = toy_data(task, seed)
    if task.activation is not None:
        return _block(task, x, y, seed, loss=task.loss)
    return theory.attention_head(x, y, loss=task.loss, l2=task.l2)


def toy_start(task: ToyTask, seed: int) -> tuple[Tensor, Tensor]:
    """θ0 = (u0, v0), each (2d,)."""
    return theory.gaussian_start(2 * task.dim, seed=seed)


def _block(task: ToyTask, x: Tensor, y: Tensor, seed: int, *, loss: str) -> theory.DiagonalNetwork:
    assert task.activation is not None
    activation = _ACTIVATIONS[task.activation]
    return theory.transformer(x, y, layers=1, heads=1, activation=activation, seed=seed, loss=loss, l2=task.l2)
