"""Measures of centred kernels, on kernels whose measures are known."""

import pytest
import torch

from rankrise.kernels import kernel_measures


def centring(n):
    return torch.eye(n, dtype=torch.float64) - 1 / n


def test_common_mode_is_taken_out():
    features = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, shifted = (kernel_measures(f @ f.T) for f in (features, features + 100))
    for name in ("effective_rank", "stable_rank", "trace"):
        torch.testing.assert_close(getattr(plain, name), getattr(shifted, name), rtol=1e-6, atol=0)


def test_ranks_are_those_of_the_eigenvalues():
    values = torch.tensor([4.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    q = torch.linalg.qr(
        centring(5) @ torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )[0]
    found = kernel_measures(q @ torch.diag(values) @ q.T)
    p = values[:3] / 7
    assert found.effective_rank.item() == pytest.approx((-(p * p.log()).sum()).exp().item())
    assert found.stable_rank.item() == pytest.approx(7 / 4)
    assert found.trace.item() == pytest.approx(7)
    assert found.drift.isnan()
    assert found.cosine.isnan()
    assert found.alignment.isnan()


def test_drift_and_cosine_against_a_reference():
    kernel = torch.diag(torch.arange(1.0, 6.0)).double()
    same = kernel_measures(3 * kernel, reference=kernel)
    assert same.drift.item() == pytest.approx(2)
    assert same.cosine.item() == pytest.approx(1)


def test_alignment_with_classes_and_with_numbers():
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    own = torch.nn.functional.one_hot(labels).double()
    assert kernel_measures(own @ own.T + 7, targets=labels).alignment.item() == pytest.approx(1)
    assert kernel_measures(own @ own.T, targets=own).alignment.item() == pytest.approx(1)
    line = torch.tensor([-1.0, -1, -1, 1, 1, 1])
    assert kernel_measures(torch.outer(line, line), targets=line).alignment.item() == pytest.approx(1)
    other = torch.tensor([1.0, -1, 0, 0, -1, 1])
    assert kernel_measures(torch.outer(line, line), targets=other).alignment.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        (torch.zeros(2, 3), {}, r"`kernel` must be \(N, N\); got \(2, 3\)"),
        (torch.eye(2), {"reference": torch.eye(3)}, r"`reference` must have the shape of the kernel; got \(3, 3\)"),
        (torch.eye(2), {"targets": torch.zeros(3)}, r"an entry for each of the 2 samples; got \(3,\)"),
    ],
)
def test_refusals(kernel, options, message):
    with pytest.raises(ValueError, match=message):
        kernel_measures(kernel, **options)
