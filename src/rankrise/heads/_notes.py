"""What the products of a layer leave out, and what is refused by name before anything is read."""

from collections.abc import Iterable, Mapping
from typing import Any

from rankrise.heads._families import (
    ATTENTION_EXPERTS,
    ATTENTION_NAME,
    COSINE_SCALE,
    DIFFERENTIAL_NAME,
    LAYOUTS,
    NOT_MISSED_NAME,
    OTHER_ORDER_TYPES,
    QK_NORM,
    QUANTISED_CLASS,
    QUANTISED_NAME,
    ROTARY_CONFIG,
    Layout,
)
from rankrise.heads._inventory import Inventory, ancestors, lookup
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
    notes = []
    below = _below(inventory, path)
    if _is_rotary(inventory, path):
        notes.append("RoPE: scores use K R Qᵀ with a rotation R that depends on the distance; K Qᵀ is distance zero")
    if any(QK_NORM.search(name) for name in below) or has_cosine_scores(inventory, path):
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
    return not inventory.modules and any("rotary" in name for name in inventory.signs)


def _truthy(witness: Any, key: str) -> bool:
    value = lookup(witness, key)
    return isinstance(value, dict | int | float) and bool(value)


def _bias(weight: str) -> str:
    return f"{weight.removesuffix('weight')}bias"


def refuse_quantised(inventory: Inventory) -> None:
    """Refuse attention whose weights are stored as integers or with scales beside them."""
    for name in inventory.signs:
        if QUANTISED_NAME.search(name) and looks_like_attention(name):
            _refuse_as_quantised(name, "quantised (GPTQ, AWQ, bitsandbytes or FP8)")
    for path in inventory.modules:
        kind = inventory.module_class(path)
        if looks_like_attention(path) and QUANTISED_CLASS.search(kind) and kind != "NonDynamicallyQuantizableLinear":
            _refuse_as_quantised(path, f"quantised ({kind})")


def refuse_experts(inventory: Inventory) -> None:
    """Refuse attention that is itself a mixture of experts; experts elsewhere do not matter."""
    for name in inventory.tensors:
        if ATTENTION_EXPERTS.search(name):
            raise ValueError(
                f"Every head must have one W_K, W_Q, W_V, W_O; {name!r} belongs to mixture-of-experts attention, which "
                "has several. Describe one expert with `heads=Layout(...)`."
            )


def refuse_other_orders(inventory: Inventory, path: str) -> None:
    """Refuse a model whose names are in the table but whose rows have another order or another use."""
    for name in inventory.tensors:
        if DIFFERENTIAL_NAME.search(name) and ancestors(name)[0] in (path, *ancestors(path)):
            raise ValueError(
                f"Every head must have one W_V and W_O; {path!r} is differential attention (it has {name!r}), whose "
                "heads share values in pairs, so V Oᵀ would be no head's. Describe it with `heads=Layout(...)`."
            )
    for witness in inventory.witnesses(path):
        if lookup(witness, "model_type") in OTHER_ORDER_TYPES:
            raise ValueError(
                f"The weights of {path!r} must be in a known order; {lookup(witness, 'model_type')} has its own. "
                "Describe it with `heads=Layout(...)`."
            )


def not_understood(inventory: Inventory) -> ValueError:
    """Return the error that says what was found, what is understood, and what to do."""
    matrices = [name for name, found in inventory.tensors.items() if len(found.shape) > 1]
    shown = [name for name in matrices if looks_like_attention(name)] or matrices
    some = ", ".join(map(repr, shown[:4])) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    held = f"the weights {some}" if shown else "adapters without their base" if inventory.adapters else "no weights"
    known = ", ".join(layout.name for layout in LAYOUTS)
    return ValueError(
        f"No attention was understood in {inventory.kind}; it has {held}. "
        f"Understood are {known}; describe another with `heads=Layout(q=..., k=..., v=..., o=...)`."
    )


def _refuse_as_quantised(name: str, how: str) -> None:
    raise ValueError(f"Attention weights must be floating-point matrices; {name!r} is {how}. Dequantise it first.")
