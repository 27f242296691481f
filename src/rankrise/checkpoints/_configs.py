"""Two config.json side by side: what says that they are not of one model, and what the reader should know."""

import re
from collections.abc import Mapping
from typing import Any

from rankrise.checkpoints._folders import show
from rankrise.checkpoints._pairs import some

_STRUCTURE = (
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "n_head",
    "head_dim",
    "num_experts",
    "num_local_experts",
)
_OFTEN_DIFFER = re.compile(  # with the version, the task and the storage, and not with what the weights mean
    r"_.*|.*version|.*token.*|.*dropout.*|.*pdrop|(torch_)?dtype|architectures|vocab_size|use_cache|auto_map|"
    r"id2label|label2id|num_labels|problem_type|task_specific_params|finetuning_task|quantization_config|"
    r"tie_word_embeddings|gradient_checkpointing|initializer_range|max_position_embeddings|return_dict|"
    r"output_(attentions|hidden_states)|torchscript|use_bfloat16|router_aux_loss_coef|model_type"
)


def compare_configs(base: Mapping[str, Any] | None, tuned: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    """Problems and notes: another kind of model or number of heads; another activation, rotary base and the like.

    A model that also sees keeps its text model under `text_config`, which is compared with a text model alone.

    >>> compare_configs({"n_head": 4, "hidden_act": "silu"}, {"text_config": {"n_head": 4, "hidden_act": "gelu"}})
    ([], ['the configs differ: hidden_act is silu in the base and gelu in the tuned'])
    """
    one, other = base or {}, tuned or {}
    parts = [("", _text(one), _text(other))]
    for key in sorted(one.keys() & other.keys()):
        if key.endswith("_config") and key not in ("text_config", "quantization_config"):
            parts += [(f"{key}.", one[key], other[key])]
    if "text_config" in one and "text_config" in other:
        parts.append(("", {"model_type": one.get("model_type")}, {"model_type": other.get("model_type")}))
    problems, notes = [], []
    for prefix, first, second in parts:
        if not isinstance(first, Mapping) or not isinstance(second, Mapping):
            continue
        for key in (key for key in first if key in second and _differ(first[key], second[key])):
            said = f"{prefix}{show(key)} is {show(first[key], 40)} in the base and {show(second[key], 40)} in the tuned"
            if key in _STRUCTURE:
                problems.append(f"Both must be one architecture: {said}.")
            elif not _OFTEN_DIFFER.fullmatch(key) and not key.endswith("_config"):
                notes.append(said)
    return problems, [f"the configs differ: {some(notes)}"] if notes else []


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the text model, with what is said above it but the kind."""
    text = config.get("text_config")
    return {**config, "model_type": None, **text} if isinstance(text, Mapping) else config


def _differ(one: object, other: object) -> bool:
    """Whether both say something and not the same; NaN is the same as NaN."""
    return one is not None and other is not None and one != other and repr(one) != repr(other)
