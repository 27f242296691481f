"""Carrying a plan out: order, fates, what a watcher is told, and how long runs take."""

import errno
import json
from dataclasses import replace

import pytest

from rankrise.lab.experiments import _carry_out as module
from rankrise.lab.experiments import (
    carry_out,
    estimate_seconds,
    experiments,
    plan_reproduction,
    plan_run,
    run_experiment,
    vary,
)
from rankrise.lab.experiments._carry_out import DURATIONS, Estimator, guess_seconds, read_durations, write_durations
from rankrise.lab.experiments._execute import RunNumbers, RunReport
from rankrise.store import RunBusyError


class Watch:
    def __init__(self):
        self.begun, self.ended = [], []

    def begin(self, run, number, total, estimate, after):
        self.begun.append((run.name, number, total, estimate > 0, after >= 0))

    def update(self, report):
        pass

    def end(self, attempt, after):
        self.ended.append((attempt.run.name, attempt.fate))

    def close(self):
        pass


@pytest.fixture
def plans(tmp_path):
    names = ("vit-cifar10", "vit-cifar100", "gpt2-wikitext2")
    return [plan_run(name, scale="smoke", out=tmp_path) for name in names]


def fake(monkeypatch, fates):
    """`execute_run` that does what it is told, by name."""

    def execute(plan, *, device, progress):
        fate = fates.get(plan.name, "finished")
        if isinstance(fate, Exception):
            raise fate
        signal = 15 if fate == "stopped" else None
        return RunReport(plan.name, plan.hash, plan.folder, plan.spec, fate, RunNumbers(0, {}, {}), "why", signal)

    monkeypatch.setattr(module, "execute_run", execute)


def test_what_fails_does_not_stop_the_others(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {"vit-cifar10": ValueError("the moon\nis full"), "vit-cifar100": "diverged"})
    watch = Watch()
    attempts = carry_out(plans, out=tmp_path, device="cpu", watch=watch)
    assert [attempt.fate for attempt in attempts] == ["failed", "diverged", "finished"]
    assert attempts[0].message == "the moon is full"
    assert watch.begun == [(plan.name, n, 3, True, True) for n, plan in enumerate(plans, 1)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_stops_the_rest(tmp_path, plans, monkeypatch, code):
    error = RuntimeError("could not save")
    error.__cause__ = OSError(code, "no room")
    fake(monkeypatch, {"vit-cifar100": error})
    watch = Watch()
    attempts = carry_out(plans, out=tmp_path, device="cpu", watch=watch)
    assert [(attempt.fate, attempt.message) for attempt in attempts] == [
        ("finished", "why"),
        ("full", "could not save"),
    ]
    assert [name for name, *_ in watch.begun] == ["vit-cifar10", "vit-cifar100"]


def test_another_error_of_the_disk_does_not_stop_the_rest(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {"vit-cifar100": OSError(errno.EACCES, "no entry")})
    fates = [attempt.fate for attempt in carry_out(plans, out=tmp_path, device="cpu")]
    assert fates == ["finished", "failed", "finished"]


def test_a_signal_stops_the_rest(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {"vit-cifar100": "stopped"})
    attempts = carry_out(plans, out=tmp_path, device="cpu")
    assert [attempt.fate for attempt in attempts] == ["finished", "stopped"]
    assert attempts[-1].signal == 15


def test_done_and_missing_are_not_tried(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {name: AssertionError() for name in ("vit-cifar10", "vit-cifar100")})
    done, missing = replace(plans[0], state="done"), replace(plans[1], problem="No data.")
    watch = Watch()
    attempts = carry_out([done, missing, plans[2]], out=tmp_path, device="cpu", watch=watch)
    assert [attempt.fate for attempt in attempts] == ["skipped", "missing", "finished"]
    assert attempts[1].message == "No data."
    assert watch.begun == [("gpt2-wikitext2", 1, 1, True, True)]


def test_only_whole_runs_teach_durations(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {})
    before = estimate_seconds(plans, out=tmp_path, device="cpu")
    monkeypatch.setattr(module, "look_again", lambda run: run)
    carry_out([replace(plans[0], state="unfinished")], out=tmp_path, device="cpu")
    assert estimate_seconds(plans, out=tmp_path, device="cpu") == before
    carry_out(plans, out=tmp_path, device="cpu")
    assert estimate_seconds(plans, out=tmp_path, device="cpu") < before


def test_a_run_that_another_process_writes_is_told_and_the_others_finish(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {"vit-cifar10": RunBusyError("another writes it")})
    attempts = carry_out(plans, out=tmp_path, device="cpu")
    assert [attempt.fate for attempt in attempts] == ["failed", "finished", "finished"]
    assert attempts[0].message.startswith("Another process is writing this run: wait until that process has ended")


def test_a_run_that_another_process_has_done_since_is_skipped(tmp_path, plans, monkeypatch):
    run_experiment("vit-cifar100", scale="smoke", out=tmp_path, device="cpu")
    fake(monkeypatch, {"vit-cifar100": AssertionError()})
    attempts = carry_out(plans, out=tmp_path, device="cpu")
    assert [attempt.fate for attempt in attempts] == ["finished", "skipped", "finished"]


# How long runs take: measured beats guessed, guesses are corrected, the file beside the runs may be anything

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
    assert [path.name for path in tmp_path.iterdir()] == [DURATIONS]


def test_durations_of_two_processes_are_both_kept(tmp_path):
    write_durations(tmp_path, {"abc": 1.25})
    write_durations(tmp_path, {"def": 2.5})
    assert read_durations(tmp_path) == {"abc": 1.25, "def": 2.5}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "x"}', '{"a": -1, "b": 2}', '{"a": NaN}'])
def test_a_strange_file_is_ignored(tmp_path, text):
    (tmp_path / DURATIONS).write_text(text)
    assert read_durations(tmp_path) == ({"b": 2.0} if '"b"' in text else {})


def test_a_folder_that_is_not_there(tmp_path):
    write_durations(tmp_path / "nowhere", {"a": 1.0})
    assert read_durations(tmp_path / "nowhere") == {}
    assert json.dumps(read_durations(tmp_path)) == "{}"
