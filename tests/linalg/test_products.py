"""Accuracy of product and change spectra against 50 digits and against dense float64; invariants; determinism."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.linalg.oracles import dense_delta, error_bound, exact_delta_spectrum

import rankrise as rr

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def graded(rows, columns, *, seed, decay, dtype):
    """Random factor whose singular values fall by 10^decay from the first to the last."""
    u, _, vh = torch.linalg.svd(randn(rows, columns, seed=seed, dtype=torch.float64), full_matrices=False)
    k = u.shape[-1]
    return (u * torch.logspace(0, -decay, k, dtype=torch.float64) @ vh).to(dtype)


@st.composite
def changes(draw, max_dim=7):
    d, e, r = (draw(st.integers(1, n)) for n in (max_dim, max_dim, 4))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    seed = draw(st.integers(0, 2**31))
    decay = draw(st.sampled_from([0, 3, 7]))
    scale_k, scale_q = (10.0 ** draw(st.integers(-8, 8)) for _ in range(2))
    step_k, step_q = (draw(st.sampled_from([0.0, 1e-6, 1e-3, 1.0])) for _ in range(2))
    k0 = graded(d, r, seed=seed, decay=decay, dtype=torch.float64) * scale_k
    q0 = graded(e, r, seed=seed + 1, decay=decay, dtype=torch.float64) * scale_q
    k = k0 + step_k * scale_k * randn(d, r, seed=seed + 2, dtype=torch.float64)
    q = q0 + step_q * scale_q * randn(e, r, seed=seed + 3, dtype=torch.float64)
    return tuple(t.to(dtype) for t in (k, q, k0, q0))


@settings(max_examples=150, deadline=None)
@given(changes())
def test_change_against_fifty_digits(change):
    sigma = rr.delta_spectrum(*change)
    exact = exact_delta_spectrum(*change)[: len(sigma)]
    assert sigma.shape == (min(change[0].shape[0], change[1].shape[0], 2 * change[0].shape[1]),)
    assert (sigma - torch.tensor(exact, dtype=torch.float64)).abs().max() <= error_bound(*change)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "e", "r"), [(96, 96, 16), (40, 200, 8), (30, 30, 32), (64, 1, 4)])
@pytest.mark.parametrize("step", [1e-6, 1e-2, 1.0])
def test_change_against_dense_float64(dtype, d, e, r, step):
    k0, q0 = randn(3, d, r, seed=1), randn(3, e, r, seed=2)
    change = [t.to(dtype) for t in (k0 + step * randn(3, d, r, seed=3), q0 + step * randn(3, e, r, seed=4), k0, q0)]
    sigma = rr.delta_spectrum(*change)
    dense = torch.linalg.svdvals(dense_delta(*change))[..., : sigma.shape[-1]]
    assert ((sigma - dense).abs() <= error_bound(*change)[:, None]).all()


@pytest.mark.parametrize("shape", [(768, 64), (512, 128)])
def test_tiny_change_in_float32_keeps_its_digits(shape):
    """At ‖ΔK‖/‖K‖ = ‖ΔQ‖/‖Q‖ = 1e-6: within 1e-5 of the change's own σ₁, where a difference of products has none."""
    d, r = shape
    k0, q0 = randn(d, r, seed=1) / d**0.5, randn(d, r, seed=2) / d**0.5
    k, q = k0 + 1e-6 * randn(d, r, seed=3) / d**0.5, q0 + 1e-6 * randn(d, r, seed=4) / d**0.5
    exact = torch.linalg.svdvals(dense_delta(k, q, k0, q0))[: 2 * r]
    sigma = rr.delta_spectrum(k, q, k0, q0)
    assert (sigma - exact).abs().max() <= 1e-5 * exact[0]
    naive = torch.linalg.svdvals(k @ q.mT - k0 @ q0.mT)[: 2 * r].double()
    assert (naive - exact).abs().max() > 1e-3 * exact[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gauge_change_is_small_within_its_honest_bound(dtype):
    """K → K G, Q → Q G⁻ᵀ changes the factors a lot and the product not at all."""
    d, r = 80, 8
    k0, q0 = randn(d, r, seed=1, dtype=torch.float64), randn(d, r, seed=2, dtype=torch.float64)
    g = torch.eye(r, dtype=torch.float64) + 0.5 * randn(r, r, seed=3, dtype=torch.float64)
    change = [t.to(dtype) for t in (k0 @ g, q0 @ torch.linalg.inv(g).mT, k0, q0)]
    sigma = rr.delta_spectrum(*change)
    assert sigma[0] <= error_bound(*change)
    assert sigma[0] <= 1e-3 * rr.product_spectrum(*change[:2])[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_unchanged_factors_give_exact_zeros(dtype):
    k0, q0 = randn(4, 20, 6, seed=1, dtype=dtype), randn(4, 30, 6, seed=2, dtype=dtype)
    assert (rr.delta_spectrum(k0, q0, k0, q0) == 0).all()
    assert (rr.stable_rank(rr.delta_spectrum(k0, q0, k0, q0)) == 0).all()
    assert (rr.delta_stable_rank(k0, q0, k0, q0).value == 0).all()
    assert (rr.delta_svd(k0, q0, k0, q0).S == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_one_factor_changed(dtype):
    k0, q0 = randn(50, 6, seed=1, dtype=dtype), randn(50, 6, seed=2, dtype=dtype)
    q = q0 + 1e-5 * randn(50, 1, seed=3, dtype=dtype) @ randn(1, 6, seed=4, dtype=dtype)
    change = (k0, q, k0, q0)
    dense = torch.linalg.svdvals(dense_delta(*change))[:12]
    assert (rr.delta_spectrum(*change) - dense).abs().max() <= error_bound(*change)
    assert (rr.delta_spectrum(q, k0, q0, k0) - dense).abs().max() <= error_bound(*change)


def test_one_unchanged_head_among_others_stays_exactly_zero():
    k0, q0 = randn(3, 20, 4, seed=1), randn(3, 20, 4, seed=2)
    k = k0 + 0.1 * randn(3, 20, 4, seed=3)
    k[1] = k0[1]
    sigma = rr.delta_spectrum(k, q0, k0, q0)
    assert (sigma[1] == 0).all()
    assert (sigma[[0, 2], 0] > 0).all()


@pytest.mark.parametrize("scale", [1e-45, 1e45])
def test_float64_range(scale):
    """Sixth powers of such numbers come near the range of float64."""
    change = [randn(6, 3, seed=s, dtype=torch.float64) for s in range(4)]
    scaled = [c * scale for c in change]
    torch.testing.assert_close(rr.delta_spectrum(*scaled), scale**2 * rr.delta_spectrum(*change), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(rr.delta_svd(*scaled).S, scale**2 * rr.delta_svd(*change).S, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(rr.delta_stable_rank(*scaled).value, rr.delta_stable_rank(*change).value)


def test_product_spectrum_of_rank_deficient_factors():
    k = randn(30, 2, seed=1) @ randn(2, 8, seed=2)
    q = randn(20, 8, seed=3)
    exact = torch.linalg.svdvals(k.double() @ q.double().mT)[:8]
    assert (rr.product_spectrum(k, q) - exact).abs().max() <= 1e-5 * exact[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 100])
def test_svd_is_the_best_approximation(dtype, k):
    change = [randn(2, 15, 3, seed=s, dtype=dtype) for s in range(2)] + [
        randn(2, 15, 3, seed=s, dtype=dtype) for s in (5, 6)
    ]
    u, s, vh = rr.delta_svd(*change, k=k)
    dense = dense_delta(*change)
    sigma = torch.linalg.svdvals(dense)
    k = min(k, 6)
    assert u.shape == (2, 15, k)
    assert vh.shape == (2, k, 15)
    torch.testing.assert_close(s, sigma[:, :k])
    rest = torch.linalg.matrix_norm(dense - u * s[:, None] @ vh)
    torch.testing.assert_close(rest, sigma[:, k:].norm(dim=-1), atol=1e-10, rtol=1e-6)
    torch.testing.assert_close(u.mT @ u, torch.eye(k, dtype=torch.float64).expand(2, k, k))
    assert (u.gather(-2, u.abs().argmax(-2, keepdim=True)) > 0).all()


def test_batch_dimensions_are_kept_and_independent():
    change = [randn(2, 3, 9, 4, seed=s) for s in range(4)]
    sigma = rr.delta_spectrum(*change)
    assert sigma.shape == (2, 3, 8)
    assert torch.equal(sigma[1, 2], rr.delta_spectrum(*(c[1, 2] for c in change)))


def test_bits_do_not_depend_on_context():
    """Not on autocast, TF32, gradients, the default dtype or the number of calls; the caller's RNG does not move."""
    change = [randn(2, 64, 16, seed=s).requires_grad_() for s in range(4)]
    functions = [rr.delta_spectrum, lambda *c: rr.delta_svd(*c).U, lambda *c: rr.delta_stable_rank(*c).value]
    state = torch.random.get_rng_state()
    for function in functions:
        expected = function(*change)
        assert not expected.requires_grad
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(function(*change), expected)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(function(*change), expected)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.equal(torch.random.get_rng_state(), state)


def test_weights_as_a_module_stores_them():
    """Views of nn.Linear weights, transposed and cut into heads, are taken as they are."""
    query, key = (torch.nn.Linear(32, 4 * 8, bias=False) for _ in range(2))
    heads = [w.weight.view(4, 8, 32).mT for w in (key, query)]
    sigma = rr.product_spectrum(*heads)
    dense = torch.linalg.svdvals(heads[0][2].double() @ heads[1][2].double().mT)[:8]
    torch.testing.assert_close(sigma[2], dense.detach(), atol=1e-9, rtol=1e-6)
