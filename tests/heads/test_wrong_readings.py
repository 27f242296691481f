"""Readings that were wrong, or refused for a wrong reason: each test failed before its reading was mended."""

import pytest
import torch
import transformers
from tests.heads.oracles import SeparateAttention
from torch import nn

from rankrise.heads import resolve

TEXT = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def weights(prefix, names, shape=(8, 8)):
    return {f"{prefix}.{name}.weight": torch.zeros(shape) for name in names}


def test_the_feed_forward_is_never_read_as_the_output_of_attention():
    """TVP calls the output of attention `attention.dense` and the feed-forward `output.dense`, here of one size."""
    state = weights("layer.0", ["attention.query", "attention.key", "attention.value", "attention.dense"])
    state |= weights("layer.0", ["intermediate.dense", "output.dense"])
    (layer,) = resolve(state, num_heads=2)
    assert layer.roles["o"].parameter == "layer.0.attention.dense.weight"
    del state["layer.0.attention.dense.weight"]
    with pytest.raises(ValueError, match="No attention was understood"):
        resolve(state, num_heads=2)


@pytest.mark.parametrize("sign", ["conv1d.weight", "A_log", "q_conv1d.weight", "dt_bias"])
def test_linear_attention_is_left_out_by_name(sign):
    names = [f"{name}_proj" for name in "qkvo"]
    state = {**weights("layers.0.self_attn", names), **weights("layers.1.self_attn", names)}
    state[f"layers.0.self_attn.{sign}"] = torch.zeros(8, 1, 4)
    head_map = resolve(state, num_heads=2)
    assert [layer.name for layer in head_map] == ["layers.1.self_attn"]
    (note,) = (note for note in head_map.notes if note.startswith("left out"))
    assert note.startswith(
        "left out: 1 layers are linear attention or another recurrence, such as 'layers.0.self_attn'"
    )
    alone = {name: tensor for name, tensor in state.items() if name.startswith("layers.0")}
    with pytest.raises(ValueError, match="Scores must be a softmax of a product of two weights; all 1 layers"):
        resolve(alone, num_heads=2)


def test_layers_of_linear_attention_are_known_by_their_class():
    class GatedDeltaNet(SeparateAttention):
        pass

    head_map = resolve(nn.ModuleList([GatedDeltaNet(8, 2), SeparateAttention(8, 2)]))
    assert [layer.name for layer in head_map] == ["1"]


class PerLayer:
    """A config that refuses to state a number that differs from layer to layer, as transformers 5.22 has them."""

    num_attention_heads = 2

    @property
    def num_key_value_heads(self):
        raise RuntimeError("num_key_value_heads differs from layer to layer")


def test_a_config_that_refuses_to_state_a_number_does_not_crash():
    model = SeparateAttention(8, 4, num_kv_heads=2)
    del model.num_heads
    model.config = PerLayer()
    model.config.num_attention_heads = 4
    assert resolve(model).layers[0].roles["k"].stored_heads == 2


def test_key_heads_of_each_layer_are_counted_from_unambiguous_shapes():
    """The config states two key heads and a head dimension of four; the second layer has one key head."""
    names = [f"{name}_proj" for name in "qkvo"]
    state = weights("layers.0.self_attn", names[1:3], (8, 16)) | weights("layers.1.self_attn", names[1:3], (4, 16))
    for layer in (0, 1):
        state |= weights(f"layers.{layer}.self_attn", ["q_proj", "o_proj"], (16, 16))
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    first, second = resolve(state, config=config)
    assert (first.roles["k"].stored_heads, second.roles["k"].stored_heads) == (2, 1)
    assert "counts: shapes hold 1 key heads, where the module or config states 2" in second.notes
    assert not any(note.startswith("counts") for note in first.notes)


def test_one_attention_that_cannot_be_read_is_skipped_and_named():
    """Florence-2: the channel attention of its vision tower has groups and no heads."""
    strange = nn.ModuleDict({"qkv": nn.Linear(8, 24), "proj": nn.Linear(8, 8)})
    model = nn.ModuleDict({"channel_attn": strange, "text": SeparateAttention(8, 2)})
    head_map = resolve(model)
    assert [layer.name for layer in head_map] == ["text"]
    (note,) = (note for note in head_map.notes if note.startswith("skipped"))
    assert note.startswith("skipped: 1 attention layers could not be read, such as 'channel_attn': The number of heads")
    with pytest.raises(ValueError, match="number of heads of 'channel_attn' must be known"):
        resolve(model, strict=True)
    with pytest.raises(ValueError, match="number of heads of 'channel_attn' must be known"):
        resolve(nn.ModuleDict({"channel_attn": strange}))


@pytest.mark.parametrize("gate", ["gate_proj", "g_proj", "attn_gate"])
def test_output_gates_are_named(gate):
    model = SeparateAttention(8, 2)
    setattr(model, gate, nn.Linear(8, 8))
    (note,) = (note for note in resolve(model).notes if note.startswith("gate"))
    assert note == f"gate: the output is multiplied by a gate ({gate!r}) before W_O; V Oᵀ is without it"


def test_gated_queries_are_read_without_their_gates():
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    config = transformers.Qwen3NextConfig(**TEXT, **sizes, num_hidden_layers=1, layer_types=["full_attention"])
    with torch.device("meta"):
        model = transformers.Qwen3NextModel(config)
    (layer,) = resolve(model)
    query = layer.roles["q"]
    assert (query.shape, query.head_dim, query.stride) == ((32, 16), 4, 8)
    assert any(note.startswith("gate: 'q_proj' holds a gate beside every query head") for note in layer.notes)


def test_cross_attention_is_named():
    with torch.device("meta"):
        model = transformers.T5Model(
            transformers.T5Config(**TEXT, d_model=8, d_kv=4, num_heads=2, d_ff=8, num_layers=1)
        )
    crossed = {layer.name: any(n.startswith("cross-attention") for n in layer.notes) for layer in resolve(model)}
    assert crossed == {
        "decoder.block.0.layer.0.SelfAttention": False,
        "decoder.block.0.layer.1.EncDecAttention": True,
        "encoder.block.0.layer.0.SelfAttention": False,
    }


def test_diffusers_names():
    names = ["to_q", "to_k", "to_v", "to_out.0"]
    state = weights("block.attn1", names) | weights("block.attn2", [names[0], names[3]])
    state |= weights("block.attn2", names[1:3], (8, 12))
    one, two = resolve(state, num_heads=2)
    assert not any(note.startswith("cross-attention") for note in one.notes)
    assert any(note.startswith("cross-attention") for note in two.notes)


def test_latent_attention_is_read_as_its_effective_weights():
    """The key of head h is `x W_DKV W_UK`, without the rotated dimensions; a LoRA pair on W_DKV is part of it."""
    generator = torch.Generator().manual_seed(0)
    heads, plain, rotated, value, rank, d = 2, 3, 2, 4, 5, 7
    shapes = {
        "q_proj": (heads * (plain + rotated), d),
        "kv_a_proj_with_mqa": (rank + rotated, d),
        "kv_b_proj": (heads * (plain + value), rank),
        "o_proj": (d, heads * value),
    }
    state = {f"a.{n}.weight": torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}
    (layer,) = resolve(state, num_heads=heads)
    assert layer.notes[0].endswith("K Qᵀ leaves out the rotated part of every head (2 dimensions)")
    down = state["a.kv_a_proj_with_mqa.weight"][:rank]
    up = state["a.kv_b_proj.weight"].reshape(heads, plain + value, rank)
    key, query = layer.factors("kq", state.__getitem__)
    torch.testing.assert_close(key, (up[:, :plain] @ down).mT)
    torch.testing.assert_close(query, state["a.q_proj.weight"].reshape(heads, plain + rotated, d)[:, :plain].mT)
    read, _ = layer.factors("vo", state.__getitem__)
    torch.testing.assert_close(read, (up[:, plain:] @ down).mT)
    assert "a.kv_a_proj_with_mqa.weight" in layer.parameters()
    pairs = {"lora_A": torch.randn(1, d, generator=generator), "lora_B": torch.randn(rank + rotated, 1)}
    adapted = {**state, **{f"a.kv_a_proj_with_mqa.{n}.weight": t.double() for n, t in pairs.items()}}
    (layer,) = resolve(adapted, config={"num_attention_heads": heads, "lora_alpha": 3})
    changed = down + 3 * (pairs["lora_B"].double() @ pairs["lora_A"].double())[:rank]
    torch.testing.assert_close(layer.factors("kq", adapted.__getitem__)[0], (up[:, :plain] @ changed).mT)


@pytest.mark.parametrize(("num_kv_heads", "rows"), [(1, 6), (2, 8), (4, 12)])
def test_rows_in_groups_of_query_heads(num_kv_heads, rows):
    """Falcon: the query heads of a group, then its key head and its value head; G is counted from the shapes."""
    r, d = 3, 12
    fused = torch.arange(float(rows * r * d)).reshape(rows * r, d)
    state = {"h.0.self_attention.query_key_value.weight": fused, "h.0.self_attention.dense.weight": torch.zeros(d, d)}
    (layer,) = resolve({n.replace("h.0.self_attention", "attn"): t for n, t in state.items()}, num_heads=4)
    key, query = layer.factors("kq", {n.replace("h.0.self_attention", "attn"): t for n, t in state.items()}.__getitem__)
    group = fused.reshape(num_kv_heads, rows // num_kv_heads, r, d)
    torch.testing.assert_close(query, group[:, :-2].flatten(0, 1).mT)
    torch.testing.assert_close(key, group[:, -2].repeat_interleave(4 // num_kv_heads, dim=0).mT)


def test_heads_of_a_backbone_are_those_of_its_stages_on_disk():
    """Mask2Former's files: the decoder's number of heads stands beside a backbone with a number for every stage."""
    config = {"num_attention_heads": 4, "backbone_config": {"num_heads": [3, 6]}}
    names = ["self.query", "self.key", "self.value", "output.dense"]
    state = {}
    for stage, width in enumerate((24, 48)):
        place = f"pixel_level_module.encoder.encoder.layers.{stage}.blocks.0.attention"
        state |= weights(place, names, (width, width))
    assert [layer.num_heads for layer in resolve(state, config=config)] == [3, 6]


def test_heads_of_a_tower_whose_blocks_are_counted_through_its_stages():
    """SAM 2's files: blocks are numbered through, and stages have a number of heads each."""
    backbone = {"num_attention_heads": 1, "num_attention_heads_per_stage": [1, 2, 4], "blocks_per_stage": [1, 2, 1]}
    config = {"vision_config": {"backbone_config": backbone}}
    state = {}
    for block in range(4):
        place = f"vision_encoder.backbone.blocks.{block}.attn"
        state |= weights(place, ["qkv"], (48, 16)) | weights(place, ["proj"], (16, 16))
    assert [layer.num_heads for layer in resolve(state, config=config)] == [1, 2, 2, 4]


def test_a_choice_of_groups_is_not_attention_on_disk_either():
    names = ["q_proj", "k_proj", "v_proj", "out_proj"]
    state = weights("stages.0.downsample.assign", [*names[:3], "proj"]) | weights("stages.0.layers.0.self_attn", names)
    assert [layer.name for layer in resolve(state, num_heads=2)] == ["stages.0.layers.0.self_attn"]


def test_norms_of_queries_and_keys_without_weights_are_named():
    model = SeparateAttention(8, 2)
    model.qk_norm = nn.Identity()
    assert any(note.startswith("QK-norm") for note in resolve(model, num_heads=2).notes)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("ProphetNetNgramSelfAttention", "streams"),
        ("T5Gemma2MergedAttention", "merged"),
        ("MuseGlimmerAssistantAttention", "merged"),
        ("FunnelRelMultiheadAttention", "pooled"),
        ("BrosAttention", "positions"),
    ],
)
def test_scores_beside_those_of_the_product_are_named(kind, word):
    model = type(kind, (SeparateAttention,), {})(8, 2)
    assert any(note.startswith(word) for note in resolve(model, num_heads=2).notes)


def test_a_choice_of_tokens_is_named():
    state = weights("layers.0.self_attn", ["q_proj", "k_proj", "v_proj", "o_proj", "indexer.wk"])
    assert any(note.startswith("sparse") for note in resolve(state, num_heads=2).notes)


@pytest.mark.parametrize("factor", ["scaling", "per_dim_scale"])
def test_a_learned_factor_of_the_dimensions_of_queries_is_named(factor):
    """TimesFM and VideoPrism multiply every dimension of a query by a learned number, so K Qᵀ is not yet the score."""
    state = weights("layers.0.self_attn", ["q_proj", "k_proj", "v_proj", "o_proj"])
    state[f"layers.0.self_attn.{factor}"] = torch.ones(4)
    (note,) = (note for note in resolve(state, num_heads=2).notes if note.startswith("query scale"))
    assert repr(factor) in note


def test_a_learned_query_that_pools_tokens_is_cross_attention():
    state = weights("head", ["q_proj", "k_proj", "v_proj", "o_proj"])
    assert not any(note.startswith("cross-attention") for note in resolve(state, num_heads=2).notes)
    state["head.pooling_attention_query"] = torch.zeros(1, 1, 8)
    assert any(note.startswith("cross-attention") for note in resolve(state, num_heads=2).notes)


def test_attention_that_a_cross_attention_block_wraps_is_cross_attention():
    """Perceiver's latents read the inputs in `cross_attention.attention`, of the same widths as its self-attention."""
    names = ["query", "key", "value", "out"]
    state = weights("encoder.cross_attention.attention", names) | weights("encoder.self_attends.0.attention", names)
    noted = [any(note.startswith("cross-attention") for note in layer.notes) for layer in resolve(state, num_heads=2)]
    assert noted == [True, False]


def test_attention_by_hashing_has_no_softmax():
    model = type("YosoAttention", (SeparateAttention,), {})(8, 2)
    with pytest.raises(ValueError, match="Scores must be a softmax"):
        resolve(model, num_heads=2)


def test_a_term_of_scores_that_is_made_from_values_is_named():
    state = weights("layers.0.self_attn", ["q_proj", "k_proj", "v_proj", "o_proj", "dt_proj"])
    assert any(note.startswith("value bias") for note in resolve(state, num_heads=2).notes)
