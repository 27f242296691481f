"""Planted stages and emergences are found with their shapes and times; smooth curves have none."""

import numpy as np
import pytest
from tests.signals.calibrate import any_noise
from tests.signals.curves import ar_noise, matches, smooth, staircase

from rankrise.signals import detect_stages, emergence_times


def recall(seeds, **kind):
    planted = hits = 0
    for seed in seeds:
        t, y, m, spacing = staircase(seed, noise=0.1, **kind)
        found = detect_stages(t, y).midpoints
        planted += len(m)
        hits += sum(j >= 0 for j in matches(found, m, spacing, 0.05))
    return hits / planted


def false_stages(seeds):
    return sum(len(detect_stages(*smooth(seed)).stages) for seed in seeds)


def confident(seeds):
    """Right or wrong for every stage of confidence ≥ 0.9, half the curves staircases of any noise, half smooth."""
    right = []
    for seed in seeds:
        t, y, m, spacing = any_noise(seed)
        sure = [s.midpoint for s in detect_stages(t, y).stages if s.confidence >= 0.9]
        right += [j >= 0 for j in matches(sure, m, spacing, 0.05)]
        right += [False for s in detect_stages(*smooth(seed)).stages if s.confidence >= 0.9]
    return right


def test_most_planted_stages_are_found_quick():
    assert recall(range(20)) >= 0.9


def test_smooth_losses_have_no_stages_quick():
    assert false_stages(range(30)) <= 2


def test_confidence_is_earned_quick():
    assert np.mean(confident(range(15))) >= 0.9


@pytest.mark.slow
def test_most_planted_stages_are_found():
    assert recall(range(20, 170)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["even", "log", "irregular"])
def test_most_planted_stages_are_found_on_each_clock(clock):
    assert recall(range(200, 240), clock=clock, trend=True) >= 0.9


@pytest.mark.slow
def test_smooth_losses_have_no_stages():
    assert false_stages(range(30, 230)) <= 10  # 5% of 200


@pytest.mark.slow
def test_confidence_is_earned():
    right = confident(range(15, 165))
    assert len(right) > 200
    assert np.mean(right) >= 0.9


def test_stage_has_its_shape_and_plateaus():
    t, s = np.linspace(0, 1000, 500), 8.0
    y = 3 - 2 / (1 + np.exp(-(t - 400) / s)) + 0.02 * ar_noise(np.random.default_rng(0), 500, 0.5)
    found = detect_stages(t, y)
    (stage,) = found.stages
    assert stage.midpoint == pytest.approx(400, abs=3)
    assert stage.size == pytest.approx(2, rel=0.03)
    assert stage.end - stage.start == pytest.approx(2 * np.log(9) * s, rel=0.2)  # from 10% to 90%
    assert stage.confidence > 0.9
    before, after = found.plateaus
    assert (before.start, after.end) == (0, 1000)
    assert (before.end, after.start) == (stage.start, stage.end)
    assert before.level == pytest.approx(3, abs=0.03)
    assert after.level == pytest.approx(1, abs=0.03)
    assert abs(before.slope) < 1e-3
    assert found.noise == pytest.approx(0.02, rel=0.3)
    assert found.correlation == pytest.approx(0.5, abs=0.2)


def test_units_do_not_matter():
    t, y, *_ = staircase(3)
    found, other = detect_stages(t, y), detect_stages(1e6 + 1e3 * t, -5 + 1e-3 * y)
    np.testing.assert_allclose(other.midpoints, 1e6 + 1e3 * found.midpoints, rtol=1e-6)
    assert [s.confidence for s in other.stages] == pytest.approx([s.confidence for s in found.stages], abs=1e-3)


def test_curve_without_noise():
    t = np.linspace(0, 1, 400)
    found = detect_stages(t, 1 / (1 + np.exp((t - 0.3) / 0.01)) + 1 / (1 + np.exp((t - 0.7) / 0.01)))
    np.testing.assert_allclose(found.midpoints, [0.3, 0.7], atol=0.005)
    assert detect_stages(t, (1 + 50 * t) ** -0.7).stages == ()


def test_way_down_from_a_spike_is_no_stage():
    t = np.arange(400.0)
    y = 1 + 0.02 * np.random.default_rng(0).standard_normal(400) + 3.0 * ((t > 180) & (t < 220))
    assert detect_stages(t, y).stages == ()


def test_rising_curve_has_no_drop():
    t, y, *_ = staircase(3, trend=False)
    assert detect_stages(t, -y).stages == ()


def test_long_curves_are_averaged():
    t, y, m, spacing = staircase(5, n=50_000, clock="even", rho=0.5)
    assert sorted(matches(detect_stages(t, y).midpoints, m, spacing)) == list(range(len(m)))


def test_constant_curve_has_no_stages():
    found = detect_stages(np.arange(50), np.full(50, 2.3))
    assert (found.stages, found.plateaus, found.noise, len(found.midpoints)) == ((), (), 0.0, 0)


def test_min_confidence_only_filters():
    t, y, *_ = any_noise(7)
    every, sure = detect_stages(t, y, min_confidence=0).stages, detect_stages(t, y, min_confidence=0.95).stages
    assert sure == tuple(s for s in every if s.confidence >= 0.95)
    assert all(0 <= s.confidence <= 1 for s in every)


T = np.arange(30.0)


@pytest.mark.parametrize(
    ("steps", "values", "options", "message"),
    [
        (
            T,
            np.where(T == 3, np.nan, T),
            {},
            r"`values` must be finite; the value at \(3,\) is nan: drop that sample\.",
        ),
        (np.where(T == 4, np.inf, T), T, {}, r"`steps` must be finite; the value at \(4,\) is inf"),
        (T[:10], T[:10], {}, r"at least 20 samples to show a stage; got 10\."),
        (T[::-1], T, {}, r"`steps` must increase strictly; step 28 comes after 29 at index 1\."),
        (np.minimum(T, 20), T, {}, r"step 20 comes after 20 at index 21"),
        (T, T[:-1], {}, r"`values` must have shape \(n,\) with n = 30 as `steps`; got \(29,\)\."),
        (T[:, None], T, {}, r"`steps` must have shape \(n,\); got \(30, 1\)\."),
        (T, ["a"] * 30, {}, r"`values` must be an array of real numbers; got list\."),
        (T, T, {"min_confidence": 2}, r"`min_confidence` must be in \[0, 1\]; got 2\."),
        (T, T, {"resolution": 0}, r"`resolution` must be in \(0, 1\); got 0\."),
    ],
)
def test_refusals(steps, values, options, message):
    with pytest.raises(ValueError, match=message):
        detect_stages(steps, values, **options)


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


def check_emergences(seeds):
    right = total = false = 0
    for seed in seeds:
        t, sigma, m = planted(seed)
        right += int((abs(emergence_times(t, sigma).times - m) <= 0.05 / 5).sum())  # spacing 1/5
        total += len(m)
        false += int(np.isfinite(emergence_times(*grown(seed)).times).sum())
    return right / total, false / total


def test_planted_emergences_quick():
    recall, false = check_emergences(range(5))
    assert recall >= 0.9
    assert false <= 0.05


@pytest.mark.slow
def test_planted_emergences():
    recall, false = check_emergences(range(5, 45))
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
def test_refusals_of_singular_values(sigma, options, message):
    with pytest.raises(ValueError, match=message):
        emergence_times(T, sigma, **options)
