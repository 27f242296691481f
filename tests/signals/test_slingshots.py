"""Planted slingshots are found at every logging interval; curves without any have none."""

import numpy as np
import pytest
from tests.signals.slingshots import FAMILIES, planted, without

from rankrise.signals import detect_slingshots

NUM = 1000
# With 0.1 decades of noise and ten samples a cycle, noise may put the trough next to the spike.
MOST_MISSED = [(20, 0.0, 0.01), (40, 0.0, 0.01), (100, 0.0, 0.01), (20, 0.1, 0.03), (40, 0.1, 0.03), (100, 0.1, 0.12)]


@pytest.mark.parametrize("family", FAMILIES)
def test_false_slingshots_are_rare(family):
    false = sum(bool(detect_slingshots(*without(family, seed)).closed) for seed in range(NUM))
    assert false <= (0.05 if family == "both_walk" else 0.01) * NUM


@pytest.mark.parametrize(("every", "noise", "most_missed"), MOST_MISSED)
def test_planted_slingshots_are_found_however_often_the_run_was_logged(every, noise, most_missed):
    missed = extra = total = 0
    for seed in range(100):
        steps, loss, norm, peaks = planted(seed, every=every, noise=noise)
        found = [one.peak for one in detect_slingshots(steps, loss, norm).found]
        hits = [min((abs(peak - f) for f in found), default=np.inf) <= 1.5 * every for peak in peaks]
        missed += len(hits) - sum(hits)
        extra += len(found) - sum(hits)
        total += len(peaks)
    assert missed <= most_missed * total
    assert extra <= 0.01 * total


def test_numbers_of_a_slingshot_and_the_period():
    steps, loss, norm, peaks = planted(3)
    found = detect_slingshots(steps, loss, norm)
    assert found.is_cyclic
    assert found.period == pytest.approx(np.median(np.diff(peaks)), abs=40)
    for before, one in zip((None, *found.found), found.found, strict=False):
        assert (before.peak if before else 0) < one.trough < one.peak
        assert one.loss_to > 10 * one.loss_from
        assert one.norm_to > one.norm_from
        assert one.norm_to == norm[steps == one.peak][0]


def test_last_slingshot_is_open_until_its_plateau_is_seen():
    steps, loss, norm, _ = planted(3)
    whole = detect_slingshots(steps, loss, norm)
    one = whole.closed[-1]
    h = one.peak - one.trough
    first, last = np.searchsorted(steps, [one.peak + 0.4 * h, one.peak + h])
    for end, is_open in ((first, True), (last + 1, False)):
        found = detect_slingshots(steps[:end], loss[:end], norm[:end]).found[-1]
        assert found.peak == one.peak
        assert found.is_open == is_open


def test_spike_before_the_data_are_fitted_is_none():
    steps, loss, norm, _ = planted(3)
    assert detect_slingshots(steps, loss, norm).found
    late = loss.copy()
    late[0] = loss[1:].min() * 10  # as if training had begun at a small loss
    assert not detect_slingshots(steps, late, norm).found


def test_norm_that_grows_on_after_the_spike_is_none():
    steps, loss, norm, _ = planted(3)
    assert not detect_slingshots(steps, loss, 10 + 0.01 * steps).found
    assert not detect_slingshots(steps, loss, np.full_like(norm, 10.0)).found
    assert not detect_slingshots(steps, loss, -norm + 2 * norm.max()).found


def test_a_loss_of_zero_is_taken_as_the_smallest():
    steps, loss, norm, _ = planted(3)
    lowest = loss <= np.sort(loss)[20]
    rounded, raised = np.where(lowest, 0.0, loss), np.where(lowest, loss[~lowest].min(), loss)
    peaks = [[one.peak for one in detect_slingshots(steps, y, norm).found] for y in (rounded, raised)]
    assert peaks[0] == peaks[1] != []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fitted": 0}, "`fitted` must be positive; got 0"),
        ({"steady": 2}, "`steady` must be"),
        ({"loss": -np.ones(30)}, "`loss` must be positive; its smallest value is -1"),
        ({"loss": np.zeros(30)}, "`loss` must be positive"),
        ({"norm": np.ones(29)}, "norm"),
        ({"norm": np.full(30, np.nan)}, "norm"),
    ],
)
def test_refusals(change, message):
    arguments = {"steps": np.arange(30.0), "loss": np.ones(30), "norm": np.ones(30)} | change
    steps, loss, norm = (arguments.pop(name) for name in ("steps", "loss", "norm"))
    with pytest.raises(ValueError, match=message):
        detect_slingshots(steps, loss, norm, **arguments)
