"""What the products of a layer leave out of its scores and outputs, and what was left out of a model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankrise.heads._families import (
    ATTENTION_NAME,
    COSINE_SCALE,
    CROSS_NAME,
    CROSS_PATH,
    LEFT_OUT,
    NOT_MISSED_NAME,
    NOT_SOFTMAX_CLASS,
    NOT_SOFTMAX_NAME,
    NOT_SOFTMAX_PATH,
    OUTPUT_GATE,
    QK_NORM,
    QK_NORM_MODULE,
    QUERIES_OF_THEIR_OWN,
    QUERY_SCALE,
    ROTARY_CONFIG,
    ROTARY_TYPES,
    VALUE_SCALE,
)
from rankrise.heads._inventory import Inventory, ancestors, lookup
from rankrise.heads._layout import Layout
from rankrise.heads._views import WeightView


def looks_like_attention(name: str) -> bool:
    """Return whether a name has a part that usually belongs to attention."""
    return bool(ATTENTION_NAME.search(name))


def has_cosine_scores(inventory: Inventory, path: str) -> bool:
    """Return whether the attention at `path` learns the scale of its scores, which are then cosines (Swin V2)."""
    return any(COSINE_SCALE.search(name) for name in _below(inventory, path))


def layer_notes(
    inventory: Inventory,
    layout: Layout,
    names: Mapping[str, str],
    path: str,
    views: Mapping[str, WeightView],
    gain: str | None,
) -> tuple[str, ...]:
    """Return notes on what `K Qᵀ` and `V Oᵀ` leave out of this layer."""
    below = _below(inventory, path)
    notes = []
    if layout.is_latent:
        notes.append(
            "latent: K Qᵀ and V Oᵀ are those of W_DKV W_UK and W_DKV W_UV; they leave out the norm of the latent, and "
            f"K Qᵀ leaves out the rotated part of every head ({_rotated(inventory, names)} dimensions)"
        )
    elif _is_rotary(inventory, path):
        notes.append("RoPE: scores use K R Qᵀ with a rotation R that depends on the distance; K Qᵀ is distance zero")
    if _has_qk_norm(inventory, layout, path):
        notes.append("QK-norm: queries and keys are normed after projection; K Qᵀ is before that norm")
    if scale := next((name for name in below if QUERY_SCALE.search(name)), None):
        learned = scale.split(".")[-1]
        notes.append(f"query scale: every dimension of a query has a learned factor ({learned!r}); K Qᵀ is without it")
    if layout.gated:
        gated = names["q"].split(".")[-2]
        notes.append(
            f"gate: {gated!r} holds a gate beside every query head, which scales the output; V Oᵀ is without it"
        )
    elif gate := next((name for name in below if OUTPUT_GATE.search(name) and name not in names.values()), None):
        gated = gate.removesuffix(".weight").split(".")[-1]
        notes.append(f"gate: the output is multiplied by a gate ({gated!r}) before W_O; V Oᵀ is without it")
    classes = [inventory.module_class(place) for place in (*_modules_below(inventory, path), *ancestors(path)[:1])]
    for among_names, among_classes, note in LEFT_OUT:
        named = among_names is not None and any(map(among_names.search, below))
        if named or (among_classes is not None and any(map(among_classes.search, classes))):
            notes.append(note)
    if any(_is_scale(lookup(witness, key)) for witness in inventory.witnesses(path) for key in VALUE_SCALE):
        notes.append("scale: values are multiplied by a constant, which V Oᵀ is without")
    if _is_cross(inventory, layout, path, views):
        notes.append("cross-attention: queries read one sequence, keys and values another")
    if any(_bias(name) in inventory.tensors for name in names.values()) or any(n.endswith("bias_k") for n in below):
        notes.append("biases: projections have biases, which no product contains")
    if any(view.norm for view in views.values()):
        notes.append("norm: gain and centring of the norm before attention are folded in, not its division and bias")
    elif gain is not None:
        notes.append("norm: the gain and centring of the norm before attention are not in the products (`fold_norm`)")
    if views["k"].repeats > 1:
        notes.append(f"grouped: every key and value head serves {views['k'].repeats} query heads")
    if len(layout.fused_with("k")) > 1 and not layout.is_latent:
        notes.append(f"fused: {names['k'].split('.')[-2:][0]!r} is read as {_order(layout)}, as in {layout.name}")
    return tuple(notes)


def _is_scale(value: Any) -> bool:
    return isinstance(value, int | float) and value not in (0, 1)


def _has_qk_norm(inventory: Inventory, layout: Layout, path: str) -> bool:
    """Return whether queries and keys are normed after projection; the norm of a latent has a note of its own."""
    if has_cosine_scores(inventory, path):
        return True
    if layout.is_latent:
        return False
    names = (*_below(inventory, path), *(f"{place}.weight" for place in _modules_below(inventory, path)))
    return any(QK_NORM.search(name) or QK_NORM_MODULE.search(name.removesuffix(".weight")) for name in names)


def _modules_below(inventory: Inventory, path: str) -> list[str]:
    return [place for place in inventory.modules if place == path or place.startswith(f"{path}.") or not path]


def _is_cross(inventory: Inventory, layout: Layout, path: str, views: Mapping[str, WeightView]) -> bool:
    """Return whether queries are made from other tokens than keys, as names, widths or learned queries nearby tell."""
    if CROSS_NAME.search(path.rpartition(".")[2]) or CROSS_PATH.search(path):
        return True
    if not layout.is_latent and _width(views["q"]) != _width(views["k"]):
        return True
    return any(
        QUERIES_OF_THEIR_OWN.fullmatch(name.removeprefix(f"{place}."))
        for place in (path, *ancestors(path)[:3])
        for name in inventory.tensors
        if place and name.startswith(f"{place}.")
    )


def _order(layout: Layout) -> str:
    sequence = "|".join(layout.fused_with("k"))
    if layout.order == "heads":
        return "head by head"
    if layout.order == "groups":
        return "groups of query heads, each with its key and its value head"
    return f"{sequence} in {f'{layout.slices} slices of ' if layout.slices > 1 else ''}blocks"


def _rotated(inventory: Inventory, names: Mapping[str, str]) -> int:
    return inventory.tensors[names["kv_down"]].shape[0] - inventory.tensors[names["k"]].shape[1]


def _width(view: WeightView) -> int:
    return view.shape[1 - view.axis]


def is_not_softmax(inventory: Inventory, path: str) -> bool:
    """Return whether the layer at `path` is linear attention or another recurrence, which has no softmax of scores."""
    if NOT_SOFTMAX_CLASS.search(inventory.module_class(path)) or NOT_SOFTMAX_PATH.search(path):
        return True
    start = len(path) + 1 if path else 0
    return any(NOT_SOFTMAX_NAME.fullmatch(name[start:]) for name in _below(inventory, path))


def left_out_note(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a note that names layers with the names of attention and without a softmax."""
    if not paths:
        return ()
    return (
        f"left out: {len(paths)} layers are linear attention or another recurrence, such as {paths[0]!r}; their scores "
        "are no softmax of a product of two weights",
    )


def skipped_note(refusals: Mapping[str, ValueError]) -> tuple[str, ...]:
    """Return a note that names attention that could not be read, with the first reason."""
    if not refusals:
        return ()
    path, refusal = next(iter(refusals.items()))
    return (f"skipped: {len(refusals)} attention layers could not be read, such as {path!r}: {refusal}",)


def leftover_note(inventory: Inventory, read: Iterable[str]) -> tuple[str, ...]:
    """Return a note that names weights which look like attention and were not read."""
    read = set(read)
    left = [
        name
        for name, found in inventory.tensors.items()
        if name not in read and len(found.shape) > 1 and looks_like_attention(name) and not NOT_MISSED_NAME.search(name)
    ]
    if not left:
        return ()
    return (f"not read: {len(left)} weights that look like attention, such as {left[0]!r}",)


def shared_note(inventory: Inventory, read: Iterable[str]) -> tuple[str, ...]:
    """Return a note that names a weight which is read under several names."""
    first: dict[str, str] = {}
    again = []
    for name in dict.fromkeys(read):
        before = first.setdefault(inventory.shared.get(name, name), name)
        if before != name:
            again.append((before, name))
    if not again:
        return ()
    before, name = again[0]
    return (f"shared: {len(again)} weights are those of other roles or layers, such as {name!r}, which is {before!r}",)


def _below(inventory: Inventory, path: str) -> list[str]:
    return [name for name in inventory.tensors if name.startswith(f"{path}.") or not path]


def _is_rotary(inventory: Inventory, path: str) -> bool:
    for place in (path, *ancestors(path)):
        for module in inventory.modules.get(place, ()):
            children = (type(child).__name__ for child in module.children())
            if any("Rotary" in name and "Attention" not in name for name in children):
                return True
    if any(_truthy(witness, key) for witness in inventory.witnesses(path) for key in ROTARY_CONFIG):
        return True
    if any(lookup(witness, "model_type") in ROTARY_TYPES for witness in inventory.witnesses(path)):
        return True
    return not inventory.modules and any("rotary" in name for name in inventory.signs)


def _truthy(witness: Any, key: str) -> bool:
    value = lookup(witness, key)
    return isinstance(value, dict | int | float) and bool(value)


def _bias(weight: str) -> str:
    return f"{weight.removesuffix('weight')}bias"
