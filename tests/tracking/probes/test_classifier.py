"""Norms of the last layer, and the rounding of the softmax that announces slingshots."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.gauges.modular import ModularMLP, train
from tests.tracking.models import select
from torch import nn

import rankrise as rr
from rankrise.lab.models import ViTConfig, build_model
from rankrise.signals import detect_slingshots
from rankrise.tracking import ClassifierProbe
from rankrise.tracking.probes import EntropyProbe

VIT = ViTConfig(
    image_size=8, num_channels=1, patch_size=4, width=16, num_layers=2, num_heads=2, head_dim=8, mlp_width=16
)


def test_numbers_are_those_of_the_last_training_batch(tmp_path):
    model = build_model(VIT, seed=0)
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.classifier.weight.mul_(1000)
    probes = [EntropyProbe(images), ClassifierProbe()]  # the other probe runs the model too, in evaluation mode
    with rr.RankTracker(model, tmp_path, every=1, probes=probes) as tracker:
        tracker.step(0)
        logits = model.train()(images[:4])
        tracker.step(1)
    table = rr.load_run(tmp_path)
    assert not model.classifier._forward_hooks
    weight = model.classifier.weight.detach().double()
    others = [p.detach().double().norm() for n, p in model.named_parameters() if n != "classifier.weight"]
    expected = {
        "last_norm": weight.norm(),
        "last_class_mean_norm": weight.mean(0).norm(),
        "rest_norm": torch.stack(others).norm(),
        "absorbed": (logits.softmax(-1).amax(-1) == 1).double().mean(),
    }
    for name, value in expected.items():
        assert select(table, quantity=name, layer=-1, step=1) == pytest.approx([value.item()], rel=1e-6), name
        assert select(table, quantity=name, step=0).size == (name != "absorbed")
    assert expected["absorbed"] > 0


def test_training_is_the_same_to_the_bit(tmp_path):
    runs = []
    for probes in ([], [ClassifierProbe(every=10)]):
        torch.manual_seed(0)
        model = ModularMLP()
        options = {"every": 5, "quantities": (), "probes": probes}
        with rr.RankTracker(model, tmp_path / str(len(probes)), **options) as tracker:
            train(F.cross_entropy, model=model, num_steps=21, every=5, seen=tracker.step)
        runs.append(model.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert select(rr.load_run(tmp_path / "1"), quantity="imbalance").size == 3


def test_imbalance_is_zero_until_the_softmax_rounds():
    from rankrise.tracking.probes._classifier import rounding_of

    logits = torch.zeros(2, 5)
    for size, absorbed in ((1.0, 0), (10.0, 0), (18.0, 1), (40.0, 1)):
        logits[:, 2] = size
        found = rounding_of(logits)
        assert found["absorbed"] == absorbed
        assert (found["imbalance"] > 0.5) == bool(absorbed)
    assert rounding_of(torch.tensor([[0.0, 1e4]]))["imbalance"] == 0  # no gradient is left


def test_layer_is_found_or_named(tmp_path):
    with pytest.raises(ValueError, match=r"no linear layer is called one of classifier, head, .* Pass its name"):
        rr.RankTracker(nn.Sequential(nn.Linear(2, 2)), tmp_path, quantities=(), probes=[ClassifierProbe()])
    with pytest.raises(ValueError, match="a layer of the model that has a weight; got 'tail'"):
        rr.RankTracker(nn.Sequential(nn.Linear(2, 2)), tmp_path / "b", quantities=(), probes=[ClassifierProbe("tail")])


def test_weight_under_sigma_reparam_is_read_in_effect(tmp_path):
    model = rr.sigma_reparam(ModularMLP())
    with rr.RankTracker(model, tmp_path, every=1, quantities=(), probes=[ClassifierProbe()]) as tracker:
        tracker.step(0)
    assert select(rr.load_run(tmp_path), quantity="last_norm") == pytest.approx([model.head.weight.norm().item()])


@pytest.mark.slow
def test_absorbed_samples_announce_the_first_slingshot(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = ModularMLP()
    options = {"every": 20, "quantities": (), "probes": [ClassifierProbe()]}
    with rr.RankTracker(model, tmp_path, **options) as tracker:
        steps, losses, _ = train(F.cross_entropy, seed=1, model=model, num_steps=4000, seen=tracker.step)
    run = rr.open_run(tmp_path)
    norms = run.curve("last_norm").values
    found = detect_slingshots(steps, losses, norms).closed
    assert found
    warned = steps[np.argmax(run.curve("absorbed").values > 0.1)]
    assert 0 < warned <= found[0].peak - 200
