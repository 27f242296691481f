"""Carrying a plan out: order, fates, and what a watcher is told."""

from dataclasses import replace

import pytest

from rankrise.experiments import _reproduce as module
from rankrise.experiments import carry_out, estimate_seconds, plan_run
from rankrise.experiments._run import RunReport
from rankrise.experiments._summary import RunSummary


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
        return RunReport(plan.name, plan.hash, plan.folder, plan.spec, fate, RunSummary(0, {}, {}), "why", signal)

    monkeypatch.setattr(module, "execute_run", execute)


def test_what_fails_does_not_stop_the_others(tmp_path, plans, monkeypatch):
    fake(monkeypatch, {"vit-cifar10": ValueError("the moon\nis full"), "vit-cifar100": "diverged"})
    watch = Watch()
    attempts = carry_out(plans, out=tmp_path, device="cpu", watch=watch)
    assert [attempt.fate for attempt in attempts] == ["failed", "diverged", "finished"]
    assert attempts[0].message == "the moon is full"
    assert watch.begun == [(plan.name, n, 3, True, True) for n, plan in enumerate(plans, 1)]


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
    carry_out([replace(plans[0], state="unfinished")], out=tmp_path, device="cpu")
    assert estimate_seconds(plans, out=tmp_path, device="cpu") == before
    carry_out(plans, out=tmp_path, device="cpu")
    assert estimate_seconds(plans, out=tmp_path, device="cpu") < before
