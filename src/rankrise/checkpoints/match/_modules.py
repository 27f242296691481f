"""Which tensors of a checkpoint LoRA can adapt, how they are stored, and what their modules are called in memory.

Only names, shapes and the config are looked at. A `weight` with two dimensions is a Linear (out, in) unless its name
says that it is an embedding and it has no bias; it is a Conv1D (in, out) where its bias is as long as its second
dimension, where modules of the same name are, or where the architecture is known to have them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankrise.checkpoints.files import STACK_ORDER, Checkpoint
from rankrise.checkpoints.match._alignment import IN_MEMORY, block_of
from rankrise.heads import canonical_names

_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*)*")
_EMBEDDINGS = ("wte", "wpe", "shared", "relative_attention_bias")  # and what has "emb" as a word or "embed", but for
_NO_EMBEDDINGS = ("out", "unemb", "proj", "map", "linear", "dense", "fc", "mlp")  # a layer after or before one
_CONV1D_TYPES = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
_CONV1D_NAMES = ("c_attn", "c_proj", "c_fc", "q_attn")
_RENAMED = {
    **dict.fromkeys(("vit", "deit", "ijepa", "vit_msn", "vit_mae", "beit", "vivit"), "ViT"),
    "audio-spectrogram-transformer": "ViT",
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), "DINO"),
    "dinov3_vit": "DINOv3",
    "swin": "Swin",
    "segformer": "SegFormer",
    "gpt_neox": "GPT-NeoX",
    "mixtral": "Mixtral",
    **dict.fromkeys(("granitemoe", "granitemoeshared", "granitemoehybrid"), "Granite-MoE"),
    **dict.fromkeys(("llava", "llava_next", "gemma3", "mistral3", "paligemma", "internvl"), "LLaVA"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), "Qwen2-VL"),
}
# Checkpoints of a whole model that were saved without the name of the body, which the model in memory has.
_BODIES = {"gpt2": "transformer", "bloom": "transformer", "openai-gpt": "transformer", "bert": "bert"}
_ROUTERS = ("gate", "router")
# In a model with experts PEFT (0.19 to 0.21) takes every target of these names for a weight of the experts, also where
# it is a dense layer or a shared expert: it then adapts the wrong modules. Such a module is named by its parameter.
_NAMES_OF_EXPERTS = ("gate", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj")
_STACKS = ("experts", "experts, transposed")  # kinds of fused weights
_TRANSPOSED_STACKS = ("gpt_oss", "openai_privacy_filter")  # their modules state `is_transposed`, which PEFT obeys
_LINEAR_STACKS = ("input_linear", "output_linear")  # names of Granite and JetMoE on disk; in memory they have others
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_HEADS = ("lm_head", "score", "classifier", "cls", "qa_outputs")


@dataclass(frozen=True)
class Module:
    """What LoRA makes of one tensor."""

    tensor: str  # name of the tensor in the file
    name: str  # name of the module in memory
    parameter: str  # name of the parameter in the module, such as "weight"
    kind: str  # "linear", "conv1d", or what it is instead
    is_parameter: bool = False  # PEFT must be told its parameter, because it takes the module's name for experts

    @property
    def is_adaptable(self) -> bool:
        """Whether LoRA can carry its change."""
        return self.kind in ("linear", "conv1d", *_STACKS)

    @property
    def is_transposed(self) -> bool:
        """Whether it is stored (in, out)."""
        return self.kind in ("conv1d", "experts, transposed")

    @property
    def is_stack(self) -> bool:
        """Whether it is the fused weight of all experts of a layer, (E, d1, d2), which PEFT adapts as a parameter."""
        return self.kind in _STACKS

    @property
    def in_memory(self) -> str:
        """Name of the tensor in memory; that of a stack is the name itself."""
        return f"{self.name}.{self.parameter}" if self.parameter else self.name


def is_expert_stack(name: str) -> bool:
    """Whether a tensor in memory is the fused weight of all experts of a layer, by its name.

    >>> is_expert_stack("model.layers.0.mlp.experts.gate_up_proj"), is_expert_stack("mlp.experts.0.up_proj")
    (True, False)
    """
    return re.search(rf"(^|\.)experts\.({'|'.join(STACK_ORDER)})$", name) is not None


def is_taken_for_experts(module: str) -> bool:
    """Whether PEFT takes a target of this name for a weight of the experts, in a model that has experts.

    >>> is_taken_for_experts("model.layers.0.mlp.down_proj"), is_taken_for_experts("model.layers.0.self_attn.q_proj")
    (True, False)
    """
    return _last(module) in _NAMES_OF_EXPERTS


def find_modules(checkpoint: Checkpoint) -> dict[str, Module]:
    """Every tensor of a checkpoint as part of a module."""
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    plain = canonical_names(shapes)
    config = checkpoint.config or {}
    by_plain = {plain[name]: shape for name, shape in shapes.items()}
    stored = _orientations(by_plain, config)
    with_experts = {name.partition(".experts.")[0] for name in by_plain if ".experts." in name}
    has_experts = bool(with_experts) or _states_experts(config) or _states_experts(config.get("text_config"))
    found = {}
    for name, shape in shapes.items():
        module, _, parameter = plain[name].rpartition(".")
        kind = _kind(module, parameter, shape, has_bias=f"{module}.bias" in by_plain)
        if kind == "linear" and stored.get(module):
            kind = "conv1d"
        if kind == "linear" and re.search(r"(^|\.)router\.layer$", module):
            kind = "router"  # of Granite and JetMoE
        if kind == "linear" and _last(module) in _ROUTERS and module.rpartition(".")[0] in with_experts:
            kind = "router"  # no Linear in memory
        if len(shape) == 3 and 0 not in shape and is_expert_stack(plain[name]):
            kind = _STACKS[str(config.get("model_type")) in _TRANSPOSED_STACKS]
            found[name] = Module(name, f"{in_memory(module, by_plain, config)}.{parameter}", "", kind, True)
            continue
        is_parameter = kind == "linear" and has_experts and is_taken_for_experts(module)
        found[name] = Module(name, in_memory(module, by_plain, config), parameter, kind, is_parameter)
    return found


def in_memory(module: str, names: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The name that transformers ≥ 5.17 gives a module of a checkpoint.

    >>> in_memory("vit.encoder.layer.0.attention.attention.query", {}, {"model_type": "vit"})
    'vit.layers.0.attention.q_proj'
    >>> gpt2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    >>> in_memory("h.0.mlp.c_fc", {"h.0.mlp.c_fc.weight": 0}, gpt2)
    'transformer.h.0.mlp.c_fc'
    """
    model_type = str(config.get("model_type", "vit" if module.startswith("vit.encoder.layer.") else ""))
    for pattern, replacement in IN_MEMORY.get(_RENAMED.get(model_type, ""), ()):
        module = re.sub(pattern, replacement, module)
    body = _BODIES.get(model_type)
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    is_whole = architecture.endswith("LMHeadModel") or not architecture.endswith("Model")
    if body and architecture and is_whole and not any(name.startswith(f"{body}.") for name in names):
        module = module if module.startswith(_HEADS) else f"{body}.{module}"
    return module


def _states_experts(config: object) -> bool:
    return isinstance(config, Mapping) and any(config.get(key) for key in _NUM_EXPERTS)


def _kind(module: str, parameter: str, shape: tuple[int, ...], *, has_bias: bool) -> str:
    if not module or not _NAME.fullmatch(module):
        return "a name PEFT cannot match" if module else "a parameter without a module"
    if parameter == "bias":
        return "bias"
    if len(shape) == 1:
        last = _last(module).lower()
        return "norm" if "norm" in last or "ln" in last else "vector"
    if parameter != "weight":
        return "parameter"
    if re.search(r"\.experts\.\d+\.", f".{module}."):
        return "expert"
    if len(shape) == 3 and _last(module) in _LINEAR_STACKS:
        return "expert"
    if len(shape) != 2:
        return "convolution" if len(shape) in (3, 4, 5) else "parameter"
    if 0 in shape:
        return "empty"
    return "embedding" if _is_embedding(module) and not has_bias else "linear"


def _is_embedding(module: str) -> bool:
    """By its name; one of a list by the name of the list.

    >>> [_is_embedding(name) for name in ("tok_emb", "embed_tokens.0", "embed_out", "time_emb_proj", "ensemble.0")]
    [True, True, False, False, False]
    """
    parts = [part for part in module.lower().split(".") if not part.isdecimal()]
    last = parts[-1] if parts else ""
    has_word = "embed" in last or any(re.fullmatch(r"embs?\d*", word) for word in re.split("[_-]", last))
    return last in _EMBEDDINGS or (has_word and not any(word in last for word in _NO_EMBEDDINGS))


def _orientations(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> dict[str, bool]:
    """Map each module to whether its weight is stored as (in, out)."""
    known_type = config.get("model_type") in _CONV1D_TYPES
    seen: dict[str, bool] = {}
    modules = [name.removesuffix(".weight") for name, shape in shapes.items() if name.endswith(".weight")]
    matrices = [module for module in modules if len(shapes[f"{module}.weight"]) == 2]
    for module in matrices:
        rows, columns = shapes[f"{module}.weight"]
        bias = shapes.get(f"{module}.bias")
        if bias is not None and rows != columns and bias in ((rows,), (columns,)):
            seen[module] = bias == (columns,)
    of_name, of_block = _majority(seen, _last), _majority(seen, block_of)
    for module in matrices:
        if module not in seen:
            is_named = _last(module) in _CONV1D_NAMES
            guess = of_name.get(_last(module), of_block.get(block_of(module), False) if is_named else False)
            seen[module] = guess or (known_type and is_named)
    return seen


def _majority(seen: Mapping[str, bool], key: Any) -> dict[Any, bool]:
    votes: dict[Any, list[bool]] = {}
    for module, answer in seen.items():
        votes.setdefault(key(module), []).append(answer)
    return {group: 2 * sum(answers) > len(answers) for group, answers in votes.items()}


def _last(module: str) -> str:
    return module.rpartition(".")[2]
