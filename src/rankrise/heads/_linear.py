"""The linear weights beside attention, as whole matrices: MLPs, experts, projections in and out of the model."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankrise.heads._inventory import Inventory, ancestors, natural_order, take_inventory
from rankrise.heads._modifiers import updates_on
from rankrise.heads._views import CIRCUITS, Get, HeadMap, LowRankUpdate, wide

_RESERVED = (*CIRCUITS, "q", "k", "v", "o")
_STACKED = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")  # parameters of nn.MultiheadAttention


@dataclass(frozen=True)
class LinearWeight:
    """The recipe for one linear weight, or for the same weight of all experts of a layer.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=4)
    >>> from rankrise.heads import resolve
    >>> [(weight.layer, weight.name) for weight in linear_weights(model, resolve(model))]
    [(0, 'linear1'), (0, 'linear2')]
    """

    layer: int  # index of the attention layer in the same block, or -1 if there is not exactly one block
    name: str  # path of the module below its block, or from the root where `layer` is -1; experts are not in it
    parameters: tuple[str, ...]  # one, or one for each expert
    adapters: tuple[tuple[LowRankUpdate, ...], ...] = ()  # adapters of each parameter
    has_experts: bool = False

    def all_parameters(self) -> tuple[str, ...]:
        """Names of all tensors this weight is read from, each once."""
        pairs = [name for updates in self.adapters for update in updates for name in (update.a, update.b)]
        return tuple(dict.fromkeys((*self.parameters, *pairs)))

    def matrices(self, get: Get) -> Tensor:
        """Return the weight in effect with its adapters as it is stored, (experts, rows, columns); one for no experts.

        Args:
            get: Takes a parameter's name, and returns its whole tensor.
        """
        parts = []
        for name, updates in zip(self.parameters, self.adapters, strict=True):
            tensor = get(name).detach()
            parts.append(wide(tensor) + sum(update(get) for update in updates) if updates else tensor)
        return parts[0] if parts[0].ndim == 3 else torch.stack(parts)


def linear_weights(model: nn.Module, head_map: HeadMap | None = None) -> tuple[LinearWeight, ...]:
    """Find every linear weight that the attention layers are not read from.

    Taken are the weights of `nn.Linear` and of HF's `Conv1D`, the input weights of an `nn.MultiheadAttention` that
    `head_map` does not read, and experts: stored one by one, or as one tensor with three dimensions in a module whose
    path has the part `experts`. Only names, shapes and classes are looked at.

    Args:
        model: Any module, wrapped or not.
        head_map: The attention layers, whose parameters are left out and whose indices become those of the blocks.

    Raises:
        ValueError: An adapter on a linear weight is of another kind than LoRA, or experts have adapters of their own.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [(weight.layer, weight.name, weight.parameters) for weight in linear_weights(model)]
    [(-1, '0', ('0.weight',)), (-1, '2', ('2.weight',))]
    """
    inventory = take_inventory(model, None)
    taken = set() if head_map is None else set(head_map.parameters())
    attention = () if head_map is None else tuple((layer.name, layer.index) for layer in head_map.layers)
    groups: dict[tuple[int, str, bool], list[str]] = {}
    seen: set[str] = set()
    for name in sorted(inventory.tensors, key=natural_order):
        parameter = inventory.tensors[name].parameter
        first = inventory.shared.get(name, name)
        if parameter in taken or first in seen or not _is_linear(inventory, name):
            continue
        seen.add(first)
        path = name.removesuffix(".weight")
        layer, below = _place(path, attention)
        short = re.sub(r"(^|\.)experts\.\d+(?=\.)", r"\1experts", below)
        groups.setdefault((layer, short, short != below), []).append(name)
    return tuple(_weight(inventory, *key, names) for key, names in groups.items())


def _is_linear(inventory: Inventory, name: str) -> bool:
    found = inventory.tensors[name]
    if not found.dtype.is_floating_point or 0 in found.shape:
        return False
    path, _, last = name.rpartition(".")
    if len(found.shape) == 3:
        return "experts" in path.split(".")
    modules = inventory.modules.get(path, ())
    is_linear = any(isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D" for module in modules)
    in_attention = last in _STACKED and any(isinstance(module, nn.MultiheadAttention) for module in modules)
    return len(found.shape) == 2 and ((is_linear and last == "weight") or in_attention)


def _place(path: str, attention: Sequence[tuple[str, int]]) -> tuple[int, str]:
    """The layer of a module and its path below the block: the nearest place above that also holds attention.

    A place that holds the same attention several times, apart from the numbers in its name, is above the blocks.
    """
    for above in ancestors(path):
        start = f"{above}." if above else ""
        inside = [(name.removeprefix(start), index) for name, index in attention if name.startswith(start)]
        if inside:
            kinds = [re.sub(r"\d+", "", name) for name, _ in inside]
            if len(set(kinds)) < len(kinds):
                break
            below = path.removeprefix(start)
            return min(index for _, index in inside), f"linear.{below}" if below in _RESERVED else below
    return -1, f"linear.{path}" if path in _RESERVED else path


def _weight(inventory: Inventory, layer: int, short: str, is_split: bool, names: Iterable[str]) -> LinearWeight:
    found = [inventory.tensors[name] for name in names]
    shapes = {tensor.shape for tensor in found}
    if len(shapes) > 1:
        raise ValueError(f"The experts of {short!r} in layer {layer} must have one shape; got {sorted(shapes)}.")
    fused = len(found[0].shape) == 3
    adapters = []
    for name in names:
        holder = name.rpartition(".")[0]
        if fused and (inventory.adapters.get(holder) or inventory.extras.get(holder)):
            raise ValueError(
                f"Experts stored as one tensor must have no adapter; {name!r} has one. Merge it first "
                '(`merge_and_unload()`), or track with `scope="attention"`.'
            )
        transposed = inventory.module_class(holder) == "Conv1D"
        adapters.append(() if fused else updates_on(inventory, None, name, transposed=transposed))
    parameters = tuple(tensor.parameter for tensor in found)
    return LinearWeight(layer, short, parameters, tuple(adapters), has_experts=is_split or fused)
