"""LoRA pairs on top of stored weights: which are in effect, and with which scale.

From a module the scale, the active adapters and whether they are merged are read off PEFT's layers by attribute; PEFT
is not imported. From a state dict only `lora_alpha` (and `use_rslora`) of the adapter's config can tell the scale.
"""

import math
from typing import Any

from rankrise.heads._counts import lookup
from rankrise.heads._inventory import Inventory
from rankrise.heads._layouts import Layout
from rankrise.heads._names import ancestors
from rankrise.heads._views import LowRankUpdate


def updates_on(inventory: Inventory, layout: Layout, weight: str, *, transposed: bool) -> tuple[LowRankUpdate, ...]:
    """The updates in effect on a weight.

    Raises:
        ValueError: Adapters of another kind than LoRA, or a scale that cannot be known.
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
    if layout.is_torch_attention:
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
