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
from rankrise.heads._families import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS
from rankrise.heads._inventory import Found, Inventory, ancestors, lookup
from rankrise.heads._layout import Layout
from rankrise.heads._views import LatentInput, WeightView


@dataclass(frozen=True)
class HeadCounts:
    """What was stated about the heads of a layer; it is checked against the shapes."""

    num_heads: int | None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    note: str | None = None  # where the number of heads does not come from the config that the path names


def stated_counts(witnesses: Iterable[Any], layout: Layout, name: str) -> HeadCounts:
    """Return what the nearest witness that knows a number of heads states.

    If the weight of the queries is not fused with others, a head dimension suffices: the shape then gives the number.

    Raises:
        ValueError: If no witness knows; the message lists the names that were looked for.
    """
    head_dim = num_kv_heads = None
    for witness in witnesses:
        num_kv_heads = num_kv_heads or _integer(witness, NUM_KV_HEADS)
        head_dim = head_dim or _integer(witness, HEAD_DIM)
        if num_heads := _integer(witness, NUM_HEADS):
            note = witness.note if isinstance(witness, PartConfig) else None
            return HeadCounts(num_heads, num_kv_heads, head_dim, note)
    if head_dim and layout.fused_with("q") == ("q",) and not layout.is_latent:
        return HeadCounts(None, num_kv_heads, head_dim)
    raise ValueError(
        f"The number of heads of {name!r} must be known; neither the module nor a config has one of "
        f"{', '.join(NUM_HEADS)}. Pass `num_heads=` or `config=`."
    )


def _integer(witness: Any, keys: Iterable[str]) -> int | None:
    values = (lookup(witness, key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def cut_into_heads(
    inventory: Inventory, layout: Layout, names: Mapping[str, str], counts: HeadCounts
) -> tuple[dict[str, WeightView], tuple[str, ...]]:
    """Return the four recipes of a layer, and notes on counts that shapes decide against what was stated.

    Args:
        inventory: What the source holds.
        layout: The row that matched.
        names: Role to name, as in the inventory.
        counts: What was stated about the heads.

    Raises:
        ValueError: If shapes do not fit each other or what was stated.
    """
    found = {key: inventory.tensors[names[key]] for key in names if key != "norm"}
    for weight in found.values():
        _refuse_non_matrix(weight)
    if layout.is_latent:
        return _cut_latent(found, layout, counts), ()
    known = {role: layout.stored or _stored_by_class(inventory, names[role]) for role in "qkvo"}
    fused = len(layout.fused_with("k")) > 1
    refusals = []
    for unknown in ("out_in", "in_out") if fused else ("out_in",):  # fused weights fit one way only
        try:
            return _cut(found, layout, counts, {role: stored or unknown for role, stored in known.items()})
        except ValueError as refusal:
            refusals.append(refusal)
    raise refusals[0]


@dataclass(frozen=True)
class _Heads:
    """How many heads of which dimension a layer has."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int

    def number(self, role: str) -> int:
        """Return how many heads of a role are stored."""
        return self.num_kv_heads if role in "kv" else self.num_heads

    def dim(self, role: str) -> int:
        """Return the dimension of a role's heads."""
        return self.value_dim if role in "vo" else self.head_dim


def _cut(
    found: Mapping[str, Found], layout: Layout, counts: HeadCounts, stored: Mapping[str, str]
) -> tuple[dict[str, WeightView], tuple[str, ...]]:
    axis = {role: int((stored[role] == "in_out") != (role == "o")) for role in "qkvo"}  # where the heads lie
    size = {role: found[role].shape[axis[role]] for role in "qkvo"}
    if layout.gated:
        size["q"] = _divide(size["q"], 2, found["q"], "queries and gates")
    heads, notes = _heads(found, size, layout, counts)
    views = {}
    for role in "qkvo":
        weight = found[role]
        offset, stride, group, group_stride = _places(layout, role, heads)
        views[role] = WeightView(
            parameter=weight.parameter,
            role=role,
            shape=(weight.shape[0], weight.shape[1]),
            axis=axis[role],
            stored_heads=heads.number(role),
            head_dim=heads.dim(role),
            offset=offset,
            stride=stride,
            repeats=heads.num_heads // heads.number(role),
            group=group,
            group_stride=group_stride,
        )
    if not layout.is_torch_attention:  # torch's attention may have its own kdim and vdim
        _refuse_different_inputs(views)
    return views, notes


def _places(layout: Layout, role: str, heads: _Heads) -> tuple[int, int, int | None, int | None]:
    """Return offset, stride, group and group stride of a role's heads in its stored weight."""
    shared = layout.fused_with(role) if role != "o" else ("o",)
    before, own = shared[: shared.index(role)], heads.dim(role)
    if len(shared) == 1:
        return 0, own * (2 if layout.gated and role == "q" else 1), None, None
    if layout.order == "heads":
        return sum(map(heads.dim, before)), sum(map(heads.dim, shared)), None, None
    # In a block (or a group, or a slice) each role has some heads side by side.
    parts = {"blocks": layout.slices, "groups": heads.num_kv_heads}[layout.order]
    length = {other: heads.number(other) // parts * heads.dim(other) for other in shared}
    offset = sum(length[other] for other in before)
    if parts == 1:
        return offset, own, None, None
    return offset, own, heads.number(role) // parts, sum(length.values())


def _heads(
    found: Mapping[str, Found], size: Mapping[str, int], layout: Layout, counts: HeadCounts
) -> tuple[_Heads, tuple[str, ...]]:
    """Find H, G, r and r_v: every role's share of its stored weight must come out even, and as stated."""
    num_heads, stated = counts.num_heads, counts.num_kv_heads
    shared = layout.fused_with("q")
    if num_heads is None:
        assert counts.head_dim is not None
        num_heads = _divide(size["q"], counts.head_dim, found["q"], f"heads of {counts.head_dim}")
    head_dim, num_kv_heads = _head_dim(found, size, layout, num_heads, stated)
    notes: tuple[str, ...] = ()
    if stated is not None and num_kv_heads != stated and (len(shared) == 3 or head_dim == counts.head_dim):
        notes = (f"counts: shapes hold {num_kv_heads} key heads, where the module or config states {stated}",)
        stated = None
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
    value_dim = head_dim
    if layout.fused_with("v") == ("v",):
        value_dim = _divide(size["v"], num_kv_heads, found["v"], f"{num_kv_heads} value heads")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"The {num_heads} query heads of {found['q'].parameter!r} must divide evenly among the key heads; "
            f"{found['k'].parameter!r} has {num_kv_heads}. Check the number of heads."
        )
    _require(size["o"] == num_heads * value_dim, found["o"], f"{num_heads} heads of {value_dim}")
    _require(num_kv_heads % layout.slices == 0, found["k"], f"{layout.slices} slices")
    return _Heads(num_heads, num_kv_heads, head_dim, value_dim), notes


def _head_dim(
    found: Mapping[str, Found], size: Mapping[str, int], layout: Layout, num_heads: int, stated: int | None
) -> tuple[int, int]:
    """Find r and G from the weights of queries and keys."""
    shared = layout.fused_with("q")
    if shared == ("q",):
        head_dim = _divide(size["q"], num_heads, found["q"], f"{num_heads} heads")
        if layout.fused_with("k") == ("k",):
            return head_dim, _divide(size["k"], head_dim, found["k"], f"heads of {head_dim}")
        num_kv_heads = stated or num_heads
        _require(size["k"] == 2 * num_kv_heads * head_dim, found["k"], f"k|v of {num_kv_heads} heads of {head_dim}")
        return head_dim, num_kv_heads
    num_kv_heads = stated or num_heads
    if len(shared) == 3 and size["o"] % num_heads == 0:  # one dimension for all: W_O tells it, and the rest is counted
        own = size["o"] // num_heads
        counted, odd = divmod(size["q"] - size["o"], 2 * own) if own else (0, 1)
        if counted > 0 and not odd:
            num_kv_heads = counted
    parts = sum(num_heads if role == "q" else num_kv_heads for role in shared)
    what = f"{'|'.join(shared)} of {num_heads} and {num_kv_heads} heads"
    return _divide(size["q"], parts, found["q"], what), num_kv_heads


def _cut_latent(found: Mapping[str, Found], layout: Layout, counts: HeadCounts) -> dict[str, WeightView]:
    """Cut latent attention: every query and key head ends in rotated dimensions, which are not read.

    The shapes alone determine every dimension: W_DKV holds the latent and one rotated key for all heads, and W_UK|W_UV
    holds the plain part of the keys and the values, head by head.
    """
    num_heads = counts.num_heads
    assert num_heads is not None
    rank = found["k"].shape[1]
    rotated = found["kv_down"].shape[0] - rank
    query_dim = _divide(found["q"].shape[0], num_heads, found["q"], f"{num_heads} heads")
    value_dim = _divide(found["o"].shape[1], num_heads, found["o"], f"{num_heads} heads")
    head_dim = query_dim - rotated
    _require(rotated >= 0, found["kv_down"], f"a latent of {rank} and a rotated key")
    _require(head_dim > 0, found["q"], f"{num_heads} heads of more than {rotated} rotated dimensions")
    stride = {"q": query_dim, "o": value_dim}
    if layout.k == layout.v:
        stride |= {"k": head_dim + value_dim, "v": head_dim + value_dim}
    else:
        stride |= {"k": head_dim, "v": value_dim}
    for role in "kv":
        _require(found[role].shape[0] == num_heads * stride[role], found[role], f"{num_heads} heads of {stride[role]}")
    if "q_down" in found:
        query_rank = found["q"].shape[1]
        _require(found["q_down"].shape[0] == query_rank, found["q_down"], f"a latent of {query_rank}")
    latents = {role: LatentInput(found["kv_down"].parameter, rank) for role in "kv"}
    if "q_down" in found:
        latents["q"] = LatentInput(found["q_down"].parameter, found["q"].shape[1])
    return {
        role: WeightView(
            parameter=found[role].parameter,
            role=role,
            shape=(found[role].shape[0], found[role].shape[1]),
            axis=int(role == "o"),
            stored_heads=num_heads,
            head_dim=value_dim if role in "vo" else head_dim,
            offset=head_dim if role == "v" and layout.k == layout.v else 0,
            stride=stride[role],
            down=latents.get(role),
        )
        for role in "qkvo"
    }


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
