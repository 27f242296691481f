"""Weights that `torch.nn.utils.parametrize` computes, under the names they would have without it.

The parameters behind such a weight are `….parametrizations.weight.original` and its companions. The network uses the
weight that is computed from them, and therefore that weight is read.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_MARK = ".parametrizations."


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters by name, each under every name it has, and parametrised weights as the network uses them.

    >>> from torch.nn.utils.parametrizations import weight_norm
    >>> [name for name, _ in named_weights(weight_norm(nn.Linear(2, 3)))]
    ['bias', 'weight']
    """
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if _MARK not in f".{name}":
            yield name, parameter
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(computed := getattr(module, "parametrizations", None), nn.ModuleDict):
            for name in computed:
                whole = f"{path}.{name}" if path else name
                yield whole, read_weight(model, whole)


@torch.no_grad()
def read_weight(model: nn.Module, name: str) -> Tensor:
    """Return the weight of this name: a parameter itself, or a copy of what its parametrisation computes.

    The parametrisation is in evaluation mode while the weight is read, so that one with a state, such as a spectral
    norm, keeps that state.

    Raises:
        AttributeError: The model has no such weight.
    """
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if not parametrize.is_parametrized(module, last):
        return model.get_parameter(name)
    computed = cast("nn.ModuleDict", module.parametrizations)[last]
    modes = [(part, part.training) for part in computed.modules()]
    computed.eval()
    try:
        return getattr(module, last).detach()  # type: ignore[no-any-return]
    finally:
        for part, mode in modes:
            part.training = mode
