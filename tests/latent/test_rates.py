"""Escape times against the closed form and against the differential equation itself."""

import math

import pytest
import torch
from scipy.integrate import solve_ivp

from rankrise.latent import balanced_learning_rate, escape_time, linear_autoencoder_flow


@pytest.mark.parametrize(("start", "end"), [(1e-2, 0.5), (1e-6, 0.9), (0.3, 0.3)])
def test_two_factors_follow_the_logistic_curve(start, end):
    expected = math.log(end * (1 - start) / (start * (1 - end))) / 2
    assert escape_time(2, start, end) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("num_factors", [1, 3, 4, 10])
def test_deeper_products_follow_their_equation(num_factors):
    n = num_factors
    time = escape_time(n, 1e-3, 0.7)
    flow = solve_ivp(lambda t, s: n * s ** (2 - 2 / n) * (1 - s), (0, time), [1e-3], rtol=1e-10, atol=1e-14)
    assert flow.y[0, -1] == pytest.approx(0.7, rel=1e-6)


def test_one_mode_of_the_flow_is_the_logistic_curve():
    """N = 2, d = k = 1: what gradient descent with a small step does is the closed form."""
    flow = linear_autoencoder_flow(
        torch.ones(1, 1), code_dim=1, depth=0, steps=4000, start=1e-2, learning_rate=1e-3, every=100
    )
    t = flow.path.times
    expected = 1 / (1 + 99 * torch.exp(-2 * t.double()))
    assert (flow.maps[:, 0] - expected).abs().max() < 1e-3


def test_rule_makes_escapes_equal_until_stability_binds():
    for n, start in ((2, 1e-3), (3, 1e-2)):
        rate = balanced_learning_rate(n, start, largest=0.1)
        assert escape_time(n, start) / rate == pytest.approx(escape_time(2, 1e-2) / 0.1)
    assert balanced_learning_rate(6, 1e-4, largest=2.0) == pytest.approx(0.9 / 12)


def test_refusals():
    with pytest.raises(ValueError, match=r"`num_factors` must be at least 1, and 0 < `start` ≤ `end` < 1; got 2, 0.6"):
        escape_time(2, 0.6)
    with pytest.raises(ValueError, match="`reference` and `largest` must be positive; got 0 and 1"):
        balanced_learning_rate(2, 1e-2, reference=0)
