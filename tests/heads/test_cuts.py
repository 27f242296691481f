"""Shapes that do not fit each other or the number of heads are refused by the name of the weight."""

import pytest
import torch
from tests.heads.oracles import SeparateAttention, TimmAttention
from torch import nn

from rankrise.heads import Layout, resolve


def state(q=(8, 8), k=(8, 8), v=(8, 8), o=(8, 8)):
    return {f"a.{role}_proj.weight": torch.zeros(shape) for role, shape in zip("qkvo", (q, k, v, o), strict=True)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (9, 8)}, r"'a\.q_proj\.weight' must divide evenly into 2 heads; got shape \(9, 8\)"),
        ({"k": (6, 8)}, r"'a\.k_proj\.weight' must divide evenly into heads of 4"),
        ({"k": (12, 8), "v": (12, 8)}, r"2 query heads of 'a\.q_proj\.weight' .*'a\.k_proj\.weight' has 3"),
        ({"o": (8, 6)}, r"'a\.o_proj\.weight' must divide evenly into 2 heads of 4; got shape \(8, 6\)"),
        ({"v": (8, 7)}, r"must read one input; got widths 8 and 7"),
        ({"q": (2, 8, 8)}, r"'a\.q_proj\.weight' must be a matrix; got shape \(2, 8, 8\)\. Conv.*stacked experts"),
        ({"q": (0,)}, r"must be a matrix; got shape \(0,\).*ZeRO-3.*gathered first"),
    ],
)
def test_misfits(shapes, message):
    with pytest.raises(ValueError, match=message):
        resolve(state(**shapes), num_heads=2)


def test_values_may_have_a_width_of_their_own():
    (layer,) = resolve(state(v=(6, 8), o=(8, 6)), num_heads=2).layers
    assert (layer.head_dim, layer.roles["v"].head_dim, layer.roles["o"].head_dim) == (4, 3, 3)


def test_fused_weights_that_fit_neither_way():
    attention = {"a.c_attn.weight": torch.zeros(8, 20), "a.c_proj.weight": torch.zeros(8, 8)}
    with pytest.raises(ValueError, match=r"'a\.c_attn\.weight' must divide evenly into q\|k\|v of 2 and 2 heads"):
        resolve(attention, num_heads=2)


def test_interleaved_weights_have_no_groups():
    fused = "{layer}.wqkv.weight"
    layout = Layout(fused, fused, fused, "{layer}.wo.weight", order="heads", num_heads=4, num_kv_heads=2)
    weights = {"a.wqkv.weight": torch.zeros(16, 8), "a.wo.weight": torch.zeros(8, 8)}
    with pytest.raises(ValueError, match="head by head must have as many key heads as query heads"):
        resolve(weights, layout)


def test_a_module_that_states_other_heads_than_its_shapes():
    attention = SeparateAttention(8, 2)
    attention.num_key_value_heads = 1
    with pytest.raises(
        ValueError, match=r"must have key heads: 1, as the module or config states; .* give 2 with 2 heads"
    ):
        resolve(attention)


def test_the_number_of_heads_must_be_known():
    attention = TimmAttention(8, 2)
    del attention.num_heads
    with pytest.raises(
        ValueError, match=r"number of heads of '' must be known.*num_attention_heads.*Pass `num_heads=`"
    ):
        resolve(attention)
    assert resolve(attention, num_heads=2).layers[0].num_heads == 2
    assert resolve(attention, config={"n_head": 2}).layers[0].num_heads == 2
    with pytest.raises(ValueError, match="must be known"):
        resolve(attention, config={"n_head": True})


@pytest.mark.parametrize("num_heads", [0, -1, 2.0, True, "2"])
def test_odd_numbers_of_heads(num_heads):
    with pytest.raises(ValueError, match="`num_heads` must be a positive integer; got"):
        resolve(TimmAttention(8, 2), num_heads=num_heads)


def test_each_tower_has_its_own_number_of_heads():
    model = nn.ModuleDict({"text": SeparateAttention(8, 2), "vision": SeparateAttention(8, 4)})
    assert [layer.num_heads for layer in resolve(model)] == [2, 4]
