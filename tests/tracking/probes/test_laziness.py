"""The linearisation error in the table of a run, with a start that survives a restart."""

import numpy as np
import pytest
import torch
from tests.tracking.models import select, small_model, train_step
from torch import nn

import rankrise as rr
from rankrise.gauges import laziness, linearise
from rankrise.lab.models import ViTConfig, build_model
from rankrise.tracking import LazinessProbe

QUANTITIES = ("linearisation_error", "jacobian_change", "weight_change")
X = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(9))


def train(out, probes, *, first=1, last=4, model=None, optimiser=None, **options):
    model = small_model() if model is None else model
    optimiser = torch.optim.SGD(model.parameters(), 0.1) if optimiser is None else optimiser
    torch.manual_seed(first)
    with rr.RankTracker(model, out, every=1, probes=probes, **options) as tracker:
        losses = []
        for step in range(first, last + 1):
            losses.append(train_step(model, optimiser, step).item())
            tracker.step(step)
    return model, losses, torch.rand(3)


def test_training_is_the_same_to_the_bit(tmp_path):
    plain, losses, drawn = train(tmp_path / "plain", [])
    probed, same_losses, same_drawn = train(tmp_path / "probed", [LazinessProbe(X, by_layer=True, every=2)])
    assert losses == same_losses
    assert torch.equal(drawn, same_drawn)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), probed.parameters(), strict=True))
    assert all(module.training for module in probed.modules())
    assert all(p.grad is None for p in probed.parameters())
    table = rr.load_run(tmp_path / "probed")
    for name in QUANTITIES:
        values = select(table, quantity=name, layer=-1)
        assert values.size == 2
        assert (values > 0).all()
    for layer in range(2):
        assert (select(table, quantity="jacobian_change", layer=layer, head=-1) > 0).all()


def test_numbers_are_those_of_the_pure_function(tmp_path):
    start = small_model(dropout=0.0).eval()
    model, _, _ = train(tmp_path, [LazinessProbe(X, tangents=3, seed=5)], model=small_model(dropout=0.0))

    def function(weights):
        return torch.func.functional_call(model.eval(), dict(weights), (X,))

    was, now = ({n: p.detach() for n, p in m.named_parameters()} for m in (start, model))
    found = laziness(function, now, linearise(function, was, tangents=3, seed=5))
    for name in QUANTITIES:
        assert select(rr.load_run(tmp_path), quantity=name, step=4) == pytest.approx(
            [getattr(found, name).item()], rel=1e-4
        )


def test_resumed_run_compares_with_its_own_start(tmp_path):
    def run(folder, cut):
        model, path = small_model(dropout=0.0), tmp_path / f"{folder}.safetensors"
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for first, last in ((1, 2), (3, 4)) if cut else ((1, 4),):
            options = {"resume": first - 1, "exist": "overwrite"} if first > 1 else {}
            train(tmp_path / folder, [LazinessProbe(X, start=path)], first=first, last=last, model=model,
                  optimiser=optimiser, **options)  # fmt: skip
        return rr.load_run(tmp_path / folder)

    whole, cut = run("whole", cut=False), run("cut", cut=True)
    for name in QUANTITIES:
        np.testing.assert_array_equal(select(whole, quantity=name), select(cut, quantity=name))
    probe = LazinessProbe(torch.randn(2, 4), start=tmp_path / "whole.safetensors")
    with pytest.raises(ValueError, match="must hold the weights of this model at its start"):
        rr.RankTracker(nn.Linear(4, 2), tmp_path / "other", quantities=(), probes=[probe])


def test_frozen_weights_wrappers_half_precision_and_parametrised_weights(tmp_path):
    config = ViTConfig(
        image_size=8, num_channels=1, patch_size=4, width=16, num_layers=2, num_heads=2, head_dim=8, mlp_width=16
    )
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for name in ("plain", "compiled", "bf16", "sigma"):
        model = build_model(config, seed=0)
        model.positions.requires_grad_(False)
        if name == "bf16":
            model = model.bfloat16()
        if name == "sigma":
            rr.sigma_reparam(model)
        whole = torch.compile(model, backend="eager") if name == "compiled" else model
        probe = LazinessProbe(images, by_layer=True)
        with rr.RankTracker(whole, tmp_path / name, every=1, probes=[probe]) as tracker:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.mul_(1.01)
            tracker.step(1)
        table = rr.load_run(tmp_path / name)
        assert select(table, quantity="weight_change") == pytest.approx([0.01], rel=0.2)
        assert np.isfinite(select(table, quantity="jacobian_change")).all()
        assert select(table, quantity="jacobian_change").size == 3


def test_layers_need_heads(tmp_path):
    probe = LazinessProbe(torch.randn(2, 4), by_layer=True)
    with pytest.raises(ValueError, match="`by_layer` needs the heads of the model"):
        rr.RankTracker(nn.Linear(4, 2), tmp_path, quantities=(), probes=[probe])
    with pytest.raises(ValueError, match=r"`tangents` must be .* 1"):
        LazinessProbe(X, tangents=0)
