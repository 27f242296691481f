"""The stable rank without a spectrum, and its bracket, against the full spectrum."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rankrise as rr


def change(*, heads=3, d=60, r=10, steep=False, step=1e-2, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    k0, q0 = (torch.randn(heads, d, r, generator=g, dtype=dtype) / d**0.5 for _ in range(2))
    k, q = (w + step * torch.randn(heads, d, r, generator=g, dtype=dtype) / d**0.5 for w in (k0, q0))
    if steep:
        k = k + torch.randn(heads, d, 1, generator=g, dtype=dtype) @ torch.randn(heads, 1, r, generator=g, dtype=dtype)
    return k, q, k0, q0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("steep", [False, True])
@pytest.mark.parametrize(("d", "r"), [(60, 10), (300, 64), (20, 30), (5, 1)])
def test_against_the_spectrum(dtype, steep, d, r):
    factors = [f.to(dtype) for f in change(d=d, r=r, steep=steep)]
    sigma = rr.delta_spectrum(*factors)
    exact = rr.stable_rank(sigma)
    rank = rr.delta_stable_rank(*factors)
    torch.testing.assert_close(rank.value, exact, rtol=1e-4, atol=0)
    assert (rank.lower <= exact).all()
    assert (exact <= rank.upper).all()
    torch.testing.assert_close(rank.frobenius_norm, sigma.norm(dim=-1), rtol=1e-7, atol=0)
    assert (rank.spectral_norm <= sigma[:, 0] * (1 + 1e-7)).all()


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 6), st.sampled_from([1e-6, 1e-2, 1.0]))
def test_bracket_holds_for_any_shape_and_any_number_of_iterations(seed, d, r, step):
    factors = change(d=d, r=r, step=step, seed=seed, dtype=torch.float64)
    exact = rr.stable_rank(rr.delta_spectrum(*factors))
    for iterations in (1, 2, 40):
        rank = rr.delta_stable_rank(*factors, block=2, max_iterations=iterations)
        assert (rank.lower <= exact * (1 + 1e-9)).all()
        assert (exact <= rank.upper * (1 + 1e-9)).all()


def test_bracket_is_tight_when_few_directions_carry_the_change():
    rank = rr.delta_stable_rank(*change(steep=True, step=1e-4))
    assert (rank.upper / rank.lower - 1 < 1e-4).all()


def test_warm_start_saves_iterations():
    k, q, k0, q0 = change(d=300, r=64)
    first = rr.delta_stable_rank(k, q, k0, q0)
    again = rr.delta_stable_rank(k * (1 + 1e-6), q, k0, q0, start=first.right_vectors)
    assert (again.num_iterations < first.num_iterations).all()
    torch.testing.assert_close(again.value, first.value, rtol=1e-4, atol=0)


@pytest.mark.parametrize("overtaking", [1.02, 1.1, 3.0])
def test_warm_start_follows_a_direction_that_overtakes_a_flat_bulk(overtaking):
    g = torch.Generator().manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(512, 64, generator=g, dtype=torch.float64)).Q for _ in range(2))
    none, sigma = torch.zeros_like(u), torch.linspace(1, 0.9, 64, dtype=torch.float64)
    start = rr.delta_stable_rank(u * sigma, v, none, v).right_vectors
    sigma[-1] = overtaking
    rank = rr.delta_stable_rank(u * sigma, v, none, v, start=start)
    torch.testing.assert_close(rank.value, rr.stable_rank(sigma), rtol=1e-4, atol=0)


def test_right_vectors_are_orthonormal_and_leading():
    factors = change(steep=True)
    vectors = rr.delta_stable_rank(*factors).right_vectors
    lead = rr.delta_svd(*factors, k=1).Vh
    torch.testing.assert_close((lead @ vectors).norm(dim=-1), torch.ones(3, 1, dtype=torch.float64))
    gram = vectors.mT @ vectors
    assert (torch.linalg.eigvalsh(gram) <= 1 + 1e-9).all()


def test_a_change_of_gauge_is_unresolved_and_says_so():
    """Large ΔK and ΔQ whose product does not change: any rank is possible below the resolution."""
    g = torch.Generator().manual_seed(0)
    k0, q0 = (torch.randn(40, 6, generator=g, dtype=torch.float64) for _ in range(2))
    gauge = torch.eye(6, dtype=torch.float64) + 0.3 * torch.randn(6, 6, generator=g, dtype=torch.float64)
    k, q = k0 @ gauge, q0 @ torch.linalg.inv(gauge).mT
    rank = rr.delta_stable_rank(k, q, k0, q0)
    assert (rank.value, rank.lower, rank.upper) == (0, 0, 12)
    for size in torch.logspace(-9, -3, 13).tolist():  # a true change emerges from below the resolution
        moved = k + size * torch.randn(40, 6, generator=g, dtype=torch.float64)
        rank = rr.delta_stable_rank(moved, q, k0, q0)
        assert rank.lower <= rr.stable_rank(rr.delta_spectrum(moved, q, k0, q0)) <= rank.upper


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 1}, "`block` must be at least 2, `max_iterations` at least 1; got 1 and 40"),
        ({"rtol": float("nan")}, r"`rtol` must be in \(0, 1\); got nan"),
        ({"start": torch.zeros(3, 7, 2)}, r"`start` must be the `right_vectors`.*got \(3, 7, 2\) on cpu. Leave it out"),
        ({"start": torch.full((3, 60, 2), torch.nan)}, r"`start` must be finite; got NaN.*batch index \(0,\)"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        rr.delta_stable_rank(*change(), **options)
