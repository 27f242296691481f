"""Tiny models of many families: what each needs in its config, and what `rankrise lora` is to make of a tuned one."""

from dataclasses import dataclass, field
from typing import Any

import torch

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2}
HEADED = GROUPED | {"head_dim": 8}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
EXPERTS = HEADED | {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
ROUTED = HEADED | {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
                   "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}  # fmt: skip
IMAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
         "patch_size": 8, "num_channels": 3}  # fmt: skip
SIDES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96,
         "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 1, "forced_eos_token_id": 2}  # fmt: skip
SEES = {"image_token_id": 90, "image_token_index": 90, "video_token_id": 91, "vision_start_token_id": 92,
        "vision_end_token_id": 93}  # fmt: skip
ROTARY_VL = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}


@dataclass(frozen=True)
class Family:
    """One kind of model, tiny, and how it is stored."""

    model_type: str
    config: dict[str, Any]
    auto: str = "AutoModelForCausalLM"
    dtype: torch.dtype = torch.float32
    shard_size: str = "5GB"
    tied: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique among the families."""
        parts = [self.model_type, self.auto.removeprefix("AutoModelFor"), str(self.dtype).removeprefix("torch.")]
        return "-".join([*parts, *(["sharded"] if self.shard_size != "5GB" else []), *(["tied"] if self.tied else [])])

    def build(self) -> Any:
        """The model with random weights."""
        import transformers

        torch.manual_seed(0)
        options = self.config if self.tied is None else self.config | {"tie_word_embeddings": self.tied}
        config = transformers.AutoConfig.for_model(self.model_type, **options)
        return getattr(transformers, self.auto).from_config(config).to(self.dtype).eval()


def _dense(*names: str, **options: Any) -> list[Family]:
    return [Family(name, {**HEADED, **options}) for name in names]


BF16, PLAIN, SEEING = torch.bfloat16, "AutoModel", "AutoModelForImageTextToText"
FAMILIES = [
    *_dense("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *_dense("olmo2", "granite", "smollm3", "glm4"),
    Family("llama", HEADED, tied=True),
    Family("llama", HEADED, shard_size="10KB"),
    Family("llama", HEADED, dtype=BF16),
    Family("qwen2", GROUPED, dtype=BF16, tied=True, shard_size="10KB"),
    Family("phi3", GROUPED),
    Family("phi", GROUPED),
    Family("starcoder2", GROUPED),
    Family("stablelm", GROUPED),
    Family("cohere", GROUPED),
    Family("gpt2", GPT2),
    Family("gpt2", GPT2, dtype=BF16),
    Family("gpt_neox", TEXT),
    Family("gpt_neo", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 96,
                       "attention_types": [[["global", "local"], 1]],
                       "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}),
    Family("opt", TEXT | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    Family("qwen3_moe", EXPERTS | {"mlp_only_layers": [0]}),
    Family("qwen3_moe", EXPERTS | {"mlp_only_layers": [0]}, dtype=BF16),
    Family("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 24, "mlp_only_layers": [0]}),
    Family("mixtral", HEADED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("olmoe", EXPERTS),
    Family("deepseek_v3", ROUTED | {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
                                    "v_head_dim": 8, "num_key_value_heads": 4}),
    Family("glm4_moe", ROUTED),
    Family("ernie4_5_moe", HEADED | {"moe_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2,
                                     "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
    Family("gpt_oss", HEADED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("llama4_text", HEADED | {"intermediate_size_mlp": 64, "num_local_experts": 4, "num_experts_per_tok": 1,
                                    "interleave_moe_layer_step": 1, "no_rope_layers": [1, 1]}),
    Family("qwen3_5_moe_text", EXPERTS | {"shared_expert_intermediate_size": 24,
                                          "layer_types": ["linear_attention", "full_attention"]}),
    Family("granitemoe", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("bert", TEXT, "AutoModelForMaskedLM"),
    Family("roberta", TEXT, "AutoModelForMaskedLM"),
    Family("electra", TEXT | {"embedding_size": 32}, "AutoModelForSequenceClassification"),
    Family("vit", IMAGE, "AutoModelForImageClassification"),
    Family("deit", IMAGE, PLAIN),
    Family("dinov2", IMAGE, "AutoModelForImageClassification"),
    Family("beit", IMAGE, "AutoModelForImageClassification"),
    Family("swin", {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 16, "patch_size": 2,
                    "window_size": 2}, "AutoModelForImageClassification"),
    Family("clip", {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16}, PLAIN),
    Family("siglip", {"text_config": TEXT, "vision_config": IMAGE}, PLAIN),
    Family("llava", SEES | {"text_config": {"model_type": "llama", **HEADED}, "vision_config":
                            {"model_type": "clip_vision_model", **IMAGE, "projection_dim": 16}}, SEEING),
    Family("gemma3", SEES | {"text_config": HEADED, "vision_config": IMAGE, "mm_tokens_per_image": 4}, SEEING),
    Family("qwen2_vl", SEES | {"text_config": GROUPED | ROTARY_VL, "vision_config": {"depth": 2, "embed_dim": 32,
                               "num_heads": 2, "hidden_size": 32, "patch_size": 4}}, SEEING),
    Family("qwen2_5_vl", SEES | {"text_config": GROUPED | ROTARY_VL, "vision_config": {"depth": 2, "hidden_size": 32,
                                 "num_heads": 2, "out_hidden_size": 32, "patch_size": 4, "intermediate_size": 48}},
           SEEING),
    Family("bart", SIDES, "AutoModelForSeq2SeqLM"),
    Family("mbart", SIDES, "AutoModelForSeq2SeqLM"),
    Family("pegasus", SIDES, "AutoModelForSeq2SeqLM", dtype=BF16),
    Family("t5", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 96,
                  "decoder_start_token_id": 0}, "AutoModelForSeq2SeqLM"),
    Family("whisper", SIDES | {"num_mel_bins": 8, "max_source_positions": 32, "max_target_positions": 32,
                               "suppress_tokens": [], "begin_suppress_tokens": []}, "AutoModelForSpeechSeq2Seq"),
]  # fmt: skip
