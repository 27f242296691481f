"""Stages of curves whose stages are known, and of curves that have none."""

import numpy as np
import pytest
from tests.signals.calibrate import any_noise
from tests.signals.curves import ar_noise, matches, smooth, staircase

from rankrise.signals import detect_stages


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
