"""What is refused by name, before anything is read."""

import re

from rankrise.heads._counts import lookup
from rankrise.heads._inventory import Inventory
from rankrise.heads._layouts import LAYOUTS
from rankrise.heads._names import ancestors
from rankrise.heads._notes import looks_like_attention

_QUANTISED_CLASS = re.compile(r"4bit|8bit|Quant|WQLinear|HQQ|FP8|Int8", re.IGNORECASE)
_QUANTISED_NAME = re.compile(
    r"\.(qweight|qzeros|g_idx|W_q|SCB|weight_scale(_inv)?|weight_packed|weight\.(absmax|quant_map|quant_state\..*))$"
)
_EXPERTS = re.compile(r"att(n|ention)[^.]*\.(.+\.)?experts?\.", re.IGNORECASE)
_OTHER_ORDER = ("gpt_bigcode", "diffllama")  # shares names with a row of the table, not its order
_DIFFERENTIAL = re.compile(r"(^|\.)lambda_[qk]1$")  # a difference of two softmaxes, over values of two heads


def refuse_quantised(inventory: Inventory) -> None:
    """Refuse attention whose weights are stored as integers or with scales beside them."""
    for name in inventory.signs:
        if _QUANTISED_NAME.search(name) and looks_like_attention(name):
            _refuse_as_quantised(name, "quantised (GPTQ, AWQ, bitsandbytes or FP8)")
    for path in inventory.modules:
        kind = inventory.module_class(path)
        if looks_like_attention(path) and _QUANTISED_CLASS.search(kind) and kind != "NonDynamicallyQuantizableLinear":
            _refuse_as_quantised(path, f"quantised ({kind})")


def refuse_experts(inventory: Inventory) -> None:
    """Refuse attention that is itself a mixture of experts; experts elsewhere do not matter."""
    for name in inventory.tensors:
        if _EXPERTS.search(name):
            raise ValueError(
                f"Every head must have one W_K, W_Q, W_V, W_O; {name!r} belongs to mixture-of-experts attention, which "
                "has several. Describe one expert with `heads=Layout(...)`."
            )


def refuse_other_orders(inventory: Inventory, path: str) -> None:
    """Refuse a model whose names are in the table and whose order of rows, or use of them, is another."""
    for name in inventory.tensors:
        if _DIFFERENTIAL.search(name) and ancestors(name)[0] in (path, *ancestors(path)):
            raise ValueError(
                f"Every head must have one W_V and W_O; {path!r} is differential attention (it has {name!r}), whose "
                "heads share values in pairs, so V Oᵀ would be no head's. Describe it with `heads=Layout(...)`."
            )
    for witness in inventory.witnesses(path):
        if lookup(witness, "model_type") in _OTHER_ORDER:
            raise ValueError(
                f"The weights of {path!r} must be in a known order; {lookup(witness, 'model_type')} has its own. "
                "Describe it with `heads=Layout(...)`."
            )


def not_understood(inventory: Inventory) -> ValueError:
    """What was found, what is understood, what to do."""
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
