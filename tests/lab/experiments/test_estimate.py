"""How long runs take: measured beats guessed, guesses are corrected, the file beside the runs may be anything."""

import json

import pytest

from rankrise.lab.experiments import experiments, plan_reproduction, vary
from rankrise.lab.experiments._estimate import NAME, Estimator, guess_seconds, read_durations, write_durations

SPEC = experiments()["vit-digits"].small
FLOW = experiments()["toy-flow-1e-8"].paper


def test_a_run_like_it_decides():
    estimator = Estimator()
    estimator.learn(SPEC, 21.0)
    assert estimator.seconds(vary(SPEC, seed=7)) == 21.0
    assert estimator.total([SPEC, vary(SPEC, seed=1)]) == 42.0


def test_guesses_of_one_kind_are_corrected_by_runs_of_that_kind():
    other = experiments()["vit-cifar10"].small
    estimator = Estimator()
    before, flow = estimator.seconds(other), estimator.seconds(FLOW)
    estimator.learn(SPEC, 3 * guess_seconds(SPEC, on_gpu=False))
    assert estimator.seconds(other) == pytest.approx(3 * before)
    assert estimator.seconds(FLOW) == flow


@pytest.mark.parametrize("name", experiments())
def test_guesses_are_sensible(name):
    """Smoke is seconds, small under an hour on a CPU; larger scales take longer."""
    found = experiments()[name]
    smoke, small = (guess_seconds(found.spec(scale), on_gpu=False) for scale in ("smoke", "small"))
    assert 0 < smoke < 60
    assert smoke <= small < 3600


def test_the_small_reproduction_takes_less_than_an_hour(tmp_path):
    """With every data set, also those that were not at hand when it was measured."""
    runs = plan_reproduction("small", out=tmp_path, data=tmp_path).runs
    assert {"vit-imagenet", "gpt2-wikitext103"} <= {run.name for run in runs}
    assert Estimator().total(run.spec for run in runs) < 3600


def test_the_papers_vit_on_an_h200():
    """Measured: 9.59 ms a step, so 7 min 45 s and half a minute to begin."""
    assert 0.5 < guess_seconds(experiments()["vit-cifar10"].paper, on_gpu=True) / 495 < 2


def test_durations_are_kept(tmp_path):
    write_durations(tmp_path, {"abc": 1.25})
    assert read_durations(tmp_path) == {"abc": 1.25}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_durations_of_two_processes_are_both_kept(tmp_path):
    write_durations(tmp_path, {"abc": 1.25})
    write_durations(tmp_path, {"def": 2.5})
    assert read_durations(tmp_path) == {"abc": 1.25, "def": 2.5}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "x"}', '{"a": -1, "b": 2}', '{"a": NaN}'])
def test_a_strange_file_is_ignored(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    assert read_durations(tmp_path) == ({"b": 2.0} if '"b"' in text else {})


def test_a_folder_that_is_not_there(tmp_path):
    write_durations(tmp_path / "nowhere", {"a": 1.0})
    assert read_durations(tmp_path / "nowhere") == {}
    assert json.dumps(read_durations(tmp_path)) == "{}"
