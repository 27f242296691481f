"""Where a product is not the whole bilinear form, the result says so."""

import pytest
import transformers
from tests.heads.oracles import SeparateAttention, TimmAttention
from torch import nn

from rankrise.heads import resolve

TEXT = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_hidden_layers": 1}
SIZES = {"hidden_size": 12, "num_attention_heads": 4, "intermediate_size": 8}
GROUPED = {**TEXT, **SIZES, "num_key_value_heads": 2, "head_dim": 4}


def kinds(source, **options):
    return {note.split(":")[0] for layer in resolve(source, **options) for note in layer.notes}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama", {"RoPE", "norm", "grouped"}),
        ("Qwen2", {"RoPE", "norm", "grouped", "biases"}),
        ("Qwen3", {"RoPE", "norm", "grouped", "QK-norm"}),
    ],
)
def test_language_models(name, expected):
    kind = getattr(transformers, f"{name}ForCausalLM")
    config = kind.config_class(**GROUPED)
    model = kind(config)
    assert kinds(model) == expected
    assert kinds(model.state_dict(), config=config.to_dict()) == expected


def test_models_without_rotation():
    assert kinds(transformers.BertModel(transformers.BertConfig(**TEXT, **SIZES))) == {"biases"}
    gpt2 = {"n_layer": 1, "n_embd": 12, "n_head": 4, "vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
    assert kinds(transformers.GPT2Model(transformers.GPT2Config(**gpt2))) == {"biases", "norm", "fused"}
    neox = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**TEXT, **SIZES))
    assert kinds(neox) == {"RoPE", "biases", "norm", "fused"}


def test_plain_products_have_no_notes():
    model = SeparateAttention(8, 2, linear=lambda a, b: nn.Linear(a, b, bias=False))
    assert resolve(model).notes == ()


def test_query_norm_of_timm():
    attention = TimmAttention(8, 2)
    attention.q_norm = nn.LayerNorm(4)
    assert "QK-norm" in kinds(attention)


def test_cosine_scores_are_a_query_norm():
    swin = {"image_size": 8, "patch_size": 2, "embed_dim": 12, "depths": [1], "num_heads": [4], "window_size": 2}
    model = transformers.Swinv2Model(transformers.Swinv2Config(**swin))
    assert kinds(model) == {"QK-norm", "biases"}
    assert not any(note.startswith("not read") for note in resolve(model).notes)
    assert "QK-norm" not in kinds(nn.ModuleDict({"a": SeparateAttention(8, 2), "logit_scale": nn.Linear(1, 1)}))


def test_torch_biases_for_keys_are_noted():
    assert "biases" in kinds(nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True))


def test_attention_that_was_not_read_is_named():
    model = nn.ModuleDict({"a": SeparateAttention(8, 2), "linear_attn": nn.ModuleDict({"mix": nn.Linear(8, 8)})})
    (note,) = (note for note in resolve(model).notes if note.startswith("not read"))
    assert note == "not read: 1 weights that look like attention, such as 'linear_attn.mix.weight'"


def test_notes_of_all_layers_come_once():
    model = nn.ModuleList(SeparateAttention(8, 2) for _ in range(3))
    assert resolve(model).notes == ("biases: projections have biases, which no product contains",)


def test_vision_tower_beside_a_rotary_language_model_is_not_rotary():
    class Rotary(nn.Module):
        pass

    class RotaryAttention(SeparateAttention):
        def __init__(self):
            super().__init__(8, 2)
            self.rope = Rotary()

    model = nn.ModuleDict({"text": RotaryAttention(), "vision": SeparateAttention(8, 2)})
    rotary = {layer.name: any("RoPE" in note for note in layer.notes) for layer in resolve(model)}
    assert rotary == {"text": True, "vision": False}
