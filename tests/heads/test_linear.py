"""Linear weights beside attention: which are found, how they are named, what they are with their adapters."""

import pytest
import torch
from torch import nn

from rankrise.heads import linear_weights, resolve


def named(model, head_map=None):
    return {(w.layer, w.name): w.parameters for w in linear_weights(model, head_map)}


def test_names_below_a_block_and_outside():
    layer = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=4)
    model = nn.Module()
    model.embed, model.body, model.head = (
        nn.Embedding(5, 8),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.Linear(8, 5),
    )
    found = named(model, resolve(model))
    assert found == {
        (0, "linear1"): ("body.layers.0.linear1.weight",),
        (0, "linear2"): ("body.layers.0.linear2.weight",),
        (1, "linear1"): ("body.layers.1.linear1.weight",),
        (1, "linear2"): ("body.layers.1.linear2.weight",),
        (-1, "head"): ("head.weight",),
    }


def test_attention_that_is_not_read_is_read_as_whole_matrices():
    assert {name for _, name in named(nn.MultiheadAttention(8, 2))} == {"in_proj_weight", "out_proj"}


def test_names_of_circuits_stay_those_of_attention():
    assert set(named(nn.ModuleDict({"q": nn.Linear(2, 2), "kq": nn.Linear(2, 2)}))) == {
        (-1, "linear.q"),
        (-1, "linear.kq"),
    }


class Experts(nn.Module):
    def __init__(self, fused):
        super().__init__()
        if fused:
            self.up = nn.Parameter(torch.randn(3, 4, 2))
        else:
            self.extend(nn.Linear(4, 2) for _ in range(3))

    def extend(self, modules):
        for n, module in enumerate(modules):
            self.add_module(str(n), nn.ModuleDict({"up": module}))


@pytest.mark.parametrize("fused", [True, False])
def test_experts_are_one_matrix_each(fused):
    model = nn.ModuleDict({"mlp": nn.ModuleDict({"experts": Experts(fused)})})
    (weight,) = linear_weights(model)
    assert (weight.layer, weight.name, weight.has_experts) == (-1, "mlp.experts.up", True)
    assert len(weight.matrices(model.get_parameter)) == 3
    assert len(weight.parameters) == (1 if fused else 3)


def test_experts_of_other_shapes_are_refused():
    model = nn.ModuleDict({"experts": nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 4)])})
    model["experts"] = nn.ModuleList(nn.ModuleDict({"up": m}) for m in model["experts"])
    with pytest.raises(ValueError, match=r"The experts of 'experts.up' in layer -1 must have one shape"):
        linear_weights(model)


def test_a_lora_is_part_of_the_weight():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["0"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    (weight,) = linear_weights(adapted)
    layer = adapted.base_model.model[0]
    update = 3 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    exact = (layer.base_layer.weight + update).detach().double()
    torch.testing.assert_close(weight.matrices(adapted.get_parameter)[0], exact, rtol=1e-6, atol=1e-6)
    assert weight.name == "0"
