"""What acts on a stored weight: LoRA pairs on top of it, and the norm before attention, which may be folded into it.

From a module the scale of a LoRA pair, the active adapters and whether they are merged are read off PEFT's layers by
attribute; PEFT is not imported. From a state dict only `lora_alpha` (and `use_rslora`) of the adapter's config can tell
the scale.

A name does not tell whether a norm stands before or after attention, nor what a class does with its gain. Therefore
only the names and classes listed in `_families` are taken, blocks known to use such a name after attention are not, and
folding anything else is refused.
"""

import math
from collections.abc import Mapping
from typing import Any

from rankrise.heads._families import (
    AFTER_ATTENTION_CLASS,
    AFTER_ATTENTION_SOURCE,
    AFTER_ATTENTION_TYPES,
    BEFORE_ATTENTION,
    FINAL_NORM,
    MIXED_NORM_TYPES,
    NORM_KINDS,
    RMS_NORM_TYPES,
)
from rankrise.heads._inventory import Inventory, ancestors, lookup
from rankrise.heads._layout import Layout
from rankrise.heads._notes import has_cosine_scores
from rankrise.heads._views import LowRankUpdate, NormGain


def updates_on(
    inventory: Inventory, layout: Layout | None, weight: str, *, transposed: bool
) -> tuple[LowRankUpdate, ...]:
    """Return the low-rank updates that are in effect on a weight; `layout` is None for one beside attention.

    Raises:
        ValueError: If an adapter is of another kind than LoRA, or its scale cannot be known.
    """
    path = ancestors(weight)[0]
    if path in inventory.extras:
        raise ValueError(
            f"Adapters must be plain LoRA, base + scale·BA; {path!r} has {inventory.extras[path][0]!r}. "
            "Merge the adapter first (`merge_and_unload()`)."
        )
    pairs = inventory.adapters.get(path, {})
    if not pairs:
        return ()
    if layout is not None and layout.is_torch_attention:
        raise ValueError(
            f"Adapters must act as base + scale·BA; PEFT adds that of an nn.MultiheadAttention ({path!r}) to "
            "`out_proj` twice or not at all (huggingface/peft#3774). Merge the adapter first (`merge_and_unload()`)."
        )
    layer = next((module for module in inventory.modules.get(path, ()) if hasattr(module, "scaling")), None)
    scales = _scales_of_file(inventory, path) if layer is None else _scales_of_layer(layer)
    return tuple(
        LowRankUpdate(pairs[name].a.parameter, pairs[name].b.parameter, scale, transposed)
        for name, scale in scales.items()
        if name in pairs
    )


def _scales_of_layer(layer: Any) -> dict[str, float]:
    if layer.disable_adapters or layer.merged:
        return {}
    return {name: float(layer.scaling[name]) for name in layer.active_adapters if name in layer.scaling}


def _scales_of_file(inventory: Inventory, path: str) -> dict[str, float]:
    pairs = inventory.adapters[path]
    alpha = lookup(inventory.config, "lora_alpha") if inventory.config is not None else None
    pattern = lookup(inventory.config, "alpha_pattern") if inventory.config is not None else None
    if alpha is None or pattern or len(pairs) > 1:
        raise ValueError(
            f"The scale of the adapter on {path!r} must be known, for one adapter with one `lora_alpha`; got "
            f"{', '.join(pairs)} with lora_alpha={alpha}. Pass the module, `config={{'lora_alpha': ...}}`, or merge."
        )
    (name,) = pairs
    rank = pairs[name].a.shape[0]
    return {name: alpha / (math.sqrt(rank) if lookup(inventory.config, "use_rslora") else rank)}


def norm_before(inventory: Inventory, layout: Layout, names: Mapping[str, str], path: str) -> str | None:
    """Return the name of the gain of the norm before the attention at `path`; None if that is not certain."""
    if "norm" in names:
        return names["norm"]
    if layout.norm is not None:
        return None
    for block in ancestors(path)[:2]:
        for norm in BEFORE_ATTENTION:
            name = f"{block}.{norm}.weight" if block else f"{norm}.weight"
            if name in inventory.tensors and _comes_first(inventory, layout, path, block, norm):
                return name
    return None


def fold(inventory: Inventory, layout: Layout, gain: str | None, path: str) -> NormGain:
    """Return the recipe that folds the norm with this gain into the weights that read it.

    Raises:
        ValueError: If there is no such norm, or its kind is not known.
    """
    if gain is None:
        raise ValueError(
            f"`fold_norm` needs a norm before the attention {path!r}; none was found (a post-norm model has none). "
            "Leave `fold_norm` out, or name it with `heads=Layout(..., norm=...)`."
        )
    kind = _stated_kind(inventory, layout, gain)
    if kind is None:
        known = ", ".join(NORM_KINDS)
        got = inventory.module_class(ancestors(gain)[0]) or "a state dict that does not tell"
        raise ValueError(
            f"`fold_norm` needs to know what the norm at {gain!r} does with its gain; got {got}, known are {known}. "
            "Say so with `heads=Layout(..., norm=..., norm_kind='layer' or 'rms')`."
        )
    centred, offset = kind
    return NormGain(inventory.tensors[gain].parameter, centred, offset)


def _comes_first(inventory: Inventory, layout: Layout, path: str, block: str, norm: str) -> bool:
    """Return False for a post-norm block, and for a block of a state dict that does not tell."""
    for witness in (*inventory.modules.get(block, ()), inventory.config):
        for key in ("norm_first", "normalize_before"):
            if witness is not None and (stated := lookup(witness, key)) is not None:
                return bool(stated)
    if _is_known_after(inventory, path, block):
        return False
    if inventory.modules:
        return True
    told = inventory.config is not None and lookup(inventory.config, "model_type") is not None
    if norm == "ln_1" and not told and not any(map(FINAL_NORM.search, inventory.tensors)):
        return False  # GPT-2 or OpenAI GPT
    return not layout.is_torch_attention


def _is_known_after(inventory: Inventory, path: str, block: str) -> bool:
    if has_cosine_scores(inventory, path):  # Swin V2, in transformers and timm
        return True
    for module in inventory.modules.get(block, ()):
        for kind in type(module).__mro__:
            if AFTER_ATTENTION_CLASS.fullmatch(kind.__name__) or kind.__module__.startswith(AFTER_ATTENTION_SOURCE):
                return True
    types = AFTER_ATTENTION_TYPES if inventory.modules else (*AFTER_ATTENTION_TYPES, *MIXED_NORM_TYPES)
    return any(lookup(witness, "model_type") in types for witness in inventory.witnesses(path))


def _stated_kind(inventory: Inventory, layout: Layout, gain: str) -> tuple[bool, float] | None:
    if layout.norm_kind is not None:
        return layout.norm_kind == "layer", 0.0
    module = ancestors(gain)[0]
    if inventory.modules:
        return NORM_KINDS.get(inventory.module_class(module))
    if f"{module}.bias" in inventory.tensors:
        return NORM_KINDS["LayerNorm"]
    model_type = lookup(inventory.config, "model_type") if inventory.config is not None else None
    return NORM_KINDS["RMSNorm"] if model_type in RMS_NORM_TYPES else None
