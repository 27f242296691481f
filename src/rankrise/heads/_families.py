"""All that is known about model families: the table of name schemes, and the names of counts, norms and exceptions.

A new family is added here and nowhere else. Names are never joined as strings: a pattern is matched against every name,
and what `{layer}` stands for says which four weights belong together.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ROLES = ("q", "k", "v", "o")


@dataclass(frozen=True)
class Layout:
    """Where W_Q, W_K, W_V, W_O of every layer are, by pattern.

    In a pattern `{layer}` stands for any dotted path, the same one in all four; a pattern that starts with `{layer}.`
    also matches without it. Roles that name the same weight are fused: in the order q, k, v, as whole blocks
    (`order="blocks"`, rows q|k|v, each head by head) or head by head (`order="heads"`, rows (head, role, r)).

    Args:
        q: Pattern of the weight that makes queries; `k`, `v`, `o` likewise.
        order: Order of the rows of fused weights.
        stored: "out_in" as nn.Linear keeps a weight, "in_out" as HF Conv1D does. None: found from the module's class
            or from the shapes of fused weights, else "out_in".
        num_heads: Query heads. None: found in the module or its config.
        num_kv_heads: Key and value heads. None: found from shapes, or the module or its config.
        norm: Pattern of the gain of the norm before attention, for `fold_norm`.
        norm_kind: "layer" or "rms". None: found from the module's class.
        name: What the row is called in `HeadMap.scheme`.

    >>> Layout("b.{layer}.w_q", "b.{layer}.w_k", "b.{layer}.w_v", "b.{layer}.w_o", num_heads=2).find(["b.0.w_q"])
    []
    >>> Layout("{layer}.qkv.weight", "{layer}.qkv.weight", "{layer}.qkv.weight", "{layer}.proj.weight").find(
    ...     ["blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight"]
    ... )[0]["o"]
    'blocks.0.attn.proj.weight'
    """

    q: str
    k: str
    v: str
    o: str
    order: Literal["blocks", "heads"] = "blocks"
    stored: Literal["out_in", "in_out"] | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    norm: str | None = None
    norm_kind: Literal["layer", "rms"] | None = None
    name: str = "your layout"

    def __post_init__(self) -> None:
        for role in ROLES:
            pattern = getattr(self, role)
            if not isinstance(pattern, str) or pattern.count("{layer}") != 1:
                raise ValueError(f"`{role}` must be a name with `{{layer}}` in it once; got {pattern!r}.")
        if self.norm is not None and self.norm.count("{layer}") != 1:
            raise ValueError(f"`norm` must be a name with `{{layer}}` in it once; got {self.norm!r}.")
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                allowed = ", ".join(map(repr, choices))
                raise ValueError(f"`{field}` must be one of {allowed}; got {getattr(self, field)!r}.")
        if self.o in (self.q, self.k, self.v):
            raise ValueError(f"`o` must be a weight of its own; got {self.o!r}, which another role has too.")
        for field in ("num_heads", "num_kv_heads"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"`{field}` must be a positive integer; got {value!r}.")

    def find(self, names: Iterable[str]) -> list[dict[str, str]]:
        """For every layer whose four weights are all among `names`: role (and "norm", if it is there) to name."""
        found: dict[str, dict[str, str]] = {}
        patterns = {role: _regex(pattern) for role in (*ROLES, "norm") if (pattern := getattr(self, role)) is not None}
        for name in names:
            for role, pattern in patterns.items():
                if match := pattern.fullmatch(name):
                    found.setdefault(match["layer"] or "", {})[role] = name
        return [roles for roles in found.values() if all(role in roles for role in ROLES)]

    @property
    def is_torch_attention(self) -> bool:
        """Whether the weights are those of an nn.MultiheadAttention, which calls none of its projections."""
        return self.q.endswith(("in_proj_weight", "q_proj_weight"))

    def fused_with(self, role: str) -> tuple[str, ...]:
        """The roles among q, k, v that share `role`'s weight, in order."""
        return tuple(other for other in "qkv" if getattr(self, other) == getattr(self, role)) or (role,)


_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "order": ("blocks", "heads"),
    "stored": (None, "out_in", "in_out"),
    "norm_kind": (None, "layer", "rms"),
}


def _regex(pattern: str) -> re.Pattern[str]:
    before, after = (re.escape(part) for part in pattern.split("{layer}"))
    if not before and after.startswith(r"\."):
        return re.compile(rf"(?:(?P<layer>.+)\.)?{after[2:]}")
    return re.compile(rf"{before}(?P<layer>.+){after}")


def _row(name: str, q: str, k: str, v: str, o: str, order: Literal["blocks", "heads"] = "blocks") -> Layout:
    return Layout(f"{{layer}}.{q}", f"{{layer}}.{k}", f"{{layer}}.{v}", f"{{layer}}.{o}", order=order, name=name)


def _separate(name: str, q: str, k: str, v: str, o: str) -> Layout:
    return _row(name, f"{q}.weight", f"{k}.weight", f"{v}.weight", f"{o}.weight")


def _fused(name: str, qkv: str, o: str, order: Literal["blocks", "heads"] = "blocks") -> Layout:
    return _row(name, qkv, qkv, qkv, o, order)


# A model may have other names in memory (transformers 5.17 to 5.22) than on disk; each has a row. A layer belongs to
# the first row that has all four of its weights.
LAYOUTS: tuple[Layout, ...] = (
    _separate("q_proj/k_proj/v_proj/o_proj", "q_proj", "k_proj", "v_proj", "o_proj"),  # Llama, Qwen; ViT in memory
    _separate("q_proj/k_proj/v_proj/out_proj", "q_proj", "k_proj", "v_proj", "out_proj"),  # CLIP, OPT
    _separate("BERT", "self.query", "self.key", "self.value", "output.dense"),  # BERT, RoBERTa
    _separate("ViT on disk", "attention.query", "attention.key", "attention.value", "output.dense"),  # and DeiT
    _separate("query/key/value/out", "query", "key", "value", "out"),
    _separate("wq/wk/wv/wo", "wq", "wk", "wv", "wo"),
    _fused("nn.MultiheadAttention", "in_proj_weight", "out_proj.weight"),
    _row(
        "nn.MultiheadAttention with kdim or vdim",
        *("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"),
    ),
    _separate("GPT-2 cross-attention", "q_attn", "c_attn", "c_attn", "c_proj"),
    _fused("GPT-2", "c_attn.weight", "c_proj.weight"),
    _fused("GPT-NeoX", "attention.query_key_value.weight", "attention.dense.weight", "heads"),
    _fused("timm", "qkv.weight", "proj.weight"),
    _fused("Phi-3", "qkv_proj.weight", "o_proj.weight"),
    _fused("ModernBERT", "Wqkv.weight", "Wo.weight"),
)

# Attributes of a module and keys of a config that state numbers of heads.
NUM_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads")
NUM_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
HEAD_DIM = ("head_dim", "attention_head_size", "head_size", "d_head", "d_kv")

# Names of the norm before attention.
BEFORE_ATTENTION = ("input_layernorm", "layernorm_before", "ln_1", "ln1", "norm1", "layer_norm1", "attention_norm")
# Blocks that have one of these names after attention, in transformers 5.17 to 5.22 and in timm.
AFTER_ATTENTION_CLASS = re.compile(
    r"Swinv2Layer|Swin2SRLayer|SwinTransformerV2(Cr)?Block|ResPostBlock|\w*TwoWayAttentionBlock|CLIPSegDecoderLayer"
    r"|ChameleonSwinDecoderLayer|OmDetTurboDeformableTransformerDecoderLayer"
)
AFTER_ATTENTION_SOURCE = "transformers.models.openai."  # its class is called Block
AFTER_ATTENTION_TYPES = ("openai-gpt", "swinv2", "swin2sr")
# Of these model types only some blocks have such a name after attention.
MIXED_NORM_TYPES = ("chameleon", "clipseg", "omdet-turbo", "sam", "sam2", "sam2_video", "sam_hq", "edgetam")
FINAL_NORM = re.compile(r"(^|\.)ln(_f|_final|_post)?\.weight$")  # pre-norm models with `ln_1` end in one
# From a norm's class to (whether it centres, the offset of its gain: Gemma stores g − 1).
NORM_KINDS: Mapping[str, tuple[bool, float]] = MappingProxyType(
    {
        "LayerNorm": (True, 0.0),
        **dict.fromkeys(("RMSNorm", "LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Phi3RMSNorm"), (False, 0.0)),
        **dict.fromkeys(("Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen2MoeRMSNorm", "Qwen3MoeRMSNorm"), (False, 0.0)),
        **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), (False, 1.0)),
    }
)
# Model types of state dicts whose norms without a bias are RMSNorms.
RMS_NORM_TYPES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "phi3")

# Names that usually belong to attention, and signs of what a product of two weights leaves out.
ATTENTION_NAME = re.compile(r"att(n|ention)|(^|\.)([qkv]_proj|query|key|value|qkv|w[qkv])(\.|$)", re.IGNORECASE)
QK_NORM = re.compile(r"(q|k|query|key)_?(layer_?)?norm\.weight$", re.IGNORECASE)
COSINE_SCALE = re.compile(r"(^|\.)logit_scale$")
ROTARY_CONFIG = ("rope_parameters", "rope_theta", "rope_scaling", "rotary_pct", "rotary_dim")
NOT_MISSED_NAME = re.compile(rf"relative|position|{COSINE_SCALE.pattern}", re.IGNORECASE)  # and not missed

# Signs of what is refused.
QUANTISED_CLASS = re.compile(r"4bit|8bit|Quant|WQLinear|HQQ|FP8|Int8", re.IGNORECASE)
QUANTISED_NAME = re.compile(
    r"\.(qweight|qzeros|g_idx|W_q|SCB|weight_scale(_inv)?|weight_packed|weight\.(absmax|quant_map|quant_state\..*))$"
)
ATTENTION_EXPERTS = re.compile(r"att(n|ention)[^.]*\.(.+\.)?experts?\.", re.IGNORECASE)
OTHER_ORDER_TYPES = ("gpt_bigcode", "diffllama")  # shares names with a row of the table, not its order
DIFFERENTIAL_NAME = re.compile(r"(^|\.)lambda_[qk]1$")  # a difference of two softmaxes, over values of two heads
