"""Emergence times of planted singular values, and of values that never had a floor."""

import numpy as np
import pytest
from tests.signals.curves import ar_noise

from rankrise.signals import emergence_times


def planted(seed, n=400, k=4):
    """σ from a floor near 1e-3 to 0.3-3, logistic in the logarithm, noise 10% of σ; times and spacing."""
    rng = np.random.default_rng([4, seed])
    t = np.linspace(0, 1, n)
    m = np.linspace(0, 1, k + 2)[1:-1] + rng.uniform(-0.05, 0.05, k)
    low, high = np.log(1e-3 * rng.uniform(0.5, 2, k)), np.log(rng.uniform(0.3, 3, k))
    log = low + (high - low) / (1 + np.exp(-(t[:, None] - m) / rng.uniform(0.005, 0.015, k)))
    rho = rng.choice([0.0, 0.5, 0.8])
    return t, np.exp(log + 0.1 * np.stack([ar_noise(rng, n, rho) for _ in range(k)], axis=1)), m


def grown(seed, n=400, k=4):
    """σ that grow as powers of time from the first step on, noise 10%: no floor, no emergence."""
    rng = np.random.default_rng([5, seed])
    t = np.linspace(1, 1000, n)
    return t, np.exp(
        rng.uniform(0.3, 1.5, k) * np.log(t[:, None]) + 0.1 * np.stack([ar_noise(rng, n, 0.5)] * k, axis=1)
    )


def check(seeds):
    right = total = false = 0
    for seed in seeds:
        t, sigma, m = planted(seed)
        right += int((abs(emergence_times(t, sigma).times - m) <= 0.05 / 5).sum())  # spacing 1/5
        total += len(m)
        false += int(np.isfinite(emergence_times(*grown(seed)).times).sum())
    return right / total, false / total


def test_planted_emergences_quick():
    recall, false = check(range(5))
    assert recall >= 0.9
    assert false <= 0.05


@pytest.mark.slow
def test_planted_emergences():
    recall, false = check(range(5, 45))
    assert recall >= 0.9
    assert false <= 0.05


def test_value_that_stays_down_and_value_still_rising():
    t = np.linspace(0, 100, 300)
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal((300, 3)))
    rising = np.exp(np.clip((t - 80) / 4, 0, None)) * 1e-3  # still rising when the run ends
    found = emergence_times(t, noise * np.stack([1e-3 + 1 / (1 + np.exp(30 - t)), 1e-3 + 0 * t, rising], axis=1))
    assert np.isfinite(found.times).tolist() == [True, False, True]
    assert found.ratios[0] == pytest.approx(1000, rel=0.2)
    assert found.starts[2] > 75
    assert found.confidences[1] == 0


def test_exact_zero_at_the_start_is_a_floor():
    t = np.arange(200.0)
    sigma = np.where(t < 100, 0.0, 1.0)[:, None]
    assert emergence_times(t, sigma).times[0] == pytest.approx(99.5, abs=1)


def test_all_zero_and_no_columns():
    assert np.isnan(emergence_times(np.arange(30), np.zeros((30, 2))).times).all()
    assert emergence_times(np.arange(30), np.zeros((30, 0))).times.shape == (0,)


T = np.arange(30.0)


@pytest.mark.parametrize(
    ("sigma", "options", "message"),
    [
        (np.ones(30), {}, r"`sigma` must have shape \(n, k\) with n = 30 as `steps`; got \(30,\)\."),
        (-np.ones((30, 1)), {}, r"`sigma` must not be negative; got -1\."),
        (np.full((30, 1), np.nan), {}, r"`sigma` must be finite; the value at \(0, 0\) is nan"),
        (np.ones((30, 1)), {"floor": 0.0}, r"`floor` must be positive; got 0\.0\."),
        (np.ones((30, 1)), {"min_ratio": 1.0}, r"`min_ratio` must be above 1; got 1\.0\."),
    ],
)
def test_refusals(sigma, options, message):
    with pytest.raises(ValueError, match=message):
        emergence_times(T, sigma, **options)
