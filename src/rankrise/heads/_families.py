"""All that is known about model families: the table of name schemes, and the names of counts, norms and exceptions.

A new family is added here and nowhere else; `_layout` says what a row can express.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rankrise.heads._layout import Layout


def _row(name: str, q: str, k: str, v: str, o: str, **options: Any) -> Layout:
    return Layout(f"{{layer}}.{q}", f"{{layer}}.{k}", f"{{layer}}.{v}", f"{{layer}}.{o}", name=name, **options)


def _separate(name: str, q: str, k: str, v: str, o: str, **options: Any) -> Layout:
    return _row(name, f"{q}.weight", f"{k}.weight", f"{v}.weight", f"{o}.weight", **options)


def _fused(name: str, qkv: str, o: str, **options: Any) -> Layout:
    return _row(name, qkv, qkv, qkv, o, **options)


def _latent(name: str, q: str, q_down: str | None, kv_down: str, k: str, v: str, **options: Any) -> Layout:
    downs: dict[str, Any] = {
        "q_down": q_down and f"{{layer}}.{q_down}.weight",
        "kv_down": f"{{layer}}.{kv_down}.weight",
    }
    return _separate(name, q, k, v, "o_proj", **downs, **options)


# A model may have other names in memory (transformers 5.17 to 5.22) than on disk; each has a row. A layer belongs to
# the first row that has all of its weights and allows its model type. Weights that are not children of one module are
# anchored by `in_attention`: a feed-forward layer beside attention may be called `output.dense` too.
LAYOUTS: tuple[Layout, ...] = (
    _separate(
        "gated queries",
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        gated=True,
        types=r"qwen3_next|(qwen3_5|qwen4)\w*",
    ),
    _latent("latent", "q_b_proj", "q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "kv_b_proj", sequence="qkv"),
    _latent("latent, full queries", "q_proj", None, "kv_a_proj_with_mqa", "kv_b_proj", "kv_b_proj"),
    _separate("q_proj/k_proj/v_proj/o_proj", "q_proj", "k_proj", "v_proj", "o_proj"),  # Llama, Qwen; ViT in memory
    _separate("q_proj/k_proj/v_proj/out_proj", "q_proj", "k_proj", "v_proj", "out_proj"),  # CLIP, OPT
    _separate("Phi", "q_proj", "k_proj", "v_proj", "dense"),  # Phi-1, Phi-2
    _separate("q_proj/k_proj/v_proj/proj", "q_proj", "k_proj", "v_proj", "proj"),  # Kimi's vision tower
    _separate("ModernBERT decoder", "q_proj", "k_proj", "v_proj", "Wo"),
    _separate("InternVL", "q_proj", "k_proj", "v_proj", "projection_layer"),
    _separate("Gemma 4", "q_proj.linear", "k_proj.linear", "v_proj.linear", "o_proj.linear"),
    _separate("Gemma 4 audio", "q_proj.linear", "k_proj.linear", "v_proj.linear", "post.linear"),
    _separate("Gemma 3n audio", "attn.q_proj", "attn.k_proj", "attn.v_proj", "post", in_attention=True),
    _separate("BERT", "self.query", "self.key", "self.value", "output.dense", in_attention=True),  # and RoBERTa
    _separate("DeBERTa-v2", "self.query_proj", "self.key_proj", "self.value_proj", "output.dense", in_attention=True),
    _separate(
        "ViT on disk",  # and DeiT
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
    ),
    _separate(
        "CvT",
        "attention.projection_query",
        "attention.projection_key",
        "attention.projection_value",
        "output.dense",
        in_attention=True,
    ),
    _separate("query/key/value/out", "query", "key", "value", "out"),
    _separate("ALBERT", "query", "key", "value", "dense"),  # and TVP
    _separate("Pix2Struct", "query", "key", "value", "output"),
    _separate("PVT v2", "query", "key", "value", "proj"),
    _separate("ProphetNet", "query_proj", "key_proj", "value_proj", "out_proj"),
    _separate("wq/wk/wv/wo", "wq", "wk", "wv", "wo"),
    _separate("Sapiens 2 on disk", "wq", "wk", "wv", "proj"),
    _separate("CTRL", "Wq", "Wk", "Wv", "dense"),
    _separate("T5", "q", "k", "v", "o", in_attention=True),  # and MPNet
    _separate("DistilBERT", "q_lin", "k_lin", "v_lin", "out_lin"),  # and XLM
    _separate("ESPnet", "linear_q", "linear_k", "linear_v", "linear_out"),  # conformers
    _separate("CPM-Ant", "project_q", "project_k", "project_v", "attention_out"),
    _separate("Funnel", "q_head", "k_head", "v_head", "post_proj"),
    _separate("diffusers", "to_q", "to_k", "to_v", "to_out.0"),
    _fused("nn.MultiheadAttention", "in_proj_weight", "out_proj.weight"),
    _row(
        "nn.MultiheadAttention with kdim or vdim",
        *("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"),
    ),
    _separate("GPT-2 cross-attention", "q_attn", "c_attn", "c_attn", "c_proj"),
    _fused("GPT-BigCode", "c_attn.weight", "c_proj.weight", order="groups", types="gpt_bigcode"),
    _fused("GPT-2", "c_attn.weight", "c_proj.weight"),
    _fused("Bailing", "query_key_value.weight", "dense.weight", types=r"bailing\w*"),
    _fused("GPT-NeoX", "attention.query_key_value.weight", "attention.dense.weight", order="heads"),
    _fused("Falcon", "query_key_value.weight", "dense.weight", order="groups"),  # and BLOOM, Persimmon
    _fused("DeBERTa", "self.in_proj.weight", "output.dense.weight", order="heads", in_attention=True),
    _fused("CodeGen", "qkv_proj.weight", "out_proj.weight", sequence="qvk", slices=4, types="codegen"),
    _fused("timm", "qkv.weight", "proj.weight"),
    _fused("Phi-3", "qkv_proj.weight", "o_proj.weight"),
    _fused("ModernBERT", "Wqkv.weight", "Wo.weight"),
    _fused("MPT", "Wqkv.weight", "out_proj.weight"),
    _fused("TimeSformer", "attention.qkv.weight", "output.dense.weight", in_attention=True),
    _fused("Bark", "att_proj.weight", "out_proj.weight"),
)

# Attributes of a module and keys of a config that state numbers of heads.
NUM_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "conf_num_attention_heads")
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
ATTENTION_NAME = re.compile(
    r"att(n|ention)|(^|\.)([qkv]_(proj|lin|head)|linear_[qkv]|to_[qkv]|query|key|value|qkv|w[qkv])(\.|$)", re.IGNORECASE
)
QK_NORM = re.compile(r"(q|k|query|key)_?(layer_?)?norm\.weight$", re.IGNORECASE)
QK_NORM_MODULE = re.compile(r"(^|\.)(qk|q|k|query|key)_?(layer_?)?norm$", re.IGNORECASE)  # it may have no weights
COSINE_SCALE = re.compile(r"(^|\.)logit_scale$")
ROTARY_CONFIG = ("rope_parameters", "rope_theta", "rope_scaling", "rotary_pct", "rotary_dim")
ROTARY_TYPES = ("lightglue", "roformer", "vjepa2")  # model types whose configs do not say that positions are rotated
NOT_MISSED_NAME = re.compile(rf"relative|position|{COSINE_SCALE.pattern}", re.IGNORECASE)  # and not missed
CROSS_NAME = re.compile(r"cross|enc_?dec|encoder_attn|multihead_attn$|^(attn2|x_attn)$", re.IGNORECASE)
CROSS_PATH = re.compile(r"(^|\.)(pre_assign_attn\.|cross_attention\.attention$)")  # GroupViT's groups; Perceiver
OUTPUT_GATE = re.compile(r"(^|\.)(g_proj|(attn_|output_|out_)?gate(_proj)?)\.weight$")
QUERY_SCALE = re.compile(r"(^|\.)(per_dim_scale|scaling)$")  # a learned factor for every dimension of a head
VALUE_SCALE = ("attention_value_scale", "v_scale", "mla_scale_kv_lora")
QUERIES_OF_THEIR_OWN = re.compile(
    r"(probe|latents|latent_queries|latent_query|pooling_attention_query)"
)  # learned tokens that read the sequence

# What the products K Qᵀ and V Oᵀ leave out, in the order of the notes. Each row has a pattern for names of weights
# below the attention module, a pattern for classes of the modules below it and of its block, and the note. A pattern
# is None where no such name or class tells.
LEFT_OUT: tuple[tuple[re.Pattern[str] | None, re.Pattern[str] | None, str], ...] = (
    (
        re.compile(r"(^|\.)(\w*sub_norm|inner_\w*(ln|norm)|attn_sub\w*|o_norm)\.weight$"),
        None,
        "inner norm: what the heads have read is normed before W_O; V Oᵀ is without that norm",
    ),
    (
        re.compile(
            r"(^|\.)(bbox_projection|pe_k|emb_rel_k|linear_pos"
            r"|relative_\w*proj|pos_proj|pos_bias_[uv]|rel_\w+|r_proj|r_kernel|distance_\w+)"
        ),
        re.compile(r"^Bros|^SpeechT5EncoderLayer$|^SEWDAttention$|^Lilt|^LayoutLMv[23]"),
        "positions: scores have terms of relative positions, which K Qᵀ does not contain",
    ),
    (
        re.compile(r"(^|\.)[qkv]_\w*conv\w*\."),
        None,
        "convolution: keys and values are convolved along the tokens after projection; K Qᵀ is before",
    ),
    (
        re.compile(r"(^|\.)convolution_projection_\w+\."),
        None,
        "convolution: queries, keys and values read tokens that are convolved with their neighbours",
    ),
    (
        re.compile(r"(^|\.)dt_proj\.weight$"),  # Doge
        None,
        "value bias: the scores of every key have a term made from its value, which K Qᵀ does not contain",
    ),
    (
        None,
        re.compile(r"MergedAttention$|^MuseGlimmerAssistantAttention$"),
        "merged: the same weights also read the other sequence's keys and values, in the same softmax",
    ),
    (
        None,
        re.compile(r"^ProphetNetNgramSelfAttention$"),
        "streams: further streams of queries have scores of their own, beside those of K Qᵀ",
    ),
    (
        None,
        re.compile(r"^FunnelRelMultiheadAttention$|^HieraMaskUnitAttention$"),
        "pooled: in some layers queries are pooled over neighbouring tokens, before or after projection",
    ),
    (
        re.compile(r"(^|\.)indexer\."),  # weights that choose the tokens to attend to
        re.compile(
            r"Gemma(4|3n)Audio|Longformer|LED|BigBird|LocalSelfAttention|LocalAttention|TransientGlobal|ProbSparse"
            r"|GlobalLocal"
        ),
        "sparse: a token attends to some others only, in blocks or by choice, with the scores of K Qᵀ",
    ),
    (re.compile(r"(^|\.)sinks?$"), None, "sink: a learned score without a value takes part in the softmax"),
    (
        re.compile(r"(^|\.)(convolution_projection_key|sr|sequence_reduction|spatial_reduction)(\.|$)"),
        None,
        "reduced: keys and values read a shorter sequence, made from the same tokens",
    ),
)

# Signs of layers whose scores are no softmax: linear attention, delta rules, state spaces. The names are those of
# weights of the attention module itself.
NOT_SOFTMAX_NAME = re.compile(r"(A_log|dt_bias|([qkv]_)?conv1d(\.weight)?|slope_rate)")
NOT_SOFTMAX_PATH = re.compile(r"(^|\.)downsample\.assign$")  # GroupViT's choice of a group, by name where no class is
NOT_SOFTMAX_CLASS = re.compile(
    r"Delta(Net|Attention)|Linear(Self)?Attention|Lightning|Retention|Mamba|Rwkv|RWKV|Recurrent"
    r"|Assign|AutoformerAttention|Nystromformer|^Mra|^Yoso"
)

# Signs of what is refused.
QUANTISED_CLASS = re.compile(r"4bit|8bit|Quant|WQLinear|HQQ|FP8|Int8", re.IGNORECASE)
QUANTISED_NAME = re.compile(
    r"\.(qweight|qzeros|g_idx|W_q|SCB|weight_scale(_inv)?|weight_packed|weight\.(absmax|quant_map|quant_state\..*))$"
)
ATTENTION_EXPERTS = re.compile(r"att(n|ention)[^.]*\.(.+\.)?experts?\.", re.IGNORECASE)
OTHER_ORDER_TYPES = ("diffllama",)  # shares names with a row of the table, not its order
DIFFERENTIAL_NAME = re.compile(r"(^|\.)lambda_[qk]1$")  # a difference of two softmaxes, over values of two heads
