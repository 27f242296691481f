"""On a GPU the numbers are those of a CPU, and the tracker adds little to its memory."""

import numpy as np
import pytest
import torch
from tests.tracking.models import in_order, small_model

import rankrise as rr

pytestmark = pytest.mark.gpu


def table(out, device, **options):
    model = small_model(layers=3, width=48, heads=4, dropout=0.0).to(device)
    generator = torch.Generator().manual_seed(0)
    with rr.RankTracker(model, out, every=1, spectra=2, **options) as tracker, torch.no_grad():
        for step in range(1, 5):
            for p in model.parameters():
                p += 0.01 * torch.randn(p.shape, generator=generator).to(device)
            tracker.step(step, loss=torch.tensor(1.0 / step, device=device))
    return in_order(rr.load_run(out))


@pytest.mark.parametrize("initial", ["device", "cpu", "disk"])
def test_same_numbers_as_on_a_cpu(tmp_path, initial):
    cpu, cuda = table(tmp_path / "cpu", "cpu"), table(tmp_path / "cuda", "cuda", initial=initial)
    assert cpu.drop_columns("value").equals(cuda.drop_columns("value"))
    flat = np.isin(cpu["quantity"].to_numpy(zero_copy_only=False), ["overlap_left", "overlap_right"])
    values = [t["value"].to_numpy() for t in (cpu, cuda)]
    np.testing.assert_allclose(values[1][~flat], values[0][~flat], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(values[1][flat], values[0][flat], atol=0.05)  # close singular values mix


def test_training_is_bit_identical_with_and_without(tmp_path):
    def train(tracked):
        torch.manual_seed(0)
        model = small_model(dropout=0.1).cuda()
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        tracker = rr.RankTracker(model, tmp_path, every=1, spectra=2) if tracked else None
        for step in range(1, 5):
            x = torch.randn(4, 5, 12, device="cuda")
            loss = (model(x) - x.flip(1)).square().mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if tracker is not None:
                tracker.step(step, loss=loss)
        return [p.detach().clone() for p in model.parameters()]

    for a, b in zip(train(False), train(True), strict=True):
        assert torch.equal(a, b)


def test_deterministic_algorithms_only(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        found = table(tmp_path, "cuda", strict=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert {"energy_rank", "overlap_left"} <= set(found["quantity"].to_pylist())
