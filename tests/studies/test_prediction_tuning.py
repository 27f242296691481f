"""Adapters of equal size: the parameters that PEFT trains are those that were counted."""

import pytest
import torch

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import GPTConfig, build_model
from studies import prediction_tuning as tuning

pytest.importorskip("peft")
MODEL = GPTConfig(vocab_size=32, context=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=32)
DEVICE = torch.device("cpu")
CONFIG = tuning.recipe(1e-2, batch_size=2, precision="fp32", seed=0)


def tuned(ranks):
    """A network and its base; the change of module i has the given rank and falling strength."""
    network = build_model(MODEL)
    base = {name: weight.clone() for name, weight in network.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module, rank in zip(tuning.adapted_modules(network).values(), ranks, strict=True):
            left = torch.randn(module.out_features, rank, generator=generator)
            module.weight += 0.1 * left @ torch.randn(rank, module.in_features, generator=generator)
    return network, base


def adapted(method, advice, num_steps=20):
    network = build_model(MODEL)
    costs = tuning.direction_costs(network)
    settings = tuning.adapter_config(method, network, rank=4, advice=advice, num_steps=num_steps)
    return tuning.add_adapter(tuning.WithLoss(network, CONFIG, DEVICE), settings, seed=3), costs


def test_advice_finds_planted_ranks():
    planted = [2, 0, 5, 1, 3, 0, 4, 2]
    network, base = tuned(planted)
    planted_at = dict(zip(tuning.adapted_modules(network), planted, strict=True))
    ample = tuning.advised_ranks(network, base, rank=5)
    assert all(ample.ranks.get(name, 0) >= rank for name, rank in planted_at.items())
    assert max(row.error for row in ample.modules if planted_at[row.name]) < 1e-6
    scarce = tuning.advised_ranks(network, base, rank=1)
    assert all(scarce.ranks.get(name, 0) <= rank for name, rank in planted_at.items())
    assert scarce.parameters <= sum(tuning.direction_costs(network).values())


def test_methods_have_equal_parameter_counts():
    network, base = tuned([16] * 8)
    advice = tuning.advised_ranks(network, base, rank=4)
    counts = {}
    for method in ("advised", "uniform"):
        model, costs = adapted(method, advice.ranks)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        ranks = tuning.module_ranks(model)
        assert trained == tuning.num_parameters(ranks, costs)
        counts[method] = trained
    assert tuning.module_ranks(adapted("advised", advice.ranks)[0]) == advice.ranks
    assert counts["uniform"] == 4 * sum(costs.values())
    assert 0 <= counts["uniform"] - counts["advised"] < min(costs.values())


@pytest.mark.parametrize("method", ["advised", "uniform", "adalora"])
def test_scale_is_one_and_the_start_is_the_base(method):
    network, base = tuned([3] * 8)
    model, _ = adapted(method, tuning.advised_ranks(network, base, rank=4).ranks)
    tokens = torch.arange(16)[None]
    assert torch.equal(model.base_model.model.network(tokens), build_model(MODEL)(tokens))
    scales = {
        layer.scaling["default"] / (float(layer.ranknum["default"]) if method == "adalora" else 1)
        for layer in model.modules()
        if isinstance(getattr(layer, "scaling", None), dict)
    }
    assert scales == {1.0}


def test_adalora_ends_at_the_mean_rank():
    model, costs = adapted("adalora", {}, num_steps=30)
    data = load_dataset(DataConfig("synthetic_text", context=16, num_classes=32, num_train=16, num_test=2))
    before = tuning.module_ranks(model)
    assert set(before.values()) <= {0, 6}
    allocate = model.base_model.update_and_allocate
    tuning.fit(model, data, CONFIG, 30, device=DEVICE, after_step=allocate)
    ranks = tuning.module_ranks(model)
    assert sum(ranks.values()) == 4 * len(costs)
    assert len(set(ranks.values())) > 1


def test_only_adapters_are_trained_and_the_global_seed_stays():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = adapted("uniform", {})[0], adapted("uniform", {})[0]
    assert torch.equal(torch.rand(1), expected)
    trained = {name: p for name, p in first.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    others = dict(second.named_parameters())
    assert all(torch.equal(p, others[name]) for name, p in trained.items())
