"""LoRA that is merged, switched, disabled or added while a tracker looks on: refused, never misread."""

import peft
import pytest
import torch
from torch import nn

import rankrise as rr

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()


def adapted(base=None):
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(base or Model(), config)


def merge(model):
    model.merge_adapter()


def disable(model):
    model.base_model.disable_adapter_layers()


def switch(model):
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj"]))
    model.set_adapter("other")


def rescale(model):
    model.base_model.model.attn.q_proj.scaling["default"] *= 2


@pytest.mark.parametrize("change", [merge, disable, switch, rescale])
def test_changed_adapters_are_refused_at_the_next_measurement(tmp_path, change):
    torch.manual_seed(0)
    model = adapted()
    tracker = rr.RankTracker(model, tmp_path, every=1, spectra=100)
    tracker.step(1)
    change(model)
    with pytest.raises(ValueError, match=r"must stay as they were.*layer 0 .* has adapters of 'q' .* instead of"):
        tracker.step(2)
    tracker.close(seal=False)


def test_enabled_adapters_are_refused(tmp_path):
    model = adapted()
    disable(model)
    tracker = rr.RankTracker(model, tmp_path, every=1, spectra=100)
    tracker.step(1)
    model.base_model.enable_adapter_layers()
    with pytest.raises(ValueError, match="must stay as they were"):
        tracker.step(2)
    tracker.close(seal=False)


def test_adapters_added_to_a_tracked_model_are_refused(tmp_path):
    model = Model()
    tracker = rr.RankTracker(model, tmp_path, every=1, spectra=100)
    adapted(model)
    with pytest.raises(ValueError, match=r"must stay as they were.*parameter of 'q' 'attn\.q_proj\.base_layer"):
        tracker.step(1)
    tracker.close(seal=False)


def test_run_without_adapters_is_not_resumed_with_them(tmp_path):
    model = Model()
    rr.RankTracker(model, tmp_path).close()
    with pytest.raises(ValueError, match=r"read in the same way; it has others"):
        rr.RankTracker(adapted(model), tmp_path, resume=1)
