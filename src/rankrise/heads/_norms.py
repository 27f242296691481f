"""The norm before attention: where it is, what kind it is, and whether it can be folded into the weights.

A name does not tell whether a norm stands before or after attention, nor what a class does with its gain. So only
names and classes listed here are taken, blocks known to use such a name after attention are not, and folding anything
else is refused.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from rankrise.heads._counts import lookup
from rankrise.heads._inventory import Inventory
from rankrise.heads._layouts import Layout
from rankrise.heads._names import ancestors
from rankrise.heads._notes import has_cosine_scores
from rankrise.heads._views import NormGain

BEFORE_ATTENTION = ("input_layernorm", "layernorm_before", "ln_1", "ln1", "norm1", "layer_norm1", "attention_norm")
# Blocks that have one of these names after attention, in transformers 5.17 to 5.22 and in timm.
_AFTER_CLASS = re.compile(
    r"Swinv2Layer|Swin2SRLayer|SwinTransformerV2(Cr)?Block|ResPostBlock|\w*TwoWayAttentionBlock|CLIPSegDecoderLayer"
    r"|ChameleonSwinDecoderLayer|OmDetTurboDeformableTransformerDecoderLayer"
)
_AFTER_SOURCE = "transformers.models.openai."  # its class is called Block
_AFTER_TYPES = ("openai-gpt", "swinv2", "swin2sr")
_MIXED_TYPES = ("chameleon", "clipseg", "omdet-turbo", "sam", "sam2", "sam2_video", "sam_hq", "edgetam")  # some blocks
_FINAL_NORM = re.compile(r"(^|\.)ln(_f|_final|_post)?\.weight$")  # pre-norm models with `ln_1` end in one
# class name -> (centred, offset of the gain)
KINDS: Mapping[str, tuple[bool, float]] = MappingProxyType(
    {
        "LayerNorm": (True, 0.0),
        **dict.fromkeys(("RMSNorm", "LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Phi3RMSNorm"), (False, 0.0)),
        **dict.fromkeys(("Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen2MoeRMSNorm", "Qwen3MoeRMSNorm"), (False, 0.0)),
        **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), (False, 1.0)),
    }
)


def norm_before(inventory: Inventory, layout: Layout, names: Mapping[str, str], path: str) -> str | None:
    """Name of the gain of the norm before the attention at `path`; None where none is certain."""
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
    """The recipe that folds the norm with this gain into the weights that read it.

    Raises:
        ValueError: There is no such norm, or its kind is not known.
    """
    if gain is None:
        raise ValueError(
            f"`fold_norm` needs a norm before the attention {path!r}; none was found (a post-norm model has none). "
            "Leave `fold_norm` out, or name it with `heads=Layout(..., norm=...)`."
        )
    kind = _stated_kind(inventory, layout, gain)
    if kind is None:
        known = ", ".join(KINDS)
        got = inventory.module_class(ancestors(gain)[0]) or "a state dict that does not tell"
        raise ValueError(
            f"`fold_norm` needs to know what the norm at {gain!r} does with its gain; got {got}, known are {known}. "
            "Say so with `heads=Layout(..., norm=..., norm_kind='layer' or 'rms')`."
        )
    centred, offset = kind
    return NormGain(inventory.tensors[gain].parameter, centred, offset)


def _comes_first(inventory: Inventory, layout: Layout, path: str, block: str, norm: str) -> bool:
    """False for a block that is post-norm, and for one in a state dict where nobody can tell."""
    for witness in (*inventory.modules.get(block, ()), inventory.config):
        for key in ("norm_first", "normalize_before"):
            if witness is not None and (stated := lookup(witness, key)) is not None:
                return bool(stated)
    if _is_known_after(inventory, path, block):
        return False
    if inventory.modules:
        return True
    told = inventory.config is not None and lookup(inventory.config, "model_type") is not None
    if norm == "ln_1" and not told and not any(map(_FINAL_NORM.search, inventory.tensors)):
        return False  # GPT-2 or OpenAI GPT
    return not layout.is_torch_attention


def _is_known_after(inventory: Inventory, path: str, block: str) -> bool:
    if has_cosine_scores(inventory, path):  # Swin V2, in transformers and timm
        return True
    for module in inventory.modules.get(block, ()):
        for kind in type(module).__mro__:
            if _AFTER_CLASS.fullmatch(kind.__name__) or kind.__module__.startswith(_AFTER_SOURCE):
                return True
    types = _AFTER_TYPES if inventory.modules else (*_AFTER_TYPES, *_MIXED_TYPES)
    return any(lookup(witness, "model_type") in types for witness in inventory.witnesses(path))


def _stated_kind(inventory: Inventory, layout: Layout, gain: str) -> tuple[bool, float] | None:
    if layout.norm_kind is not None:
        return layout.norm_kind == "layer", 0.0
    module = ancestors(gain)[0]
    if inventory.modules:
        return KINDS.get(inventory.module_class(module))
    if f"{module}.bias" in inventory.tensors:
        return KINDS["LayerNorm"]
    model_type = lookup(inventory.config, "model_type") if inventory.config is not None else None
    return KINDS["RMSNorm"] if model_type in ("llama", "mistral", "qwen2", "qwen3", "mixtral", "phi3") else None
