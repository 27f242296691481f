"""The theory engine against answers that were obtained without it."""

import numpy as np
import pytest
import torch
from tests.theory.make_reference import RETURNING, SETTINGS, load_reference
from tests.theory.oracles import (
    draw_head,
    float64_flow,
    head_gradient,
    multiprecision_flow,
    one_coordinate_flow,
    orthogonal_times,
    pesme_flammarion,
)

from rankrise import theory


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def correlated_design(seed):
    """30 samples of 6 correlated features, a noisy linear target."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 6)) @ (np.eye(6) + 0.7 * rng.standard_normal((6, 6)))
    return x, x @ rng.standard_normal(6) + 0.3 * rng.standard_normal(30)


# The gradient of the oracle itself


def test_gradient_of_the_head_equals_the_oracles():
    head = draw_head(samples=7, tokens=5, dim=3, seed=0)
    q = np.random.default_rng(1).standard_normal(6)
    g = theory.attention_head(*tensors(head.x, head.y)).gradient(torch.from_numpy(q))
    np.testing.assert_allclose(g, head_gradient(head.x, head.y, q), rtol=1e-12, atol=1e-13)


# (a) A coordinate leaves the support and returns: the original flow in 90 digits, α = 1e-32


def test_reference_leaves_and_returns_with_the_other_sign():
    _, times, products = load_reference()
    returning = products[:, RETURNING]
    active = np.abs(returning) > 1e-3
    changes = times[np.flatnonzero(np.diff(active))]
    assert len(changes) == 3  # activates, leaves, returns
    assert changes[2] - changes[1] > 0.5
    assert returning[times < changes[2]].min() < -0.05
    assert returning[-1] > 0.1


def test_flow_equals_the_multiprecision_path_through_a_leave_and_a_return():
    head, times, reference = load_reference()
    net = theory.attention_head(*tensors(head.x, head.y))
    flow = theory.solve_flow(net, *tensors(head.u0, head.v0), log10_alpha=-32, t_end=times[-1], rtol=1e-7)
    assert np.abs(flow.at(torch.from_numpy(times)).numpy() - reference).max() < 1e-6


def test_float64_weights_never_see_the_return():
    head, times, reference = load_reference()
    computed = float64_flow(head, log10_alpha=-32, times=times)
    before = times < 1.5
    assert np.abs(computed - reference)[before].max() < 1e-6
    assert np.abs(computed[-1, RETURNING]) < 1e-100
    assert reference[-1, RETURNING] > 0.1
    assert np.abs(computed - reference).max() > 0.5


@pytest.mark.slow
def test_reference_is_reproduced():
    """The first part of the path, past the first activation, computed anew at another tolerance."""
    head, times, reference = load_reference()
    part = times <= 0.3
    computed = multiprecision_flow(head, times=times[part], **SETTINGS | {"rtol": 1e-10})
    assert np.abs(reference[part]).max() > 1.0
    np.testing.assert_allclose(computed, reference[part], rtol=0, atol=1e-8)


# (b) Correlated linear designs: the algorithm of Pesme and Flammarion


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 6])
def test_stages_of_a_correlated_design(seed):
    """Seeds 1, 4 and 6 have a coordinate that leaves, and in 1 and 6 it returns with the other sign."""
    x, y = correlated_design(seed)
    saddles = pesme_flammarion(x, y)
    stages = theory.incremental_stages(theory.linear(*tensors(x, y)))
    np.testing.assert_allclose(stages.times, saddles.times, rtol=1e-6)
    np.testing.assert_allclose(stages.products, saddles.products, rtol=0, atol=1e-6)
    assert [tuple(s) for s in stages.supports] == [tuple(np.flatnonzero(b)) for b in saddles.products]


def test_designs_contain_leaves_and_returns():
    def returns(seed):
        signs = np.sign(pesme_flammarion(*correlated_design(seed)).products)
        return bool(((signs.max(axis=0) == 1) & (signs.min(axis=0) == -1)).any())

    assert [returns(seed) for seed in (0, 1, 2, 4, 6)] == [False, True, False, False, True]


@pytest.mark.parametrize("seed", [2, 6])
def test_flow_at_a_tiny_alpha_visits_the_saddles(seed):
    x, y = correlated_design(seed)
    saddles = pesme_flammarion(x, y)
    net, (u0, v0) = theory.linear(*tensors(x, y)), theory.gaussian_start(6, seed=0)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-1_000_000, t_end=1.1 * saddles.times[-1])
    middles = np.append((saddles.times[1:] + saddles.times[:-1]) / 2, 1.05 * saddles.times[-1])
    visited = flow.at(torch.from_numpy(middles)).numpy()
    np.testing.assert_allclose(visited, saddles.products[1:], rtol=0, atol=1e-6)


# (c) Orthogonal features: every coordinate on its own


def test_stage_times_of_orthogonal_features():
    rng = np.random.default_rng(0)
    x = np.linalg.qr(rng.standard_normal((20, 6)))[0] * np.sqrt(20) * rng.uniform(0.5, 2, 6)
    y = x @ rng.standard_normal(6)
    expected = orthogonal_times(x, y)
    stages = theory.incremental_stages(theory.linear(*tensors(x, y)))
    np.testing.assert_allclose(stages.times, np.sort(expected), rtol=1e-9)
    assert list(stages.coordinates) == np.argsort(expected).tolist()
    assert list(stages.signs) == np.sign(x.T @ y)[np.argsort(expected)].tolist()
    np.testing.assert_allclose(pesme_flammarion(x, y).times, np.sort(expected), rtol=1e-9)


def test_activation_times_of_orthogonal_features_tend_to_the_limit():
    x, y = 2 * np.eye(4), np.array([3.0, -2.0, 1.0, 0.5])
    u0, v0 = tensors(np.array([1.2, 0.7, -1.0, 0.3]), np.array([0.4, -1.1, 0.2, 0.9]))
    expected, net = orthogonal_times(x, y), theory.linear(*tensors(x, y))
    t_end = 1.2 * expected.max()
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-1_000_000, t_end=t_end)
    np.testing.assert_allclose(theory.activation_times(flow), expected, rtol=1e-5)


# (d) One coordinate: closed form


@pytest.mark.parametrize("log10_alpha", [-2, -32, -300])
@pytest.mark.parametrize("target", [1.7, -0.4])
def test_one_coordinate(log10_alpha, target):
    x = np.array([[1.0], [2.0]])
    k = 2.5  # mean of x²
    net = theory.linear(*tensors(x, x[:, 0] * target))
    times = np.linspace(0, 2.5 / (k * abs(target)), 301)
    expected = one_coordinate_flow(k, target, 1.3, 0.4, log10_alpha=log10_alpha, times=times)
    start = tensors(np.array([1.3]), np.array([0.4]))
    flow = theory.solve_flow(net, *start, log10_alpha=log10_alpha, t_end=times[-1], rtol=1e-9)
    np.testing.assert_allclose(flow.at(torch.from_numpy(times))[:, 0], expected, rtol=0, atol=1e-6)
    assert expected[-1] == pytest.approx(target, abs=1e-3)


def test_the_oracles_agree_with_each_other_on_one_coordinate():
    """The closed form against the float64 flow of a head with one token, whose softmax is 1: a linear network."""
    head = draw_head(samples=5, tokens=1, dim=1, seed=3)
    x, y = head.x[:, 0, 0], head.y[:, 0, 0]
    k, target = (x @ x) / 5, (x @ y) / (x @ x)
    times = np.linspace(0, 3 / (k * abs(target)), 31)
    u0, v0 = sorted([abs(head.u0[1]), abs(head.v0[1])], reverse=True)
    sign = np.sign(head.u0[1] * head.v0[1])
    expected = one_coordinate_flow(k, target, u0, sign * v0, log10_alpha=-2, times=times)
    np.testing.assert_allclose(float64_flow(head, log10_alpha=-2, times=times)[:, 1], expected, rtol=0, atol=1e-9)
