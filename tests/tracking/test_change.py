"""What a quantity sees, against dense singular value decompositions in float64."""

import pytest
import torch

import rankrise as rr
from rankrise.linalg import matrix_spectrum
from rankrise.tracking import MatrixChange, ProductChange, _change


def factors(n=3, d=20, r=4, *, decay=0.6, seed=0):
    g = torch.Generator().manual_seed(seed)
    k0, q0 = (torch.randn(n, d, r, generator=g) for _ in range(2))
    scale = decay ** torch.arange(r)
    return k0 + torch.randn(n, d, r, generator=g) * scale, q0 + 0.1 * torch.randn(n, d, r, generator=g), k0, q0


def dense(k, q, k0, q0):
    return k.double() @ q.double().mT - k0.double() @ q0.double().mT


@pytest.mark.parametrize("shape", [(20, 4), (80, 65)], ids=["from the spectrum", "from a power iteration"])
def test_numbers_of_a_product(shape):
    stack = factors(d=shape[0], r=shape[1])
    change = ProductChange(*stack, num_directions=3)
    sigma = torch.linalg.svdvals(dense(*stack))
    torch.testing.assert_close(change.sigma, sigma[..., : change.sigma.shape[-1]], rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(change.stable_rank, rr.stable_rank(sigma), rtol=1e-3, atol=0)
    torch.testing.assert_close(change.frobenius_norm, sigma.norm(dim=-1), rtol=1e-6, atol=0)
    torch.testing.assert_close(change.spectral_norm, sigma[..., 0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("warm", [False, True])
def test_leading_directions(warm):
    stack = factors(d=30, r=6)
    previous = ProductChange(*factors(d=30, r=6, seed=1), num_directions=3).leading if warm else None
    change = ProductChange(*stack, num_directions=3, previous=previous)
    left, sigma, right = change.leading
    u, s, vh = torch.linalg.svd(dense(*stack))
    torch.testing.assert_close(sigma.double(), s[..., :3], rtol=1e-5, atol=0)
    for found, exact in ((left, u[..., :3]), (right, vh[..., :3, :].mT)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(
            (found.double() * exact).sum(-2).abs(), torch.ones_like(sigma).double(), rtol=1e-5, atol=0
        )


def test_no_directions_when_none_are_asked_for():
    assert ProductChange(*factors(), num_directions=0).leading is None


@pytest.mark.parametrize("shape", [(2, 9, 5), (2, 5, 9)])
def test_numbers_of_a_matrix(shape):
    delta = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    change = MatrixChange(matrix_spectrum(delta))
    sigma = torch.linalg.svdvals(delta.double())
    torch.testing.assert_close(change.sigma, sigma, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(change.stable_rank, rr.stable_rank(sigma))
    torch.testing.assert_close(change.frobenius_norm, delta.double().norm(dim=(-2, -1)))
    torch.testing.assert_close(change.spectral_norm, sigma[..., 0])
    assert change.leading is change.previous is None


def test_power_iteration_starts_from_the_directions_before(monkeypatch):
    starts = []

    def spy(*factors, start=None):
        starts.append(start)
        return rr.linalg.delta_stable_rank(*factors, start=start)

    monkeypatch.setattr(_change, "delta_stable_rank", spy)
    big = {"d": 80, "r": 65}  # on a CPU, smaller factors are read through their spectrum
    previous = ProductChange(*factors(**big, seed=1), num_directions=3).leading
    vanished = previous._replace(sigma=torch.zeros_like(previous.sigma))
    for before in (None, previous, vanished):
        assert ProductChange(*factors(**big), num_directions=3, previous=before).stable_rank.isfinite().all()
    assert starts[0] is starts[2] is None
    assert starts[1] is previous.right
