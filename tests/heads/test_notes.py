"""Notes say where a product is not the whole bilinear form; what is not understood is refused with what to do."""

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.heads.oracles import SeparateAttention, TimmAttention
from torch import nn

from rankrise.heads import LAYOUTS, resolve

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


REFUSED_TEXT = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2, "num_hidden_layers": 1}
REFUSED_SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 8}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (nn.Linear(3, 4), r"in Linear; it has the weights 'weight'"),
        (nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))), r"'3\.weight' and 5 more"),
        (nn.ReLU(), "in ReLU; it has no weights"),
        ({}, "in the state dict; it has no weights"),
        ({"attn.Q": torch.zeros(4, 4), "mlp": torch.zeros(4, 4)}, r"the state dict; it has the weights 'attn\.Q'\. "),
    ],
)
def test_no_attention(source, found):
    with pytest.raises(ValueError, match=found) as refusal:
        resolve(source)
    assert all(layout.name in str(refusal.value) for layout in LAYOUTS)
    assert "describe another with `heads=Layout(" in str(refusal.value)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # on importing the model
def test_gpt_bigcode_shares_names_with_gpt2_and_not_the_order():
    sizes = {"n_embd": 16, "n_head": 4, "n_layer": 1, "vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPTBigCodeConfig(**sizes, multi_query=True)
    state = transformers.GPTBigCodeForCausalLM(config).state_dict()
    assert resolve(state, config=config.to_dict()).scheme == "GPT-BigCode"
    (layer,) = resolve(state, num_heads=4)  # only shapes tell of the one key head
    assert layer.roles == resolve(state, config=config.to_dict()).layers[0].roles


def test_differential_attention_has_no_product_of_one_head():
    config = transformers.DiffLlamaConfig(**REFUSED_TEXT, **REFUSED_SIZES, num_key_value_heads=2)
    model = transformers.DiffLlamaModel(config)
    for source in (model, model.layers[0].self_attn):
        with pytest.raises(ValueError, match="differential attention"):
            resolve(source)
    with pytest.raises(ValueError, match=r"'layers\.0\.self_attn' is differential attention .it has .*lambda_q1"):
        resolve(model.state_dict(), num_heads=4)
    state = {name: tensor for name, tensor in model.state_dict().items() if "lambda" not in name}
    with pytest.raises(ValueError, match="known order; diffllama has its own"):
        resolve(state, config=config.to_dict())


def test_gated_queries_are_not_taken_for_wide_heads():
    """Qwen3-Next projects queries and gates in one `q_proj` of twice the width."""
    state = {f"self_attn.{p}_proj.weight": torch.zeros(n, 16) for p, n in (("q", 32), ("k", 8), ("v", 8))}
    state["self_attn.o_proj.weight"] = torch.zeros(16, 16)
    with pytest.raises(ValueError, match="heads of dimension 4, as the module or config states"):
        resolve(state, config={"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 4})
    with pytest.raises(ValueError, match=r"'self_attn\.o_proj\.weight' must divide evenly|key heads"):
        resolve(state, config={"num_attention_heads": 4, "num_key_value_heads": 2})


class Linear4bit(nn.Linear):
    """A stand-in by name: bitsandbytes is not imported."""


class QuantLinear(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(a // 8, b, dtype=torch.int32))


@pytest.mark.parametrize(("linear", "found"), [(Linear4bit, "'query' is quantised .Linear4bit"), (QuantLinear, "GPTQ")])
def test_quantised_modules(linear, found):
    with pytest.raises(ValueError, match=rf"must be floating-point matrices; .*{found}.*Dequantise"):
        resolve(SeparateAttention(8, 2, linear=linear))


@pytest.mark.parametrize(
    "suffix", ["qweight", "weight.absmax", "weight.quant_state.bitsandbytes__nf4", "weight_scale_inv"]
)
def test_quantised_files(suffix):
    state = {f"h.0.attn.{name}.{suffix}": torch.zeros(2, 2) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    with pytest.raises(ValueError, match="quantised"):
        resolve(state, num_heads=2)


def test_integer_weights_are_quantised():
    state = {name: tensor.to(torch.int8) for name, tensor in SeparateAttention(8, 2).state_dict().items()}
    with pytest.raises(ValueError, match=r"must hold floating-point numbers; got torch\.int8, so it is quantised"):
        resolve(state, num_heads=2)


def test_experts_in_attention_are_refused_and_elsewhere_welcome():
    model = nn.ModuleDict(
        {"attn": nn.ModuleDict({"experts": nn.ModuleList(SeparateAttention(8, 2) for _ in range(2))})}
    )
    with pytest.raises(ValueError, match=r"'attn\.experts\.0\.query\.weight' belongs to mixture-of-experts attention"):
        resolve(model)
    model = nn.ModuleDict({"attn": SeparateAttention(8, 2), "mlp": nn.ModuleDict({"experts": nn.Linear(8, 8)})})
    assert len(resolve(model)) == 1


@given(st.dictionaries(st.text(max_size=30), st.lists(st.integers(0, 4), max_size=3), max_size=6))
def test_any_names_and_shapes_are_read_or_refused(shapes):
    state = {name: torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match="understood"):
        resolve(state, num_heads=2)


WEIGHTS = ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight", "attn.o_proj.weight")


@given(st.lists(st.lists(st.integers(0, 8), max_size=3), min_size=4, max_size=4), st.integers(1, 4))
def test_any_shapes_of_known_names_are_read_or_refused(shapes, num_heads):
    state = {name: torch.zeros(shape) for name, shape in zip(WEIGHTS, shapes, strict=True)}
    try:
        (layer,) = resolve(state, num_heads=num_heads).layers
    except ValueError:
        return
    for circuit in ("kq", "vo"):
        left, right = layer.factors(circuit, state.__getitem__)
        assert left.shape[0] == right.shape[0] == num_heads
        assert left.shape[2] == right.shape[2]
