import pytest
import torch

from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig, build_model

CONFIGS = [
    ViTConfig(num_layers=1, width=16, num_heads=2, head_dim=8, mlp_width=8),
    GPTConfig(vocab_size=9, context=4, num_layers=1, num_heads=1, head_dim=4, width=4, mlp_width=4),
    ToyHeadConfig(),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
def test_the_seed_decides_and_the_global_state_stays(config):
    state = torch.get_rng_state()
    first, again, other = (build_model(config, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)
    assert {w.dtype for w in first.values()} == {torch.float32}


def test_what_is_no_configuration_is_refused():
    with pytest.raises(ValueError, match="`config` must be one of ViTConfig, GPTConfig, ToyHeadConfig; got dict"):
        build_model({"width": 3})


def test_what_does_not_fit_in_memory_is_refused():
    with pytest.raises(ValueError, match=r"The model must fit in memory; it does not \(.*\)\. Choose smaller sizes"):
        build_model(ViTConfig(width=10**12))
