"""Weights that torch computes from others are read as the network uses them."""

import pytest
import torch
from tests.tracking.models import small_model
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from rankrise.heads import named_weights, read_weight, resolve

WRAPS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


def wrapped(name):
    model = small_model()
    for layer in model.layers:
        WRAPS[name](layer.linear1)
        WRAPS[name](layer.self_attn, "in_proj_weight")
        WRAPS[name](layer.self_attn.out_proj)
    return model


@pytest.mark.parametrize("name", WRAPS)
def test_heads_are_those_of_the_weight_in_effect(name):
    plain, model = resolve(small_model()), wrapped(name)
    found = resolve(model)
    assert [layer.views for layer in found.layers] == [layer.views for layer in plain.layers]
    now = model.layers[1].self_attn.eval().in_proj_weight
    key, query = found.layers[1].factors("kq", lambda name: read_weight(model, name))
    assert torch.equal(query[2], now[8:12].T)
    assert torch.equal(key[0], now[12:16].T)
    assert sorted(name for name, _ in named_weights(model)) == sorted(n for n, _ in small_model().named_parameters())
    assert found.snapshot(model)["layers.0.self_attn.out_proj.weight"].shape == (12, 12)


def test_reading_moves_no_state_and_leaves_the_mode():
    model = wrapped("spectral_norm").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for name, _ in list(named_weights(model)):
        read_weight(model, name)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    model.layers[0].linear1.weight  # noqa: B018
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_unknown_weight():
    with pytest.raises(AttributeError, match="wait"):
        read_weight(nn.Linear(2, 2), "wait")


def test_parametrised_root():
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    assert dict(named_weights(layer)).keys() == {"bias", "weight"}
    assert parametrize.is_parametrized(layer)
