"""Subspace iteration gives what QR and SVD give, where directions are defined."""

import pytest
import torch

from rankrise import linalg


def change(seed=0, heads=3, d=40, r=12, directions=4):
    g = torch.Generator().manual_seed(seed)
    k0, q0 = (torch.randn(heads, d, r, generator=g) / d**0.5 for _ in range(2))
    low = torch.randn(heads, d, directions, generator=g) @ torch.randn(heads, directions, r, generator=g)
    return k0 + low + 1e-3 * torch.randn(heads, d, r, generator=g), q0, k0, q0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equals_delta_svd(dtype):
    factors = [f.to(dtype) for f in change()]
    exact, found = linalg.delta_svd(*factors, k=4), linalg.leading_directions(*factors, k=4)
    torch.testing.assert_close(found.S, exact.S, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.U, exact.U, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.Vh, exact.Vh, rtol=0, atol=1e-6)


def test_start_saves_iterations():
    factors = change()
    exact = linalg.delta_svd(*factors, k=4)
    warm = linalg.leading_directions(*factors, k=4, start=exact.Vh.mT, iterations=2)
    torch.testing.assert_close(warm.S, exact.S, rtol=1e-9, atol=0)


def test_unchanged_heads_and_small_changes():
    k, q, k0, q0 = change(d=5, r=1)
    k = k.clone()
    k[1] = k0[1]
    found = linalg.leading_directions(k, q, k0, q0, k=8)
    assert found.S.shape == (3, 2)
    assert (found.S[1] == 0).all()
    assert found.U.isfinite().all()


def test_errors():
    with pytest.raises(ValueError, match="`k` and `iterations` must be integers of at least 1; got 0 and 24"):
        linalg.leading_directions(*change(), k=0)
