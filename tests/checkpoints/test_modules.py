"""Modules are named as transformers has them in memory, for architectures that it renames on loading, too."""

import pytest
import torch
from tests.checkpoints.planted import plant

from rankrise.checkpoints import diff, extract_lora, open_checkpoint
from rankrise.checkpoints.match._modules import find_modules

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64,
        "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
DECODER = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
IMAGE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16,
         "patch_size": 8}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
STAGES = {"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 16, "image_size": 32, "patch_size": 4, "window_size": 4}
SEGFORMER = {"depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2]}
QWEN_VISION = {"embed_dim": 32, "hidden_size": 32, "depth": 1, "num_heads": 4, "patch_size": 8, "out_hidden_size": 32}
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
ONE_TOWER = {
    "gpt_neox": ("GPTNeoXForCausalLM", TEXT),
    "mixtral": ("MixtralForCausalLM", DECODER | EXPERTS),
    "qwen3_moe": ("Qwen3MoeForCausalLM", DECODER | EXPERTS),
    "roberta": ("RobertaForSequenceClassification", TEXT),
    "beit": ("BeitForImageClassification", IMAGE),
    "deit": ("DeiTForImageClassification", IMAGE),
    "vit_mae": ("ViTMAEModel", IMAGE),
    "dinov2": ("Dinov2ForImageClassification", IMAGE),
    "dinov3_vit": ("DINOv3ViTModel", IMAGE),
    "swin": ("SwinForImageClassification", STAGES),
    "segformer": ("SegformerForImageClassification", SEGFORMER),
}
TWO_TOWERS = {
    "llava": ("LlavaForConditionalGeneration", DECODER, IMAGE),
    "gemma3": ("Gemma3ForConditionalGeneration", DECODER, IMAGE),
    "mistral3": ("Mistral3ForConditionalGeneration", DECODER, IMAGE),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", DECODER | MROPE, QWEN_VISION),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", DECODER | MROPE, QWEN_VISION),
    "clip": ("CLIPModel", TEXT, IMAGE),
}


def build(name):
    import transformers

    standard = transformers.AutoConfig.for_model(name)
    if name in ONE_TOWER:
        architecture, sizes = ONE_TOWER[name]
        config = type(standard)(**sizes)
    else:
        architecture, text, vision = TWO_TOWERS[name]
        text = {key: value for key, value in standard.text_config.to_dict().items() if key != "layer_types"} | text
        config = type(standard)(text_config=text, vision_config=standard.vision_config.to_dict() | vision)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, architecture)(config).eval()


@pytest.mark.parametrize("name", [*ONE_TOWER, *TWO_TOWERS])
def test_what_can_be_adapted_is_linear_in_memory_and_has_its_name(tmp_path, name):
    model = build(name)
    model.save_pretrained(tmp_path)
    modules = dict(model.named_modules())
    found = {module.name for module in find_modules(open_checkpoint(tmp_path)).values() if module.is_adaptable}
    linear = {n for n, module in modules.items() if isinstance(module, torch.nn.Linear)}
    tied = {key.removesuffix(".weight") for key in model.all_tied_weights_keys}
    assert found <= linear
    assert linear - found <= tied


@pytest.mark.parametrize("name", ["gpt_neox", "mixtral", "beit", "swin", "gemma3"])
def test_adapters_of_renamed_models_load_in_peft(tmp_path, name):
    """The rank-2 change of three weights comes back through PEFT, and `diff` reads the adapter on its base."""
    model = build(name)
    model.save_pretrained(tmp_path / "base")
    generator = torch.Generator().manual_seed(0)
    last = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "vision" not in n][-4:-1]
    with torch.no_grad():
        for module in last:
            weight = model.get_parameter(f"{module}.weight")
            weight.copy_(plant(weight, 2, 0.3, generator))
    model.save_pretrained(tmp_path / "tuned")
    done = extract_lora(tmp_path / "base", tmp_path / "tuned", out=tmp_path / "a", floor=True, verify=True)
    assert done.advice.ranks == dict.fromkeys(sorted(last), 2)
    assert done.logits.relative_error < 1e-3
    rows = [row for row in diff(tmp_path / "base", tmp_path / "a").weights() if row.status == "changed"]
    assert len(rows) == 3
    assert {row.energy_rank_99 for row in rows} == {2}


def test_a_router_is_no_linear_layer(tmp_path):
    build("qwen3_moe").save_pretrained(tmp_path)
    kinds = {module.name: module.kind for module in find_modules(open_checkpoint(tmp_path)).values()}
    assert kinds["model.layers.0.mlp.gate"] == "router"
    assert kinds["model.layers.0.self_attn.q_proj"] == "linear"


def test_names_that_transformers_changes_in_another_way_are_refused_before_writing(tmp_path):
    """Nomic's fused q|k|v is split on loading, and PEFT would leave out what it does not find."""
    import transformers

    sizes = {**TEXT, "n_embd": 32, "n_head": 4, "n_layer": 1, "n_inner": 48}
    config = transformers.AutoConfig.for_model("nomic_bert")
    model = transformers.NomicBertForSequenceClassification(type(config)(**sizes))
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(plant(parameter, 1, 0.1, torch.Generator().manual_seed(0)))
    model.save_pretrained(tmp_path / "tuned")
    with pytest.raises(ValueError, match=r"Modules must be named as they are in memory; NomicBert.* has no .*Wqkv"):
        extract_lora(tmp_path / "base", tmp_path / "tuned", out=tmp_path / "a", rank=1, verify=True)
    assert not (tmp_path / "a").exists()
