"""Folding the norm before attention: against blocks that run their norm and attention themselves."""

import pytest
import torch
import transformers
from tests.heads.oracles import SeparateAttention, assert_same_circuits, without_biases
from torch import nn

from rankrise.heads import Layout, resolve

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
