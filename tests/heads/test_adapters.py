"""PEFT: what is read is the weight in effect, as `merge_and_unload` would write it."""

import copy

import peft
import pytest
import torch
import transformers
from tests.heads.oracles import assert_same_circuits, without_biases
from torch import nn

import rankrise as rr
from rankrise.heads import resolve
from rankrise.linalg import numerical_rank

TEXT = {"vocab_size": 11, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = transformers.LlamaConfig(
    **TEXT, hidden_size=12, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=8
)
GPT2 = transformers.GPT2Config(**TEXT, n_embd=12, n_head=4, n_layer=2)


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
