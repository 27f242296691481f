"""A tiny random model of every model type of transformers, from its default config with every size made small."""

import re
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

# The nine mappings, in the order in which a class is looked for.
MAPPINGS = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
)

# Sizes by the name of the config's entry; the first pattern that matches decides. None leaves the entry as it is.
_SMALL: tuple[tuple[str, int | None], ...] = (
    (
        r"mamba_.*|ssm_.*|.*_patch_size|patch_size|mm_tokens|_dims_per_head|num_channels|in_channels|audio_channels|image_channels",
        None,
    ),
    (r"vocab_size|.*_vocab_size|vocab_size_.*|num_embeddings|n_vocab|.*_group_vocab", 256),
    (r"type_vocab_size|num_labels|num_token_types", None),
    (r"(.*_)?(num_)?(key_value|kv)_heads|multi_query_group_num|n_head_kv", 2),
    (r"linear_num_key_heads", 2),
    (r"linear_num_value_heads", 4),
    (r"(.*_)?(num_attention_heads|num_heads|attention_heads|n_heads?|num_head|heads|encoder_heads)", 4),
    (r"qk_rope_head_dim", 8),
    (r"qk_nope_head_dim", 16),
    (r"qk_head_dim", 24),
    (r"v_head_dim|linear_(key|value)_head_dim|index_head_dim", 16),
    (r"rotary_dim", 8),
    (r"d_kv|(.*_)?head_dim|head_size|d_head|dim_head|attention_head_size|kv_channels|attention_key_value_channels", 16),
    (r"q_lora_rank", 24),
    (r"kv_lora_rank|o_lora_rank", 32),
    (r"(.*_)?(num_(hidden_|encoder_|decoder_)?layers|n_layers?|depth|encoder_layers|decoder_layers|num_blocks)", 2),
    (r"(num_|n_)?(local_|routed_)?experts|moe_num_experts|num_experts|n_routed_experts", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k|num_selected_experts", 2),
    (r"n_group|topk_group", 1),
    (r"(.*_)?intermediate_size(_.*)?|(.*_)?ffn_dim|d_ff|mlp_dim|ffn_hidden_size|n_inner|d_inner|dim_feedforward", 32),
    (r"condition_dim", 64),
    (r"(hidden_size|d_model|n_embd|emb_dim|(.*_)?hidden_size|hidden_size_global|hidden_dim|decoder_input_dim)", 64),
    (r"max_(position_embeddings|source_positions|target_positions|sequence_length)|n_positions|n_ctx", 128),
    (r"num_queries|num_object_queries", 8),
    (r"sliding_window|local_attention|attention_window", 64),
)
# Entries that follow from others, or that name stages which a shallow model does not have.
_DERIVED = ("id2label", "label2id", "_out_features", "_out_indices", "out_features", "out_indices", "stage_names")
# Entries that a default config lacks, or that do not follow when other sizes are made small.
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
_SWIN = {"depths": [1, 1, 1, 1], "num_heads": [4, 8, 16, 32], "num_layers": 4, "embed_dim": 64}
_VOCABULARY = {"<image>": 8, "<|extra_200|>": 9}
_MORE: Mapping[str, Mapping[str, Any]] = {
    "bamba": _MAMBA,
    "chameleon": {"vocabulary_map": _VOCABULARY},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "efficientloftr": {"hidden_size": 256},
    "emu3": {"vocabulary_map": _VOCABULARY},
    "ernie4_5_vl_moe_text": {"rope_parameters": {"mrope_section": [3, 3, 2]}, "moe_intermediate_size": [32, 32]},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4_unified_text": {"num_kv_shared_layers": 0},
    "granite4_vision": {"deepstack_layer_map": [[0, 1]], "downsample_rate": "4/8"},
    "granite_speech5_encoder": {"context_size": 16},
    "granitemoehybrid": _MAMBA,
    "kosmos_2_5_text_model": {"embed_dim": 64, "layers": 2},
    "kosmos_2_text_model": {"embed_dim": 64, "layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "d_fine": {"backbone_config": {"out_indices": [2, 3, 4]}},
    "maskformer": {"backbone_config": _SWIN},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "mimi": {"upsample_groups": 64},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "perceiver": {"d_latents": 64, "num_latents": 16, "num_self_attends_per_block": 2},
    "qwen4_exp_text": {"ngram_vocab_size_base": 256, "ple_embed_dim": 64},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "swin2sr": {"depths": [2, 2], "num_heads": [6, 6]},
    "videomae": {"image_size": 64, "num_frames": 4},
    "videoprism_vision_model": {"image_size": 72, "num_frames": 4},
    "vivit": {"image_size": 32, "num_frames": 4},
}
_RULES = tuple((re.compile(pattern), size) for pattern, size in _SMALL)
_LAYERS = re.compile(r"(num_(hidden_)?layers|n_layers?|num_encoder_layers|encoder_layers|depth)")
_PERIOD = re.compile(r"(.*_interval|.*_pattern|.*_period|.*_every.*|.*_stride|.*_step|.*_frequency)")
_IMAGE = re.compile(r"(.*_)?(image_size|input_size|img_size)")
_TOKEN = re.compile(r".*token_(id|index)|pad_id|.*_token_idx")


def model_types() -> list[str]:
    """Return every model type that one of the nine mappings knows."""
    return sorted({name for mapping in MAPPINGS for name in getattr(modeling_auto, mapping)})


def build(model_type: str) -> nn.Module:
    """Return a tiny model with random weights.

    Raises:
        RuntimeError: If neither the small config nor one that is only made shallow builds; the message is the first
            failure.
    """
    config_class = transformers.CONFIG_MAPPING[model_type]
    failures = []
    for width in (True, False):
        sizes = shrink(config_class().to_dict(), width=width)
        config = config_class.from_dict(sizes)
        config._attn_implementation = "eager"
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = model_class(model_type)(config)
            return model.eval()
        except Exception as failure:
            failures.append(failure)
    raise RuntimeError(f"{type(failures[0]).__name__}: {failures[0]}") from failures[0]


def model_class(model_type: str) -> type[nn.Module]:
    """Return the class of the first mapping that knows the type."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    for mapping in MAPPINGS:
        if model_type in getattr(modeling_auto, mapping):
            found = getattr(modeling_auto, mapping.removesuffix("_NAMES"))[config_class]
            return found if isinstance(found, type) else found[0]
    raise KeyError(model_type)


def shrink(config: Mapping[str, Any], *, width: bool) -> dict[str, Any]:
    """Return a config's dictionary with small sizes; nested configs too.

    Args:
        config: What `to_dict` gives.
        width: Make widths small as well, and not only depths, vocabularies and images.
    """
    depth = next((value for key, value in config.items() if _LAYERS.fullmatch(key) and type(value) is int), None)
    kept = _kept_layers(config, depth)
    small = {k: _small(k, value, depth, kept, width, config) for k, value in config.items() if k not in _DERIVED}
    return _with(small, _MORE.get(config.get("model_type", ""), {}))


def _with(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's dictionary with other entries, also in the configs inside it."""
    return config | {
        key: _with(config[key], value) if isinstance(value, Mapping) and isinstance(config.get(key), dict) else value
        for key, value in more.items()
    }


def _kept_layers(config: Mapping[str, Any], depth: int | None) -> list[int]:
    """Return the layers to keep: at least two, and one of each kind that the lists of the config tell apart."""
    if depth is None:
        return [0, 1]
    lists = [value for value in config.values() if isinstance(value, list | tuple) and len(value) == depth]
    first: dict[str, int] = {}
    for layer in range(depth):
        first.setdefault(repr([values[layer] for values in lists]), layer)
    periods = [v for k, v in config.items() if _PERIOD.fullmatch(k) and type(v) is int and 2 < v <= 8]
    kept = sorted(first.values())[:6] if lists and len(first) < depth / 2 else [0]
    wanted = min(depth, max([2, len(kept), *periods]))
    if any(isinstance(v, dict) and any("layers" in str(k) for k in v) for v in config.values()):
        wanted = min(depth, max(wanted, 5))
    more = [layer for layer in range(depth) if layer not in kept]
    return sorted([*kept, *more[: wanted - len(kept)]])


def _small(key: str, value: Any, depth: int | None, kept: list[int], width: bool, config: Mapping[str, Any]) -> Any:
    if _IMAGE.fullmatch(key):
        return _small_image(value)
    if isinstance(value, Mapping):
        if key == "per_layer_config":
            return {
                kept.index(int(layer)): shrink(part, width=width) for layer, part in value.items() if int(layer) in kept
            }
        return shrink(value, width=width) if "model_type" in value else _small_dict(value, kept, width)
    if isinstance(value, list | tuple):
        if depth is not None and len(value) == depth and depth > 2:
            return [value[layer] for layer in kept]
        if key in ("depths", "num_blocks", "blocks_per_stage", "layers") and all(type(v) is int for v in value):
            return [min(v, 2) for v in value]
        return value
    if value is None:
        return {"head_dim": 16, "num_key_value_heads": 4, "prediction_length": 4, "vocab_size": 40}.get(key)
    if type(value) is not int:
        return value
    heads = next((v for k, v in config.items() if k in ("num_attention_heads", "num_heads")), None)
    if key == "num_key_value_heads" and value == heads:
        return 4
    if key == "head_dim" and value == config.get("qk_rope_head_dim"):
        return 8 if width else value
    if key == "num_heads" and type(config.get("expand")) is int:
        return 64 * config["expand"] // 16 if width else value
    if _TOKEN.fullmatch(key) and value >= 200:
        return 100 + value % 100
    if _LAYERS.fullmatch(key) and value == depth:
        return len(kept)
    if key in ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"):
        return min(value, 1)
    for pattern, size in _RULES:
        if pattern.fullmatch(key):
            if size is None or (not width and size in (4, 16, 24, 32, 64, 8)):
                return value
            return min(value, size) if value > 0 else value
    return value


def _small_image(value: Any) -> Any:
    """Return the side of an image, or its sides, halved until it has at most 256 pixels; a patch still divides it."""
    if isinstance(value, list | tuple):
        return [_small_image(side) for side in value]
    while type(value) is int and value > 256 and value % 4 == 0:
        value //= 2
    return 224 if type(value) is int and value > 512 else value


def _small_dict(value: Mapping[str, Any], kept: list[int], width: bool) -> dict[str, Any]:
    """Return a dictionary that is no config of its own: lists of layers are cut, sections of a rotation are halved."""
    small: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            small[key] = _small_dict(entry, kept, width)
        elif str(key).endswith("_layers") and isinstance(entry, list):
            small[key] = [layer for layer in entry if layer <= len(kept)]
        elif key == "mrope_section" and isinstance(entry, list) and len(entry) == 3 and width:
            small[key] = [4, 2, 2]
        else:
            small[key] = entry
    return small
