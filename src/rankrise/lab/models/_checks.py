"""What the sizes of a model must be."""

import math
from typing import Any, Literal

from torch import nn

from rankrise._arguments import as_count

Activation = Literal["gelu", "relu"]


def check_counts(config: Any, *others: str) -> None:
    """Refuse a field that is no positive integer, those named `others` excepted."""
    for name, value in vars(config).items():
        if name not in others:
            object.__setattr__(config, name, as_count(value, name, least=1))


def check_activation(name: str) -> None:
    """Refuse an unknown activation."""
    if name not in ("gelu", "relu"):
        raise ValueError(f"`activation` must be 'gelu' or 'relu'; got {name!r}.")


def check_scale(scale: float) -> None:
    """Refuse a scale that is not a positive number."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ValueError(f"`init_scale` must be a positive number; got {scale!r}. 1 leaves the weights as they are.")


def make_activation(name: Activation, *, approximate: Literal["none", "tanh"] = "none") -> nn.Module:
    """The module of that name."""
    return nn.ReLU() if name == "relu" else nn.GELU(approximate=approximate)
