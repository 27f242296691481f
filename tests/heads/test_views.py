"""Recipes: every order of rows is an offset and a stride; shapes are checked; layers give names, factors and copies."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankrise.heads import LowRankUpdate, NormGain, WeightView, resolve


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@st.composite
def recipes(draw):
    heads, r, d, repeats, roles = (draw(st.integers(1, 4)) for _ in range(5))
    position = draw(st.integers(0, roles - 1))
    by_head, axis = draw(st.booleans()), draw(st.integers(0, 1))
    rows = [(h, role) for h in range(heads) for role in range(roles)]
    if not by_head:
        rows = [(h, role) for role in range(roles) for h in range(heads)]
    size = len(rows) * r
    view = WeightView(
        "w",
        "k",
        shape=(size, d) if axis == 0 else (d, size),
        axis=axis,
        stored_heads=heads,
        head_dim=r,
        offset=position * r * (1 if by_head else heads),
        stride=r * (roles if by_head else 1),
        repeats=repeats,
    )
    return view, [rows.index((h, position)) * r for h in range(heads)]


@given(recipes())
def test_offset_and_stride_against_lists_of_rows(recipe):
    view, starts = recipe
    weight = randn(*view.shape)
    rows = weight if view.axis == 0 else weight.T
    expected = torch.stack([rows[s : s + view.head_dim].T for s in starts for _ in range(view.repeats)])
    assert torch.equal(view(weight), expected)
    assert torch.equal(view.read({"w": weight}.__getitem__), expected)
    assert torch.equal(view.matrix({"w": weight}.__getitem__), torch.cat(list(expected[:: view.repeats]), dim=1))
    assert view(weight).shape == (view.num_heads, rows.shape[1], view.head_dim)


VIEW = WeightView("w", "q", shape=(6, 4), axis=0, stored_heads=2, head_dim=3, offset=0, stride=3)


def test_reading_keeps_dtype_and_memory_and_leaves_gradients_out():
    weight = torch.nn.Parameter(randn(6, 4, dtype=torch.float32).bfloat16())
    heads = VIEW(weight)
    assert heads.dtype == torch.bfloat16
    assert not heads.requires_grad
    assert heads.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()


@pytest.mark.parametrize("shape", [(6, 5), (3, 4), (0,), (2, 6, 4)])
def test_a_tensor_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"'w' must have the shape \(6, 4\) that was resolved; got \("):
        VIEW(torch.zeros(shape))


def test_adapters_are_added_in_float64():
    """A change of 1e-9 of the weight survives, which float32 would round away."""
    view = WeightView(**{**vars(VIEW), "adapters": (LowRankUpdate("a", "b", 0.5),)})
    tensors = {"w": torch.ones(6, 4), "a": torch.full((2, 4), 1e-5), "b": torch.full((6, 2), 1e-4)}
    assert view.parameters == ("w", "a", "b")
    change = view.read(tensors.__getitem__) - view.read({**tensors, "b": torch.zeros(6, 2)}.__getitem__)
    torch.testing.assert_close(change, torch.full((2, 4, 3), 1e-9, dtype=torch.float64), rtol=1e-6, atol=0)


def test_an_adapter_of_a_weight_stored_in_out_is_transposed():
    tensors = {"a": randn(2, 3), "b": randn(5, 2, seed=1)}
    update = LowRankUpdate("a", "b", 2.0, transposed=True)(tensors.__getitem__)
    torch.testing.assert_close(update, 2.0 * (tensors["b"] @ tensors["a"]).T)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_folding_is_what_the_norm_does(centred, offset):
    """`norm(x) W = (x / size) C diag(g) W` for LayerNorm (C = I − 11ᵀ/d) and RMSNorm (C = I)."""
    x, weight, gain = randn(7, 4), randn(2, 4, 3, seed=1), randn(4, seed=2)
    if centred:
        normed = torch.nn.functional.layer_norm(x, (4,), gain + offset, eps=0.0)
        size = x.var(dim=-1, keepdim=True, unbiased=False).sqrt()
    else:
        normed = torch.nn.functional.rms_norm(x, (4,), gain + offset, eps=0.0)
        size = x.square().mean(dim=-1, keepdim=True).sqrt()
    folded = NormGain("g", centred, offset)(weight, gain)
    torch.testing.assert_close(normed @ weight, (x / size) @ folded)


def test_a_gain_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"gain 'g' must have one entry for each of the 4 inputs .* got shape \(5,\)"):
        NormGain("g", centred=True)(randn(2, 4, 3), randn(5))


def test_recipes_can_be_compared_hashed_and_pickled():
    assert pickle.loads(pickle.dumps(VIEW)) == VIEW
    assert len({VIEW, WeightView(**vars(VIEW))}) == 1


MODEL = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 4, batch_first=True), 12, enable_nested_tensor=False)


def test_layers_are_in_natural_order_whatever_the_order_of_names():
    shuffled = dict(sorted(MODEL.state_dict().items()))  # layers.10 before layers.2, as in a file
    names = [f"layers.{i}.self_attn" for i in range(12)]
    assert [layer.name for layer in resolve(MODEL)] == names
    assert [layer.name for layer in resolve(shuffled, num_heads=2)] == names
    assert [layer.index for layer in resolve(shuffled, num_heads=2)] == list(range(12))


def test_names_needed_are_listed_once():
    head_map = resolve(MODEL)
    assert head_map.layers[3].parameters() == (
        "layers.3.self_attn.in_proj_weight",
        "layers.3.self_attn.out_proj.weight",
    )
    assert len(head_map.parameters()) == 24
    assert set(head_map.snapshot(MODEL)) == set(head_map.parameters())


def test_a_missing_circuit_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=r"`circuit` must be one of kq, vo; got 'qk'"):
        resolve(MODEL).layers[0].factors("qk", MODEL.get_parameter)


def test_factors_of_mixed_precision_come_in_the_wider_dtype():
    attention = nn.MultiheadAttention(8, 2)
    attention.out_proj.bfloat16()
    value, out = resolve(attention).layers[0].factors("vo", attention.get_parameter)
    assert value.dtype == out.dtype == torch.float32


def test_a_map_can_be_pickled_and_compared():
    head_map = resolve(MODEL)
    assert pickle.loads(pickle.dumps(head_map)) == head_map == resolve(MODEL)


def test_a_changed_head_count_is_refused():
    """The recipe of a model with other heads does not read this one."""
    narrow = nn.MultiheadAttention(6, 2)
    with pytest.raises(ValueError, match="must have the shape"):
        resolve(narrow).layers[0].factors("kq", nn.MultiheadAttention(8, 2).get_parameter)
