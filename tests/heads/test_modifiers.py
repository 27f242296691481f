"""What acts on a weight: LoRA as `merge_and_unload` writes it, and the norm before attention as its block runs it."""

import copy

import peft
import pytest
import torch
import transformers
from tests.heads.oracles import SeparateAttention, assert_same_circuits, without_biases
from torch import nn

import rankrise as rr
from rankrise.heads import Layout, resolve
from rankrise.linalg import numerical_rank

D, HEADS = 12, 4
TEXT = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_hidden_layers": 1}
SIZES = {"hidden_size": D, "num_attention_heads": HEADS, "intermediate_size": 8, "attn_implementation": "eager"}
GROUPED = {**TEXT, **SIZES, "num_key_value_heads": 2, "head_dim": 4}


def unit_variance(x):
    return x / x.var(dim=-1, keepdim=True, unbiased=False).sqrt()


def unit_square(x):
    return x / x.square().mean(dim=-1, keepdim=True).sqrt()


def rotary(norm, attention):
    def attend(x):
        positions = torch.ones(*x.shape[:2], 4, dtype=x.dtype), torch.zeros(*x.shape[:2], 4, dtype=x.dtype)
        out, probabilities = attention(norm(x), attention_mask=None, position_embeddings=positions)
        return probabilities, out

    return attend


def plain(norm, attention):
    def attend(x):
        out, probabilities = attention(norm(x))
        return probabilities, out

    return attend


def test_layer_norm_of_gpt2():
    options = {"n_layer": 1, "n_embd": D, "n_head": HEADS, "vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(**options, attn_implementation="eager", layer_norm_epsilon=1e-12)
    model = without_biases(transformers.GPT2Model(config))
    (layer,) = resolve(model, fold_norm=True).layers
    assert layer.parameters()[-2:] == ("h.0.ln_1.weight", "h.0.attn.c_proj.weight")
    attend = plain(model.h[0].ln_1, model.h[0].attn)
    assert_same_circuits(layer, model, attend, D, unit=unit_variance)
    with pytest.raises(AssertionError):
        assert_same_circuits(resolve(model).layers[0], model, attend, D, unit=unit_variance)


def test_layer_norm_of_vit():
    sizes = {**SIZES, "num_hidden_layers": 1}
    model = without_biases(transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=8, patch_size=4)))
    block = model.layers[0]
    attend = plain(block.layernorm_before, block.attention)
    assert_same_circuits(resolve(model, fold_norm=True).layers[0], model, attend, D, unit=unit_variance)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2"])
def test_rms_norm(name):
    kind = getattr(transformers, f"{name}ForCausalLM")
    model = without_biases(kind(kind.config_class(**GROUPED, rms_norm_eps=1e-12)))
    block = model.model.layers[0]
    for norm in ("q_norm", "k_norm"):
        if hasattr(block.self_attn, norm):
            setattr(block.self_attn, norm, nn.Identity())
    if name == "Gemma2":
        block.self_attn.attn_logit_softcapping = None
    attend = rotary(block.input_layernorm, block.self_attn)
    (layer,) = resolve(model, fold_norm=True).layers
    assert_same_circuits(layer, model, attend, D, unit=unit_square, scale=block.self_attn.scaling)


def test_torch_layer_is_folded_only_where_its_norm_comes_first():
    options = {"batch_first": True, "norm_first": True, "layer_norm_eps": 0.0}
    first = without_biases(nn.TransformerEncoderLayer(D, HEADS, 8, **options))
    (layer,) = resolve(first, fold_norm=True).layers

    def attend(x):
        x = first.norm1(x).nan_to_num(0.0)  # the zero token
        out, probabilities = first.self_attn(x, x, x, average_attn_weights=False)
        return probabilities, out

    assert_same_circuits(layer, first, attend, D, unit=unit_variance)
    last = nn.TransformerEncoderLayer(D, HEADS, 8, batch_first=True)
    assert not any(note.startswith("norm") for note in resolve(last).notes)
    with pytest.raises(ValueError, match=r"`fold_norm` needs a norm before the attention 'self_attn'; none was found"):
        resolve(last, fold_norm=True)


def test_a_state_dict_tells_only_so_much():
    state = nn.TransformerEncoderLayer(D, HEADS, 8, norm_first=True, batch_first=True).state_dict()
    with pytest.raises(ValueError, match="none was found"):
        resolve(state, num_heads=HEADS, fold_norm=True)
    folded = resolve(state, num_heads=HEADS, config={"norm_first": True}, fold_norm=True).layers[0].roles["k"].norm
    assert (folded.parameter, folded.centred) == ("norm1.weight", True)
    state = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).state_dict()
    with pytest.raises(ValueError, match=r"its gain; got a state dict that does not tell, known are LayerNorm"):
        resolve(state, num_heads=HEADS, fold_norm=True)
    told = {"num_attention_heads": HEADS, "model_type": "llama"}
    assert not resolve(state, config=told, fold_norm=True).layers[0].roles["k"].norm.centred


def test_post_norm_models_are_refused():
    model = transformers.BertModel(transformers.BertConfig(**TEXT, **SIZES))
    with pytest.raises(ValueError, match="a post-norm model has none"):
        resolve(model, fold_norm=True)


OPENAI = {"n_layer": 1, "n_embd": D, "n_head": HEADS, "vocab_size": 11}
SWIN = {"image_size": 8, "patch_size": 2, "embed_dim": D, "depths": [1], "num_heads": [HEADS], "window_size": 2}


def refused(source, **options):
    with pytest.raises(ValueError, match=r"needs a norm before the attention .* none was found"):
        resolve(source, **options, fold_norm=True)
    return not any(note.startswith("norm") for note in resolve(source, **options).notes)


def test_openai_gpt_has_the_names_of_gpt2_after_attention():
    config = transformers.OpenAIGPTConfig(**OPENAI)
    model = transformers.OpenAIGPTModel(config)
    assert refused(model)
    assert refused(model.h[0])
    assert refused(model.state_dict(), config=config.to_dict())
    assert refused(model.state_dict(), num_heads=HEADS)  # GPT-2 with the end cut off, for all its names tell
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(**OPENAI, bos_token_id=1, eos_token_id=2))
    folded = resolve(gpt2.state_dict(), num_heads=HEADS, fold_norm=True).layers[0].roles["k"].norm
    assert folded.parameter == "h.0.ln_1.weight"


def test_swin_v2_norms_after_attention_and_swin_before():
    model = transformers.Swinv2Model(transformers.Swinv2Config(**SWIN))
    assert refused(model)
    assert refused(model.state_dict(), num_heads=HEADS)
    (layer,) = resolve(transformers.SwinModel(transformers.SwinConfig(**SWIN)), fold_norm=True)
    assert layer.roles["k"].norm.parameter.endswith("layernorm_before.weight")


@pytest.mark.parametrize("name", ["ResPostBlock", "SwinTransformerV2CrBlock", "TwoWayAttentionBlock", "Swinv2Layer"])
def test_blocks_with_the_name_after_attention(name):
    kind = type(name, (Block,), {})
    assert refused(kind(nn.LayerNorm(D)))
    assert refused(type("Mine", (kind,), {})(nn.LayerNorm(D)))


@pytest.mark.parametrize("flag", ["norm_first", "normalize_before"])
def test_a_block_that_says_where_its_norm_is(flag):
    block = Block(nn.LayerNorm(D))
    setattr(block, flag, False)
    assert refused(block)
    setattr(block, flag, True)
    assert resolve(block, fold_norm=True).layers[0].roles["q"].norm.centred


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm1, self.attn = norm, SeparateAttention(D, HEADS)


class ScaleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))


def test_an_unknown_norm_is_refused_unless_described():
    model = Block(ScaleNorm())
    with pytest.raises(ValueError, match=r"what the norm at 'norm1\.weight' does with its gain; got ScaleNorm"):
        resolve(model, fold_norm=True)
    names = ("query", "key", "value", "out")
    root = nn.ModuleDict({"block": model})
    layout = Layout(*(f"{{layer}}.attn.{name}.weight" for name in names), norm="{layer}.norm1.weight", norm_kind="rms")
    (layer,) = resolve(root, layout, fold_norm=True).layers
    assert layer.roles["v"].norm.parameter == "block.norm1.weight"
    assert layer.roles["o"].norm is None
    assert any("folded in" in note for note in layer.notes)


ADAPTED_TEXT = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = transformers.LlamaConfig(
    **ADAPTED_TEXT,
    hidden_size=12,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=2,
    intermediate_size=8,
)
GPT2 = transformers.GPT2Config(**ADAPTED_TEXT, n_embd=12, n_head=4, n_layer=2)


class Torch(nn.Module):
    def __init__(self, _=None):
        super().__init__()
        self.attn, self.config = nn.MultiheadAttention(12, 4, batch_first=True), {"model_type": "own"}

    def forward(self, x):
        return self.attn(x, x, x)


CASES = {
    "Llama": (transformers.LlamaForCausalLM, LLAMA, {"target_modules": ["q_proj", "v_proj", "o_proj"]}),
    "Llama, rsLoRA": (transformers.LlamaForCausalLM, LLAMA, {"target_modules": ["k_proj"], "use_rslora": True}),
    "GPT-2": (
        transformers.GPT2LMHeadModel,
        GPT2,
        {"target_modules": ["c_attn", "attn.c_proj"], "fan_in_fan_out": True},
    ),
}


def adapted(kind, config, options, seed=0):
    """A model with random adapters (PEFT starts B at zero)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = peft.get_peft_model(kind(config), peft.LoraConfig(r=3, lora_alpha=7, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model.double()


@pytest.mark.parametrize("name", CASES)
def test_weights_in_effect_are_those_after_merging(name):
    model = adapted(*CASES[name])
    merged = copy.deepcopy(model).merge_and_unload()
    before, after = resolve(model), resolve(merged)
    assert [layer.name for layer in before] == [layer.name for layer in after]
    assert any("PEFT" in note for note in before.notes)
    for layer, plain in zip(before, after, strict=True):
        assert set(layer.parameters()) <= set(dict(model.named_parameters()))
        for circuit in ("kq", "vo"):
            for got, want in zip(
                layer.factors(circuit, model.get_parameter), plain.factors(circuit, merged.get_parameter), strict=True
            ):
                torch.testing.assert_close(got, want.double(), rtol=1e-10, atol=1e-10)


def test_products_are_those_of_the_adapted_forward():
    config = copy.deepcopy(GPT2)
    config._attn_implementation = "eager"
    model = without_biases(adapted(transformers.GPT2LMHeadModel, config, CASES["GPT-2"][2]))
    attention = model.base_model.model.transformer.h[1].attn

    def attend(x):
        out, probabilities = attention(x)
        return probabilities, out

    assert_same_circuits(resolve(model).layers[1], model, attend, 12)


def test_a_change_of_the_adapter_has_its_rank():
    model = adapted(*CASES["Llama"]).float()
    head_map = resolve(model)
    start = head_map.snapshot(model)
    layer = head_map.layers[0]
    before = dict(start)
    for name in start:
        if ".lora_B." in name:
            before[name] = torch.zeros_like(start[name])
    now, then = layer.factors("kq", start.__getitem__), layer.factors("kq", before.__getitem__)
    sigma = rr.delta_spectrum(*now, *then)  # only queries are adapted: head dimension 3, adapter rank 3
    assert numerical_rank(sigma, rtol=1e-9).tolist() == [3] * 4


@pytest.mark.parametrize("state", ["merged", "disabled"])
def test_merged_and_disabled_adapters_are_not_added(state):
    model = adapted(*CASES["Llama"])
    if state == "merged":
        model.merge_adapter()
    else:
        model.base_model.disable_adapter_layers()
    assert all(view.adapters == () for layer in resolve(model) for view in layer.views)


def test_only_active_adapters_count():
    model = adapted(*CASES["Llama"])
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    (update,) = resolve(model).layers[0].roles["q"].adapters
    assert "default" in update.a
    model.set_adapter("second")
    (update,) = resolve(model).layers[0].roles["q"].adapters
    assert "second" in update.a
    assert resolve(model).layers[0].roles["v"].adapters == ()


@pytest.mark.parametrize("name", ["Llama", "Llama, rsLoRA", "GPT-2"])
def test_a_state_dict_needs_the_scale(name):
    kind, config, options = CASES[name]
    model = adapted(kind, config, options)
    state = model.state_dict()
    with pytest.raises(ValueError, match=r"The scale of the adapter on .* must be known"):
        resolve(state, num_heads=4)
    told = {"num_attention_heads": 4, "lora_alpha": 7, "use_rslora": options.get("use_rslora", False)}
    assert [layer.views for layer in resolve(state, config=told)] == [layer.views for layer in resolve(model)]


def test_other_adapters_are_refused_by_name():
    model = peft.get_peft_model(
        transformers.LlamaForCausalLM(LLAMA), peft.LoraConfig(use_dora=True, target_modules=["q_proj"])
    )
    with pytest.raises(ValueError, match=r"must be plain LoRA.*self_attn\.q_proj.*lora_magnitude_vector.*Merge"):
        resolve(model)
    options = {"target_modules": ["k_proj"], "feedforward_modules": []}
    model = peft.get_peft_model(transformers.LlamaForCausalLM(LLAMA), peft.IA3Config(**options))
    with pytest.raises(ValueError, match=r"must be plain LoRA.*ia3_l"):
        resolve(model)


@pytest.mark.parametrize("target", ["attn", "out_proj"])
def test_adapters_of_torch_attention_are_refused(target):
    """PEFT 0.21 adds the update of `out_proj` twice, in the forward too, or never if only `out_proj` is targeted."""
    model = adapted(Torch, None, {"target_modules": [target]})
    with pytest.raises(ValueError, match=r"adds that of an nn\.MultiheadAttention .*peft#3774"):
        resolve(model)
    merged = model.merge_and_unload()
    assert resolve(merged).layers[0].roles["o"].adapters == ()


def test_half_an_adapter_is_refused():
    state = adapted(*CASES["Llama"]).state_dict()
    del state[next(name for name in state if ".lora_B." in name)]
    with pytest.raises(ValueError, match=r"must have both lora_A and lora_B; 'default' on '.*q_proj' has only lora_A"):
        resolve(state, config={"num_attention_heads": 4, "lora_alpha": 7})


def test_an_adapter_without_its_base_is_refused():
    model = adapted(*CASES["Llama"])
    with pytest.raises(ValueError, match="it has adapters without their base"):
        resolve(peft.get_peft_model_state_dict(model), num_heads=4)
