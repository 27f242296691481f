"""From shapes to recipes: how many heads a layer has, and which rows or columns of each stored weight belong to which.

The number of heads is what the caller, the module or a config states; the shapes are checked against it.

Symbols:
    H, G    query heads, and key and value heads (G < H in grouped attention, G = 1 in multi-query attention)
    r       head dimension of queries and keys, r_v of values
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from rankrise.heads._configs import PartConfig
from rankrise.heads._families import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, Layout
from rankrise.heads._inventory import Found, Inventory, ancestors, lookup
from rankrise.heads._views import WeightView


@dataclass(frozen=True)
class HeadCounts:
    """What was stated about the heads of a layer; it is checked against the shapes."""

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    note: str | None = None  # where the number of heads does not come from the config that the path names


def stated_counts(witnesses: Iterable[Any], name: str) -> HeadCounts:
    """Return what the nearest witness that knows a number of heads states.

    Raises:
        ValueError: If no witness knows it; the message lists the names that were looked for.
    """
    head_dim = num_kv_heads = None
    for witness in witnesses:
        num_kv_heads = num_kv_heads or _integer(witness, NUM_KV_HEADS)
        head_dim = head_dim or _integer(witness, HEAD_DIM)
        if num_heads := _integer(witness, NUM_HEADS):
            note = witness.note if isinstance(witness, PartConfig) else None
            return HeadCounts(num_heads, num_kv_heads, head_dim, note)
    raise ValueError(
        f"The number of heads of {name!r} must be known; neither the module nor a config has one of "
        f"{', '.join(NUM_HEADS)}. Pass `num_heads=` or `config=`."
    )


def _integer(witness: Any, keys: Iterable[str]) -> int | None:
    values = (lookup(witness, key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def cut_into_heads(
    inventory: Inventory, layout: Layout, names: Mapping[str, str], counts: HeadCounts
) -> dict[str, WeightView]:
    """Return the four recipes of a layer.

    Args:
        inventory: What the source holds.
        layout: The row that matched.
        names: Role to name, as in the inventory.
        counts: What was stated about the heads.

    Raises:
        ValueError: If shapes do not fit each other or what was stated.
    """
    found = {role: inventory.tensors[names[role]] for role in "qkvo"}
    for weight in found.values():
        _refuse_non_matrix(weight)
    known = {role: layout.stored or _stored_by_class(inventory, names[role]) for role in "qkvo"}
    fused = len(layout.fused_with("k")) > 1
    refusals = []
    for unknown in ("out_in", "in_out") if fused else ("out_in",):  # fused weights fit one way only
        try:
            return _cut(found, layout, counts, {role: stored or unknown for role, stored in known.items()})
        except ValueError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _cut(
    found: Mapping[str, Found], layout: Layout, counts: HeadCounts, stored: Mapping[str, str]
) -> dict[str, WeightView]:
    axis = {role: int((stored[role] == "in_out") != (role == "o")) for role in "qkvo"}  # where the heads lie
    size = {role: found[role].shape[axis[role]] for role in "qkvo"}
    num_heads = counts.num_heads
    head_dim, num_kv_heads = _head_dim(found, size, layout, counts)
    value_dim = head_dim
    if layout.fused_with("v") == ("v",):
        value_dim = _divide(size["v"], num_kv_heads, found["v"], f"{num_kv_heads} value heads")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"The {num_heads} query heads of {found['q'].parameter!r} must divide evenly among the key heads; "
            f"{found['k'].parameter!r} has {num_kv_heads}. Check the number of heads."
        )
    _require(size["o"] == num_heads * value_dim, found["o"], f"{num_heads} heads of {value_dim}")
    stored_heads = {"q": num_heads, "k": num_kv_heads, "v": num_kv_heads, "o": num_heads}
    dims = {"q": head_dim, "k": head_dim, "v": value_dim, "o": value_dim}
    views = {}
    for role, weight in found.items():
        shared = layout.fused_with(role) if role != "o" else ("o",)
        before = shared[: shared.index(role)]
        by_head = layout.order == "heads"
        views[role] = WeightView(
            parameter=weight.parameter,
            role=role,
            shape=(weight.shape[0], weight.shape[1]),
            axis=axis[role],
            stored_heads=stored_heads[role],
            head_dim=dims[role],
            offset=sum(dims[other] * (1 if by_head else stored_heads[other]) for other in before),
            stride=dims[role] * (len(shared) if by_head else 1),
            repeats=num_heads // stored_heads[role],
        )
    if not layout.is_torch_attention:  # which may have its own kdim and vdim
        _refuse_different_inputs(views)
    return views


def _head_dim(
    found: Mapping[str, Found], size: Mapping[str, int], layout: Layout, counts: HeadCounts
) -> tuple[int, int]:
    """Find r and G: every role's share of its stored weight must come out even, and as stated."""
    num_heads, stated = counts.num_heads, counts.num_kv_heads
    shared = layout.fused_with("q")
    if shared == ("q",):
        head_dim = _divide(size["q"], num_heads, found["q"], f"{num_heads} heads")
        if layout.fused_with("k") == ("k",):
            num_kv_heads = _divide(size["k"], head_dim, found["k"], f"heads of {head_dim}")
        else:
            num_kv_heads = stated or num_heads
            _require(size["k"] == 2 * num_kv_heads * head_dim, found["k"], f"k|v of {num_kv_heads} heads of {head_dim}")
    else:
        num_kv_heads = stated or num_heads
        parts = sum(num_heads if role == "q" else num_kv_heads for role in shared)
        head_dim = _divide(size["q"], parts, found["q"], f"{'|'.join(shared)} of {num_heads} and {num_kv_heads} heads")
    if layout.order == "heads" and num_kv_heads != num_heads:
        raise ValueError(
            "Weights interleaved head by head must have as many key heads as query heads; "
            f"{found['q'].parameter!r} has {num_kv_heads} and {num_heads}. Describe the layout with `heads=`."
        )
    for what, got, told in (("heads of dimension", head_dim, counts.head_dim), ("key heads:", num_kv_heads, stated)):
        if told is not None and got != told:
            raise ValueError(
                f"{found['q'].parameter!r} and {found['k'].parameter!r} must have {what} {told}, as the module or "
                f"config states; shapes {found['q'].shape} and {found['k'].shape} give {got} with {num_heads} heads."
            )
    return head_dim, num_kv_heads


def _divide(size: int, parts: int, weight: Found, what: str) -> int:
    _require(size >= parts and size % parts == 0, weight, what)
    return size // parts


def _require(holds: bool, weight: Found, what: str) -> None:
    if not holds:
        raise ValueError(
            f"{weight.parameter!r} must divide evenly into {what}; got shape {weight.shape}. "
            "Check the number of heads, or describe the layout with `heads=`."
        )


def _stored_by_class(inventory: Inventory, name: str) -> str | None:
    path = ancestors(name)[0]
    modules = inventory.modules.get(path, ())
    if any(isinstance(module, nn.Linear | nn.MultiheadAttention) for module in modules):
        return "out_in"
    return "in_out" if inventory.module_class(path) == "Conv1D" else None


def _refuse_non_matrix(weight: Found) -> None:
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise ValueError(
            f"{weight.parameter!r} must be a matrix; got shape {weight.shape}. Convolutions and stacked experts are "
            "not understood, and a sharded weight (ZeRO-3, flat FSDP) must be gathered first."
        )
    if not weight.dtype.is_floating_point:
        raise ValueError(
            f"{weight.parameter!r} must hold floating-point numbers; got {weight.dtype}, so it is quantised. "
            "Dequantise the model first."
        )


def _refuse_different_inputs(views: Mapping[str, WeightView]) -> None:
    key, value = views["k"], views["v"]
    inputs = [view.shape[1 - view.axis] for view in (key, value)]
    if inputs[0] != inputs[1]:
        raise ValueError(
            f"{key.parameter!r} and {value.parameter!r} must read one input; got widths {inputs[0]} and {inputs[1]}. "
            "If weights are stored (in, out), describe the layout with `heads=`."
        )
