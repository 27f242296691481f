"""One decomposition, every rank: against a dense SVD, whatever the spectrum, shape and dtype."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise.checkpoints import decompose_delta
from rankrise.checkpoints.delta._decomposition import decompose_factors


def matrix(m, n, sigma, seed=0):
    generator = torch.Generator().manual_seed(seed)
    k = min(m, n)
    u, v = (torch.linalg.qr(torch.randn(size, k, generator=generator, dtype=torch.float64)).Q for size in (m, n))
    return (u * torch.as_tensor(sigma, dtype=torch.float64)) @ v.mT


SPECTRA = {
    "steep": lambda k: [2.0**-i for i in range(k)],
    "slow": lambda k: [1.0 / i for i in range(1, k + 1)],
    "flat": lambda k: [1.0 + 1e-3 * i for i in range(k)][::-1],
    "planted": lambda k: [1.0] * 6 + [0.0] * (k - 6),
    "planted in noise": lambda k: [1.0] * 6 + [0.1 - 0.05 * i / k for i in range(k - 6)],
    "planted in rounding": lambda k: [1.0] * 6 + [1e-4 - 5e-5 * i / k for i in range(k - 6)],
    "three scales": lambda k: [1.0] * 4 + [1e-3 / i for i in range(1, 5)] + [1e-5] * (k - 8),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(300, 200), (200, 300), (256, 256)])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_error_is_exact_for_the_factors_and_within_a_percent_of_the_best(spectrum, shape, dtype):
    delta = matrix(*shape, SPECTRA[spectrum](min(shape))).to(dtype)
    sigma = torch.linalg.svdvals(delta.double())
    for options in ({"max_rank": 12}, {"energy": 0.9}, {"max_rank": 12, "exact": True}):
        found = decompose_delta(delta, **options)
        for rank in {1, min(5, found.max_rank), found.max_rank}:
            b, a = found.factors(rank)
            true = float((delta.double() - b.double() @ a.double()).norm() / sigma.norm())
            best = float(sigma[rank:].norm() / sigma.norm())
            assert found.error(rank) == pytest.approx(true, rel=1e-4, abs=3e-6)
            assert true <= 1.01 * best + 1e-6
    assert found.is_exact
    torch.testing.assert_close(found.sigma, sigma[: found.max_rank], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("max_rank", [40, 152, 155, 160, 1000])
def test_as_many_directions_as_were_asked_for(max_rank):
    found = decompose_delta(matrix(200, 160, SPECTRA["slow"](160)).float(), max_rank=max_rank)
    assert found.max_rank == min(max_rank, 160)


def test_directions_of_rounding_are_left_out():
    """A change of 0.3% in float32: what is below its sixteen directions is what storing the sum has rounded."""
    generator = torch.Generator().manual_seed(0)
    weight, left, right = (torch.randn(*s, generator=generator) for s in ((256, 768), (256, 16), (16, 768)))
    change = left @ right
    delta = (weight + change * (0.003 * weight.norm() / change.norm())) - weight
    noise = torch.finfo(torch.float32).eps * float(weight.norm()) * (256**-0.5 + 768**-0.5) / 12**0.5
    sigma = torch.linalg.svdvals(delta.double())
    for exact in (False, True):
        found = decompose_delta(delta, max_rank=32, exact=exact, noise=noise)
        b, a = found.factors(32)
        assert found.max_rank == 16
        assert (delta.double() - b.double() @ a.double()).norm() <= 1.005 * sigma[16:].norm()


@pytest.mark.parametrize("spectrum", ["slow", "three scales"])
def test_blocks_of_rows_are_the_matrix(spectrum):
    delta = matrix(250, 100, SPECTRA[spectrum](100)).float()
    for options in ({"max_rank": 5}, {"energy": 0.95}, {"exact": True}):
        whole, parts = decompose_delta(delta, **options), decompose_delta(lambda: delta.split(33), **options)
        torch.testing.assert_close(parts.sigma, whole.sigma, rtol=1e-5, atol=1e-7)
        assert parts.squared_norm == pytest.approx(whole.squared_norm)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 4), st.sampled_from([1e-18, 1.0, 1e18]), st.booleans())
def test_any_shape_any_rank_any_size(m, n, rank, scale, exact):
    generator = torch.Generator().manual_seed(m * 41 + n)
    left, right = torch.randn(m, rank, generator=generator), torch.randn(rank, n, generator=generator)
    delta = scale * (left @ right)
    found = decompose_delta(delta, energy=0.99999, exact=exact)
    assert found.max_rank <= max(rank, 0) + 1
    assert found.error(found.max_rank) < 4e-3
    assert (found.max_rank == 0) == (not delta.any())


def test_factors_are_decomposed_without_their_product():
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(70, 9, generator=generator), torch.randn(50, 9, generator=generator)
    found = decompose_factors(left, right)
    torch.testing.assert_close(found.sigma, torch.linalg.svdvals((left @ right.mT).double())[:9], rtol=1e-6, atol=1e-6)
    b, a = found.factors(9)
    torch.testing.assert_close(b @ a, (left @ right.mT).double(), rtol=1e-5, atol=1e-5)


def test_same_bits_twice_and_no_global_randomness():
    delta = matrix(200, 150, SPECTRA["slow"](150)).float()
    state = torch.random.get_rng_state()
    one, other = decompose_delta(delta, max_rank=4), decompose_delta(delta, max_rank=4)
    assert torch.equal(one.left, other.left)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("delta", "options", "message"),
    [
        (torch.ones(3), {}, r"must be a matrix of floating point numbers; got torch.float32 \(3,\)"),
        (torch.ones(3, 3, dtype=torch.int64), {}, "must be a matrix of floating point"),
        (torch.ones(0, 3), {}, "it is empty"),
        (torch.full((3, 3), float("nan")), {}, "it holds NaN or infinity"),
        (torch.ones(3, 3), {"max_rank": 0}, "`max_rank` must be a positive integer; got 0"),
        (torch.ones(3, 3), {"energy": 0.0}, r"`energy` must be in \(0, 1\]"),
        (lambda: [torch.ones(2, 3), torch.ones(2, 4)], {}, "blocks of equal width; got 3 and 4"),
    ],
)
def test_mistakes(delta, options, message):
    with pytest.raises(ValueError, match=message):
        decompose_delta(delta, **options)
