"""What the products leave out: notes on a layer, and on weights nobody could read."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rankrise.heads._counts import lookup
from rankrise.heads._inventory import Inventory
from rankrise.heads._layouts import Layout
from rankrise.heads._names import ancestors
from rankrise.heads._views import WeightView

_ATTENTION = re.compile(r"att(n|ention)|(^|\.)([qkv]_proj|query|key|value|qkv|w[qkv])(\.|$)", re.IGNORECASE)
_QK_NORM = re.compile(r"(q|k|query|key)_?(layer_?)?norm\.weight$", re.IGNORECASE)
_COSINE = re.compile(r"(^|\.)logit_scale$")
_ROTARY_CONFIG = ("rope_parameters", "rope_theta", "rope_scaling", "rotary_pct", "rotary_dim")
_NOT_READ = re.compile(rf"relative|position|{_COSINE.pattern}", re.IGNORECASE)  # and not missed


def looks_like_attention(name: str) -> bool:
    """Whether a name has a part that usually belongs to attention."""
    return bool(_ATTENTION.search(name))


def has_cosine_scores(inventory: Inventory, path: str) -> bool:
    """Whether the attention at `path` learns the scale of its scores, which are then cosines (Swin V2)."""
    return any(_COSINE.search(name) for name in _below(inventory, path))


def layer_notes(
    inventory: Inventory,
    layout: Layout,
    names: Mapping[str, str],
    path: str,
    views: Mapping[str, WeightView],
    gain: str | None,
) -> tuple[str, ...]:
    """In which way `K Qᵀ` and `V Oᵀ` are not all of this layer."""
    notes = []
    below = _below(inventory, path)
    if _is_rotary(inventory, path):
        notes.append("RoPE: scores use K R Qᵀ with a rotation R that depends on the distance; K Qᵀ is distance zero")
    if any(_QK_NORM.search(name) for name in below) or has_cosine_scores(inventory, path):
        notes.append("QK-norm: queries and keys are normed after projection; K Qᵀ is before that norm")
    if any(_bias(name) in inventory.tensors for name in names.values()) or any(n.endswith("bias_k") for n in below):
        notes.append("biases: projections have biases, which no product contains")
    if any(view.norm for view in views.values()):
        notes.append("norm: gain and centring of the norm before attention are folded in, not its division and bias")
    elif gain is not None:
        notes.append("norm: the gain and centring of the norm before attention are not in the products (`fold_norm`)")
    if views["k"].repeats > 1:
        notes.append(f"grouped: every key and value head serves {views['k'].repeats} query heads")
    if len(layout.fused_with("k")) > 1:
        order = "|".join(layout.fused_with("k")) + " in blocks" if layout.order == "blocks" else "head by head"
        notes.append(f"fused: {names['k'].split('.')[-2:][0]!r} is read as {order}, as in {layout.name}")
    return tuple(notes)


def leftover_note(inventory: Inventory, read: Iterable[str]) -> tuple[str, ...]:
    """A note that names weights which look like attention and were not read."""
    read = set(read)
    left = [
        name
        for name, found in inventory.tensors.items()
        if name not in read and len(found.shape) > 1 and looks_like_attention(name) and not _NOT_READ.search(name)
    ]
    if not left:
        return ()
    return (f"not read: {len(left)} weights that look like attention, such as {left[0]!r}",)


def shared_note(inventory: Inventory, read: Iterable[str]) -> tuple[str, ...]:
    """A note that names a weight which is read under several names."""
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
    if any(_truthy(witness, key) for witness in inventory.witnesses(path) for key in _ROTARY_CONFIG):
        return True
    return not inventory.modules and any("rotary" in name for name in inventory.signs)


def _truthy(witness: Any, key: str) -> bool:
    value = lookup(witness, key)
    return isinstance(value, dict | int | float) and bool(value)


def _bias(weight: str) -> str:
    return f"{weight.removesuffix('weight')}bias"
