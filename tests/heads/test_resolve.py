"""The resolver against each architecture's own forward, in memory's and in the disk's names."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.heads.oracles import SeparateAttention, TimmAttention, assert_same_circuits, without_biases
from torch import nn
from transformers.pytorch_utils import Conv1D

from rankrise.heads import LAYOUTS, Layout, resolve

D, HEADS = 12, 4


def attend_with(attention, **options):
    def attend(x):
        out, probabilities = attention(x, **options)
        return probabilities, out

    return attend


def attend_at_distance_zero(attention, rotary_dim):
    """Rotary attention with all tokens at position 0, where the rotation is the identity."""

    def attend(x):
        shape = (len(x), x.shape[1], rotary_dim)
        positions = torch.ones(shape, dtype=x.dtype), torch.zeros(shape, dtype=x.dtype)
        out, probabilities = attention(x, attention_mask=None, position_embeddings=positions)
        return probabilities, out

    return attend


def attend_bert(attention):
    def attend(x):
        context, probabilities = attention.self(x)
        return probabilities, attention.output.dense(context)

    return attend


COMMON = {
    "num_hidden_layers": 2,
    "hidden_size": D,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
    "attn_implementation": "eager",
}
TEXT = {**COMMON, "vocab_size": 11, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {**COMMON, "image_size": 8, "patch_size": 4}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 4}  # 4 * 4 is not D
GPT2 = {"n_layer": 2, "n_embd": D, "n_head": HEADS, "vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
EAGER = {"attn_implementation": "eager"}

# model, config, path of attention in layer 1, how to feed it
ARCHITECTURES = {
    "ViT": ("ViTModel", IMAGE, "layers.1.attention", attend_with),
    "DeiT": ("DeiTModel", IMAGE, "layers.1.attention", attend_with),
    "BERT": ("BertModel", TEXT, "encoder.layer.1.attention", attend_bert),
    "RoBERTa": ("RobertaModel", TEXT, "encoder.layer.1.attention", attend_bert),
    "GPT-2": ("GPT2LMHeadModel", {**GPT2, **EAGER}, "transformer.h.1.attn", attend_with),
    "GPT-NeoX": ("GPTNeoXForCausalLM", TEXT, "gpt_neox.layers.1.attention", lambda a: attend_at_distance_zero(a, 2)),
    "CLIP": ("CLIPVisionModel", IMAGE, "encoder.layers.1.self_attn", attend_with),
    "Phi-3": (
        "Phi3ForCausalLM",
        {**GROUPED, "head_dim": 3},
        "model.layers.1.self_attn",
        lambda a: attend_at_distance_zero(a, 2),
    ),
    **{
        name: (f"{name}ForCausalLM", GROUPED, "model.layers.1.self_attn", lambda a: attend_at_distance_zero(a, 4))
        for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral")
    },
    "multi-query Llama": (
        "LlamaForCausalLM",
        {**GROUPED, "num_key_value_heads": 1},
        "model.layers.1.self_attn",
        lambda a: attend_at_distance_zero(a, 4),
    ),
}


def build(name):
    kind, options, path, feed = ARCHITECTURES[name]
    config = getattr(transformers, kind).config_class(**options)
    with torch.random.fork_rng():
        model = without_biases(getattr(transformers, kind)(config))
    attention = model.get_submodule(path)
    for norm in ("q_norm", "k_norm"):
        if hasattr(attention, norm):
            setattr(attention, norm, nn.Identity())  # not bilinear
    return model, attention, path, feed


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_products_are_those_of_the_forward(name):
    model, attention, path, feed = build(name)
    head_map = resolve(model)
    layer = head_map.layers[1]
    assert [(layer.index, layer.num_heads) for layer in head_map.layers] == [(0, HEADS), (1, HEADS)]
    assert layer.name == path
    assert set(layer.parameters()) <= set(dict(model.named_parameters()))
    assert not any("not read" in note for note in head_map.notes)
    assert_same_circuits(layer, model, feed(attention), D)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_file_and_module_have_the_same_heads(name, tmp_path):
    model, *_ = build(name)
    model.save_pretrained(tmp_path)
    on_disk = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    in_file, in_memory = resolve(on_disk, config=config), resolve(model)
    assert len(in_file) == len(in_memory) == 2
    for saved, live in zip(in_file, in_memory, strict=True):
        for circuit in ("kq", "vo"):
            for a, b in zip(
                saved.factors(circuit, on_disk.__getitem__), live.factors(circuit, model.get_parameter), strict=True
            ):
                assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["ViT", "DeiT"])
def test_names_on_disk_differ_from_those_in_memory(name, tmp_path):
    """If this fails, transformers no longer renames, and the row of the table for the disk may go one day."""
    model, *_ = build(name)
    model.save_pretrained(tmp_path)
    on_disk = load_file(tmp_path / "model.safetensors")
    assert resolve(on_disk, num_heads=HEADS).scheme == "ViT on disk"
    assert resolve(model).scheme == "q_proj/k_proj/v_proj/o_proj"
    assert not set(on_disk) & set(resolve(model).parameters())


def attend_torch(attention):
    def attend(x):
        out, probabilities = attention(x, x, x, need_weights=True, average_attn_weights=False)
        return probabilities, out

    return attend


def test_torch_multihead_attention():
    attention = without_biases(nn.MultiheadAttention(D, HEADS, batch_first=True))
    assert_same_circuits(resolve(attention).layers[0], attention, attend_torch(attention), D)


def test_torch_multihead_attention_with_separate_weights():
    attention = nn.MultiheadAttention(D, HEADS, batch_first=True, kdim=D, vdim=D)
    attention._qkv_same_embed_dim = False
    other = nn.MultiheadAttention(D, HEADS, batch_first=True, kdim=D, vdim=2 * D)
    attention.q_proj_weight, attention.k_proj_weight = other.q_proj_weight, other.k_proj_weight
    attention.v_proj_weight = nn.Parameter(torch.zeros(D, D))
    attention.register_parameter("in_proj_weight", None)
    attention = without_biases(attention)
    assert resolve(attention).scheme == "nn.MultiheadAttention with kdim or vdim"
    assert_same_circuits(resolve(attention).layers[0], attention, attend_torch(attention), D)


def test_torch_multihead_attention_with_widths_of_its_own():
    attention = nn.MultiheadAttention(D, HEADS, kdim=7, vdim=9)
    layer = resolve(attention).layers[0]
    key, query = layer.factors("kq", attention.get_parameter)
    value, out = layer.factors("vo", attention.get_parameter)
    assert [tuple(t.shape) for t in (key, query, value, out)] == [(4, 7, 3), (4, 12, 3), (4, 9, 3), (4, 12, 3)]


def test_torch_encoder_and_decoder_have_all_their_attention():
    model = nn.Transformer(D, HEADS, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=4, batch_first=True)
    assert [layer.name for layer in resolve(model)] == [
        "decoder.layers.0.multihead_attn",
        "decoder.layers.0.self_attn",
        "encoder.layers.0.self_attn",
    ]


@pytest.mark.parametrize("head_dim", [3, 5])
def test_timm_style_attention(head_dim):
    attention = without_biases(TimmAttention(D, HEADS, head_dim))
    layer = resolve(attention).layers[0]
    assert_same_circuits(layer, attention, attention, D)
    assert "fused: 'qkv' is read as q|k|v in blocks, as in timm" in layer.notes


@pytest.mark.parametrize("names", [("query", "key", "value", "out"), ("wq", "wk", "wv", "wo")])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(4, 3), (2, 3), (1, 5)])
def test_separate_projections(names, num_kv_heads, head_dim):
    attention = without_biases(SeparateAttention(D, HEADS, num_kv_heads, head_dim, names))
    layer = resolve(attention).layers[0]
    assert (layer.num_heads, layer.head_dim) == (HEADS, head_dim)
    assert_same_circuits(layer, attention, attention, D)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_separate_conv1d_is_known_by_its_class(num_kv_heads):
    """Square Conv1D weights look like nn.Linear ones; only the class tells."""
    attention = without_biases(SeparateAttention(D, HEADS, num_kv_heads, linear=lambda a, b: Conv1D(b, a)))
    assert_same_circuits(resolve(attention).layers[0], attention, attention, D)


def test_nano_gpt_keeps_gpt2_names_with_linear_layers():
    class Attention(TimmAttention):
        def __init__(self):
            super().__init__(D, HEADS)
            self.c_attn, self.c_proj = self.qkv, self.proj
            del self.qkv, self.proj

        def forward(self, x):
            self.__dict__["qkv"], self.__dict__["proj"] = self.c_attn, self.c_proj
            return super().forward(x)

    attention = without_biases(Attention())
    assert_same_circuits(resolve(attention).layers[0], attention, attention, D)
    state = attention.state_dict()
    assert resolve(state, num_heads=HEADS).layers[0].views == resolve(attention).layers[0].views


def test_gpt2_cross_attention():
    config = transformers.GPT2Config(**GPT2, **EAGER, add_cross_attention=True)
    model = without_biases(transformers.GPT2Model(config))
    layers = {layer.name: layer for layer in resolve(model)}
    assert len(layers) == 4
    attention = model.h[1].crossattention

    def attend(x):
        out, probabilities = attention(x, encoder_hidden_states=x)
        return probabilities, out

    assert_same_circuits(layers["h.1.crossattention"], model, attend, D)
    state = model.state_dict()
    from_state = {layer.name: layer for layer in resolve(state, num_heads=HEADS)}
    assert from_state["h.1.crossattention"].roles == layers["h.1.crossattention"].roles


def test_modernbert():
    model = transformers.ModernBertModel(transformers.ModernBertConfig(**TEXT, cls_token_id=1, sep_token_id=2))
    assert [layer.num_heads for layer in resolve(without_biases(model))] == [HEADS, HEADS]


class Strange(nn.Module):
    """Plain parameters, stored (in, out), keys before queries."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ParameterDict() for _ in range(11))
        for block in self.blocks:
            block["kq"], block["val"] = (nn.Parameter(torch.zeros(D, n * D)) for n in (2, 1))
            block["back"] = nn.Parameter(torch.zeros(D, D))

    def attend(self, x):
        block = self.blocks[10]
        q, k = (x @ block["kq"]).unflatten(-1, (HEADS, 2, -1)).unbind(-2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, (x @ block["val"]).unflatten(-1, (HEADS, -1))))
        p = (q @ k.mT * (D / HEADS) ** -0.5).softmax(-1)
        return p, (p @ v).transpose(1, 2).flatten(2) @ block["back"]


def test_a_layout_of_ones_own():
    model = without_biases(Strange())
    with pytest.raises(ValueError, match=r"No attention was understood in Strange.*'blocks\.0\.kq'.*GPT-NeoX"):
        resolve(model)
    fused = "blocks.{layer}.kq"
    layout = Layout(
        fused, fused, "blocks.{layer}.val", "blocks.{layer}.back", order="heads", stored="in_out", num_heads=HEADS
    )
    layers = resolve(model, layout).layers
    assert [layer.name for layer in layers][::5] == ["blocks.0", "blocks.5", "blocks.10"]
    assert_same_circuits(layers[10], model, model.attend, D)
    assert resolve(model.state_dict(), [layout]).layers == layers


def test_recipes_found_on_the_meta_device_read_the_loaded_model():
    with torch.device("meta"):
        empty = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    model, *_ = build("GPT-2")
    assert resolve(empty).layers == resolve(model).layers
    key, query = resolve(empty).layers[0].factors("kq", empty.get_parameter)
    assert key.is_meta
    assert key.shape == query.shape == (4, 12, 3)


def test_resolving_moves_no_random_state_and_no_weight():
    model, *_ = build("Llama")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    state = torch.random.get_rng_state()
    head_map = resolve(model)
    left, _ = head_map.layers[0].factors("kq", model.get_parameter)
    assert not left.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_every_row_of_the_table_has_a_name_of_its_own():
    assert len({layout.name for layout in LAYOUTS}) == len(LAYOUTS)
