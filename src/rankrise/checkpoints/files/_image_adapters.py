"""LoRA files of image and video trainers, whose alpha is in the file itself: those of kohya and of diffusers.

    kohya       lora_unet_a_b.lora_down.weight, lora_unet_a_b.lora_up.weight, lora_unet_a_b.alpha: dots become `_`
    diffusers   unet.a.b.lora_A.weight, unet.a.b.lora_B.weight; alpha in the metadata of the file, or nowhere
    and before  unet.a.b.lora.down.weight, text_encoder.a.b.lora_linear_layer.down.weight,
                unet.a.processor.to_q_lora.down.weight, each with `up`; unet.a.b.alpha, or nowhere

The scale is alpha / rank, and 1 where no alpha is stated. A convolution is read as (out, in · height · width): a
convolution by A and then a 1 × 1 convolution by B is that of their product.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rankrise.checkpoints.files._adapter_files import LowRankDelta, peft_scale
from rankrise.checkpoints.files._folders import show
from rankrise.checkpoints.files._peft_settings import PeftSettings
from rankrise.checkpoints.files._safetensors import TensorInfo

METADATA = "lora_adapter_metadata"  # under which diffusers keeps the configs of PEFT, as JSON
_KOHYA = re.compile(r"(?P<stem>.+)\.lora_(?P<kind>down|up)\.weight")
_FORMS = (
    _KOHYA,
    re.compile(r"(?P<stem>.+)\.lora_(?P<kind>A|B)\.weight"),
    re.compile(r"(?P<stem>.+)(?:\.lora|_lora|\.lora_linear_layer)\.(?P<kind>down|up)\.weight"),
)
_NOT_LORA = re.compile(r".+\.(hada_w[12]|lokr_w[12]|oft_blocks|oft_diag)\w*")  # LoHa, LoKr and OFT
_MERGE = "Merge it into its base first."


def image_kind(tensors: Mapping[str, TensorInfo]) -> str | None:
    """Return "kohya" or "diffusers" for a LoRA file of image trainers, by its names; None for any other file.

    A file of PEFT has the same `lora_A` and `lora_B` as one of diffusers, below `base_model.`. Files of LoHa, LoKr and
    OFT are called "kohya" too, so that they are refused as what they are and not taken for a whole model.
    """
    if any(_KOHYA.fullmatch(name) or _NOT_LORA.fullmatch(name) for name in tensors):
        return "kohya"
    has_pairs = any(form.fullmatch(name) for name in tensors for form in _FORMS)
    return "diffusers" if has_pairs and not any(name.startswith("base_model.") for name in tensors) else None


def image_deltas(
    tensors: Mapping[str, TensorInfo], metadata: Mapping[str, Any], read: Callable[[str], Tensor]
) -> tuple[dict[str, LowRankDelta], tuple[str, ...]]:
    """Map each weight that a LoRA file changes to what is added to it; and notes on how the file was read.

    Args:
        tensors: Places of the tensors in the file, by name.
        metadata: The metadata of the file's header.
        read: Takes a name, and returns the tensor; only the alphas are read.

    Raises:
        ValueError: More than plain LoRA (DoRA, LoHa, LoKr, Tucker factors); half of a pair; shapes that do not fit; an
            alpha that is no number.
    """
    pairs: dict[str, dict[str, str]] = {}
    rest = []
    for name in tensors:
        match = next((found for form in _FORMS if (found := form.fullmatch(name))), None)
        if match is None:
            rest.append(name)
        else:
            kind = "A" if match["kind"] in ("A", "down") else "B"
            if pairs.setdefault(match["stem"], {}).setdefault(kind, name) != name:
                raise ValueError(f"A module must have one pair of factors; {show(match['stem'])!r} has two. {_MERGE}")
    alphas = {name: name.removesuffix(".alpha").removesuffix("_lora") for name in rest if name.endswith(".alpha")}
    stated = {stem: name for name, stem in alphas.items() if stem in pairs}
    others = [name for name in rest if name not in stated.values()]
    if others:
        other = next((name for name in others if _NOT_LORA.fullmatch(name)), others[0])  # and not its alpha
        raise ValueError(f"A LoRA file must be plain LoRA, scale · up · down; it has {show(other)!r}. {_MERGE}")
    configs = _configs(metadata)
    deltas = {}
    for stem, names in pairs.items():
        if names.keys() != {"A", "B"}:
            raise ValueError(
                f"A LoRA file must have both factors; {show(stem)!r} has only {show(next(iter(names.values())))!r}."
            )
        a, b = names["A"], names["B"]
        rank, inputs, outputs = _shapes(stem, tensors[a].shape, tensors[b].shape)
        module = _module(stem)
        if stem in stated:
            scale = _alpha(tensors[stated[stem]], stated[stem], read) / rank
        else:
            scale = _configured(configs, module, rank)
        weight = f"{module}.weight"
        if weight in deltas:
            raise ValueError(f"A module must have one pair of factors; {show(module)!r} has two. {_MERGE}")
        deltas[weight] = LowRankDelta(weight, a, b, scale, (outputs, inputs), rank, alpha=stated.get(stem, ""))
    return deltas, _notes(deltas, bool(configs))


def _module(stem: str) -> str:
    """The module in memory: old attention processors hold the factors of their neighbours, `to_out` those of its first.

    >>> _module("unet.mid_block.attn1.processor.to_out"), _module("lora_unet_mid_block_attn1_to_out_0")
    ('unet.mid_block.attn1.to_out.0', 'lora_unet_mid_block_attn1_to_out_0')
    """
    if ".processor." not in stem:
        return stem
    plain = stem.replace(".processor.", ".")
    return f"{plain}.0" if plain.endswith(".to_out") else plain


def _shapes(stem: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int]:
    if len(a) < 2 or len(b) < 2 or a[0] != b[1] or a[0] == 0 or math.prod(b[2:]) != 1:
        raise ValueError(f"Both factors of {show(stem)!r} must share a rank; their shapes are {a} and {b}. {_MERGE}")
    return a[0], math.prod(a[1:]), b[0]


def _alpha(info: TensorInfo, name: str, read: Callable[[str], Tensor]) -> float:
    value = float(read(name).double().reshape(-1)[0]) if info.num_elements == 1 else math.nan
    if not math.isfinite(value):
        raise ValueError(f"An alpha must be one finite number; {show(name)!r} is not. Download the file again.")
    return value


def _configs(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What PEFT was configured with: entries such as `unet.r` and `unet.lora_alpha`."""
    text = metadata.get(METADATA)
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{METADATA} of a LoRA file must be a JSON object; it is not. Download the file again.")
    return found


def _configured(configs: Mapping[str, Any], module: str, rank: int) -> float:
    """The scale that the metadata give a module; 1 where they say nothing."""
    part, _, name = module.partition(".")
    config = {key.removeprefix(f"{part}."): value for key, value in configs.items() if key.startswith(f"{part}.")}
    if config.get("use_dora"):
        raise ValueError(f"A LoRA file must be plain LoRA; its metadata say use_dora for {show(part)!r}. {_MERGE}")
    settings = PeftSettings(config, "alpha")
    return 1.0 if settings.of(name) is None else peft_scale(config, settings, name, rank)


def _notes(deltas: Mapping[str, LowRankDelta], has_configs: bool) -> tuple[str, ...]:
    without = [delta for delta in deltas.values() if not delta.alpha]
    if not without or has_configs:
        return ()
    note = f"{len(without)} of {len(deltas)} modules state no alpha and are read with scale 1"
    if len({delta.rank for delta in without}) > 1:
        note += ", as ComfyUI does; diffusers would give modules of another rank than the first another scale"
    return (note,)
