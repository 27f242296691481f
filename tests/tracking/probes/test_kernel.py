"""The rank of the kernel in the table of a run, with a start that survives a restart."""

import numpy as np
import pytest
import torch
from tests.tracking.models import select, small_model, train_step
from torch import nn

import rankrise as rr
from rankrise.kernels import JacobianOperator, kernel_measures
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import ViTConfig, build_model
from rankrise.tracking import KernelProbe

X = torch.randn(6, 5, 12, generator=torch.Generator().manual_seed(9))
LABELS = torch.arange(6) % 3


def train(out, probes, *, first=1, last=4, model=None, **options):
    model = small_model() if model is None else model
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(first)
    with rr.RankTracker(model, out, every=1, probes=probes, **options) as tracker:
        losses = [(train_step(model, optimiser, s).item(), tracker.step(s))[0] for s in range(first, last + 1)]
    return model, losses, torch.rand(3)


def test_training_is_the_same_to_the_bit(tmp_path):
    plain, losses, drawn = train(tmp_path / "plain", [])
    probed, same_losses, same_drawn = train(tmp_path / "probed", [KernelProbe(X, targets=LABELS, every=2)])
    assert losses == same_losses
    assert torch.equal(drawn, same_drawn)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), probed.parameters(), strict=True))
    assert all(module.training for module in probed.modules())
    assert all(p.grad is None for p in probed.parameters())
    table = rr.load_run(tmp_path / "probed")
    start = JacobianOperator(small_model().eval(), X).gram()
    expected = kernel_measures(JacobianOperator(probed.eval(), X).gram(), targets=LABELS, reference=start)
    for name, value in vars(expected).items():
        found = select(table, quantity=f"kernel_{name}", circuit="ntk", layer=-1)
        assert found.size == 2
        assert found[-1] == pytest.approx(value.item(), rel=1e-4)


def test_resumed_run_compares_with_its_own_start(tmp_path):
    def run(folder, cut):
        model, path = small_model(dropout=0.0), tmp_path / f"{folder}.safetensors"
        for first, last in ((1, 2), (3, 4)) if cut else ((1, 4),):
            options = {"resume": first - 1, "exist": "overwrite"} if first > 1 else {}
            probe = KernelProbe(X, start=path, chunk=4)
            train(tmp_path / folder, [probe], first=first, last=last, model=model, **options)
        return rr.load_run(tmp_path / folder)

    whole, cut = run("whole", cut=False), run("cut", cut=True)
    for name in ("kernel_drift", "kernel_cosine", "kernel_effective_rank"):
        np.testing.assert_array_equal(select(whole, quantity=name), select(cut, quantity=name))
    assert select(whole, quantity="kernel_alignment").size == 0
    probe = KernelProbe(torch.randn(2, 4), start=tmp_path / "whole.safetensors")
    with pytest.raises(ValueError, match="must be that of 2 samples, as `inputs` has; it is not"):
        rr.RankTracker(nn.Linear(4, 2), tmp_path / "other", quantities=(), probes=[probe])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rank_of_the_kernel_rises_while_a_vit_learns_digits(tmp_path, seed):
    data = load_dataset(DataConfig("digits"), root=None)
    sizes = {"width": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16, "mlp_width": 128}
    model = build_model(ViTConfig(image_size=8, num_channels=1, patch_size=2, **sizes), seed=seed)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    images, labels = next(iter(data.test_batches(batch_size=96)))
    probe, step = KernelProbe(images, targets=labels), 0
    with rr.RankTracker(model, tmp_path, every=100, quantities=(), probes=[probe]) as tracker:
        tracker.step(0)
        for epoch in range(19):
            for inputs, targets in data.train_batches(batch_size=64, seed=seed, epoch=epoch):
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                optimiser.zero_grad()
                step += 1
                tracker.step(step)
    run = rr.open_run(tmp_path)
    for name in ("kernel_effective_rank", "kernel_alignment"):
        values = run.curve(name, circuit="ntk").values
        assert values[-1] >= 2 * values[0], name
