"""Schedules say when, and say what they are."""

import numpy as np
import pytest

from rankrise.tracking import at, every, log_spaced
from rankrise.tracking._schedule import as_schedule


def test_log_spaced_has_both_ends_and_grows():
    schedule = log_spaced(5, 50_000, num=40)
    steps = sorted(schedule.steps)
    assert steps[0] == 5
    assert steps[-1] == 50_000
    assert 30 < len(steps) <= 40
    assert schedule(5)
    assert not schedule(7_000_000)


def test_integer_is_every_and_a_callable_is_itself():
    assert as_schedule(3) == as_schedule(np.int64(3)) == every(3)
    assert as_schedule(at(1)) == at(1)


def test_they_say_what_they_are():
    assert repr(every(3)) == "Every(num_steps=3)"
    assert repr(at(5, 2)) == "at(2, 5)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: every(0), "`num_steps` must be at least 1; got 0"),
        (lambda: log_spaced(5, 2), "`first` < `last`.* got 5, 2 and 60"),
        (lambda: log_spaced(num=1), "`num` ≥ 2 must hold"),
        (lambda: as_schedule("often"), r"`every` must be a number of steps or a callable; got 'often' \(str\)"),
        (lambda: as_schedule(0), "`every` must be at least 1; got 0"),
        (lambda: as_schedule(True, "spectra"), r"`spectra` must be a whole number; got True \(bool\)"),
        (lambda: as_schedule(2.5, "spectra"), r"`spectra` must be a number of steps or a callable; got 2\.5"),
        (lambda: every(2.5), r"`num_steps` must be a whole number; got 2\.5"),
        (lambda: at(1, "2"), "`steps` must be a whole number; got '2'"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
