"""Forwards of a model and of the models inside it, each with random inputs of its own kind."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

TOKENS = 16
_BINS = (
    *("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel"),
    *("feature_size", "input_dim", "n_mels"),
)
# Shapes of what some model types read, where the name of an argument does not tell.
_SHAPES: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("gemma4_vision", "pixel_values"): (2, 36, 768),  # patches
    ("lightglue", "pixel_values"): (1, 2, 3, 64, 64),  # pairs of images
    ("neucodec", "input_values"): (2, 1, 4000),
    ("xcodec2", "input_values"): (2, 1, 4000),
}
_EMBEDDED = (
    *("hidden_states", "hidden_state", "inputs_embeds", "encoder_hidden_states"),
    *("query_embeds", "noise_embeds", "inputs"),
)
_MAIN = ("input_ids", "pixel_values", "input_features", "input_values")
Run = Callable[[], Any]
_REQUIRED = inspect.Parameter.empty


def forwards(model: nn.Module, seed: int) -> Iterator[tuple[str, Run]]:
    """Yield the path and a forward of the model and of every model inside it, outermost first."""
    for name, module in model.named_modules():
        if isinstance(module, transformers.PreTrainedModel):
            yield name, lambda module=module: module(**inputs(module, seed))


def inputs(module: nn.Module, seed: int) -> dict[str, Any]:
    """Return random values for what the forward needs: its main input, and every argument without a default."""
    generator = torch.Generator().manual_seed(seed)
    signature = inspect.signature(module.forward).parameters
    config = module.config
    wanted = [
        name
        for name, parameter in signature.items()
        if parameter.default is _REQUIRED and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    main = getattr(module, "main_input_name", "input_ids")
    if main in signature and main not in wanted:
        wanted.append(main)
    if not wanted:
        wanted = list(signature)[:1]
    if "decoder_input_ids" in signature:
        wanted.append("decoder_input_ids")
    if "encoder_hidden_states" in signature and getattr(config, "add_cross_attention", False):
        wanted.append("encoder_hidden_states")
    if "bbox" in signature:
        wanted.append("bbox")
    towers = {name for name, _ in module.named_children()}
    if "text_model" in towers:
        wanted += [name for name in _MAIN if name in signature]
    return {name: _value(name, config, generator) for name in dict.fromkeys(wanted)}


def _value(name: str, config: Any, generator: torch.Generator) -> Any:
    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    if shape := _SHAPES.get((config.model_type, name)):
        return randn(*shape)
    size = _find(config, ("hidden_size", "d_model", "n_embd", "embed_dim"), 64)
    if name in ("input_ids", "decoder_input_ids", "labels"):
        top = min(_find(config, ("vocab_size", "n_vocab"), 100), 99)
        return torch.randint(3, max(top, 4), (2, TOKENS), generator=generator)
    if "pixel_values" in name or name in ("image", "images", "x"):
        side = _find(config, ("image_size", "input_size"), 32)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        channels = _find(config, ("num_channels", "in_channels", "num_input_channels"), 3)
        frames = _find(config, ("num_frames",), None)
        if frames:
            return randn(2, frames, channels, height, width)
        return randn(2, channels, height, width)
    if name == "input_features":
        bins = _find(config, _BINS, 80)
        if (stacked := _find(config, ("num_stacked_frames",), None)) is not None:  # Fun-ASR
            return randn(2, TOKENS, bins * stacked)
        if _find(config, ("spec_size",), None):  # CLAP reads spectrograms as images
            return randn(2, 1, 64, bins)
        length = 2 * _find(config, ("max_source_positions",), 64)
        return randn(2, bins, length) if hasattr(config, "max_source_positions") else randn(2, 128, bins)
    if name in ("input_values", "waveform", "audio_values"):
        return randn(2, 4000)
    if name in ("past_values", "past_observed_mask", "future_values"):
        length = _find(config, ("context_length",), 32)
        return torch.ones(2, length) if "mask" in name else randn(2, length, _find(config, ("num_input_channels",), 1))
    if name == "context_hidden_states":  # of several layers of another model, side by side
        return randn(2, TOKENS, size * len(config.target_layer_ids))
    if name in _EMBEDDED:
        return randn(2, TOKENS, _find(config, ("encoder_hidden_size",), size) if name.startswith("enc") else size)
    if name == "audio_mel":
        return randn(2, 4 * TOKENS, _find(config, ("input_feat_size",), 128))
    if name == "audio_mel_mask":  # true where there is no sound
        return torch.zeros(2, 4 * TOKENS, dtype=torch.bool)
    if "mask" in name:
        return torch.ones(2, TOKENS, dtype=torch.long)
    if name == "pixel_position_ids":
        return torch.cartesian_prod(torch.arange(6), torch.arange(6))[None].expand(2, -1, -1)
    if name.endswith("position_ids"):
        return torch.arange(TOKENS)[None].expand(2, -1)
    if name == "bbox":
        if hasattr(config, "dim_bbox"):
            return torch.rand(2, TOKENS, config.dim_bbox, generator=generator)
        return torch.tensor([1, 2, 3, 4]).expand(2, TOKENS, -1)
    if name in ("grid_thw", "image_grid_thw"):
        return torch.tensor([[1, 4, 4]])
    return None


def attention_forwards(
    module: nn.Module, width: int, key_width: int, head_dim: int, seed: int, *, crosses: bool = False
) -> list[Run]:
    """Return ways to call an attention module by itself, for models whose forward needs more than random inputs.

    Args:
        module: The attention module.
        width: Width of the input of the queries.
        key_width: Width of the input of the keys.
        head_dim: Head dimension, of which all or a part may be rotated.
        seed: Of the random inputs.
        crosses: Whether keys and values should first be tried on another sequence than queries.
    """
    if isinstance(module, nn.MultiheadAttention):
        return [
            lambda: module(*_tokens(seed, width) * 3, need_weights=True),
            lambda: module(*_tokens(seed, width, key_width, key_width), need_weights=True),
        ]
    return [
        partial(_call, module, shape, (width, key_width), (head_dim, positions), crossed, seed, masked)
        for crossed in (crosses, not crosses)
        for masked in (False, True)
        for shape in ((2, TOKENS), (TOKENS,), (2, 4, 4))
        for positions in (head_dim, head_dim // 2, head_dim // 4, 0, "flat", "heads", "tensor", "index", "relative")
    ]


def _tokens(seed: int, *widths: int, shape: tuple[int, ...] = (2, TOKENS)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn((*shape, width), generator=generator) for width in widths]


# Names of arguments that hold what keys and values read, and of those that hold what everything reads.
_OTHERS = ("key_value_states", "encoder_hidden_states", "cross_attention_states", "context_hidden_states", "context",
           "key", "keys", "value", "values", "kv", "memory")  # fmt: skip
_SAME = ("key_tensor", "value_tensor", "layer_input")
_ALWAYS = ("cu_seqlens", "rope_k_repeat")  # given even where they have a default
_ROTARY = ("position_embeddings", "position_embeddings_k", "rotary_pos_emb", "rope", "pos_emb")


def _call(
    module: nn.Module,
    shape: tuple[int, ...],
    widths: tuple[int, int],
    head: tuple[int, int | str],
    crossed: bool,
    seed: int,
    masked: bool,
) -> Any:
    """Call an attention module with `head` = (head dimension, what is rotated or the kind of positions)."""
    x, y = _tokens(seed, *widths, shape=shape)
    known = _known(x, *head)
    arguments: dict[str, Any] = {}
    signature = inspect.signature(module.forward).parameters
    for name, parameter in signature.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        needed = parameter.default is _REQUIRED
        if not arguments or name in _SAME:
            arguments[name] = x
        elif name in _OTHERS:
            if crossed or needed:
                arguments[name] = y if crossed else x
        elif name in known and (needed or (head[1] != 0 and not crossed and "pos" in name) or name in _ALWAYS):
            arguments[name] = known[name]
        elif needed:
            arguments[name] = None
    if masked and "attention_mask" not in signature and "kwargs" in signature:
        arguments["attention_mask"] = None
    return module(**arguments)


def _known(x: Tensor, head_dim: int, positions: int | str) -> dict[str, Any]:
    """Return values for arguments that have the same name in many models."""
    rotated = positions if isinstance(positions, int) else {"flat": head_dim // 2, "heads": head_dim}.get(positions, 0)
    tokens = x.shape[-1] // head_dim if positions == "heads" else x.shape[-2]  # NeuCodec rotates head by head
    angles = torch.linspace(0.1, 3.0, tokens)[:, None].expand(tokens, rotated)
    angles = angles[None].expand(2, -1, -1) if x.ndim == 3 and positions != "flat" else angles
    place: Any = (angles.cos(), angles.sin())
    if positions == "tensor":
        place = torch.zeros_like(x)
    elif positions == "index":
        place = torch.zeros(TOKENS, TOKENS, dtype=torch.long)
    elif positions == "relative":  # one for every distance
        place = x.new_zeros(2, 2 * TOKENS - 1, x.shape[-1])
    return {
        **dict.fromkeys(_ROTARY, place),
        "cu_seqlens": torch.tensor([0, TOKENS]),
        "max_seqlen": TOKENS,
        "rope_k_repeat": 1,
        "cache_position": torch.arange(TOKENS),
        "position_ids": torch.arange(TOKENS)[None] if positions != "index" else torch.zeros(2, TOKENS, 2).long(),
        "output_attentions": True,
        "layout_inputs": x[..., : x.shape[-1] // 4],
        "bbox_pos_emb": torch.zeros(TOKENS, TOKENS, 2, head_dim),
        "rel_pos": torch.zeros(1),
        "rel_2d_pos": torch.zeros(1),
        "input_features_mask": torch.ones(2, TOKENS),
    }


def _find(config: Any, names: tuple[str, ...], default: Any) -> Any:
    """Return the first of these entries, from the config or a config inside it."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except Exception:
            value = None
        if value is not None:
            return value
    for inner in vars(config).values():
        if isinstance(inner, transformers.PreTrainedConfig):
            found = _find(inner, names, None)
            if found is not None:
                return found
    return default
