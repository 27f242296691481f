"""What is refused by name before anything is read, and the error that says what was found instead of attention."""

from collections.abc import Sequence

from rankrise.heads._families import (
    ATTENTION_EXPERTS,
    DIFFERENTIAL_NAME,
    LAYOUTS,
    OTHER_ORDER_TYPES,
    QUANTISED_CLASS,
    QUANTISED_NAME,
)
from rankrise.heads._inventory import Inventory, ancestors, lookup
from rankrise.heads._notes import looks_like_attention


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


def no_softmax(inventory: Inventory, paths: Sequence[str]) -> ValueError:
    """Return the error about a model whose layers with the names of attention have no softmax."""
    return ValueError(
        f"Scores must be a softmax of a product of two weights; all {len(paths)} layers of {inventory.kind} that have "
        f"the names of attention, such as {paths[0]!r}, are linear attention or another recurrence. Describe them with "
        "`heads=Layout(...)` to read them all the same."
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
