"""What the resolver returns: names needed, factors of a circuit, copies that stay."""

import pickle

import pytest
import torch
from torch import nn

from rankrise.heads import resolve

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
