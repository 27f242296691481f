"""What becomes of the runs of a sweep; workers are threads of this process here, so that errors can be planted."""

import contextlib
import errno
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from tests.processes import start, wait

from rankrise.lab.experiments import Attempt, to_json
from rankrise.lab.sweep import Grid, Workers, _sweep, _work, sweep
from rankrise.runs import find_runs
from rankrise.store import create_run

pytest.importorskip("distributed")


class Watch:
    def __init__(self):
        self.standings, self.ended, self.notes = [], [], []

    def update(self, standing):
        self.standings.append(standing)

    def end(self, attempt, standing):
        self.ended.append((attempt.fate, standing.num_done, standing.num_failed))

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def threads(monkeypatch):
    """Two workers that are threads, in place of processes."""
    from distributed import Client, LocalCluster

    @contextlib.contextmanager
    def connected(workers):
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            yield client

    monkeypatch.setattr(_sweep, "connected", connected)
    monkeypatch.setattr(_sweep, "_POLL", 0.05)
    monkeypatch.setattr(_sweep, "_TICK", 0.05)


@pytest.fixture
def plans(tmp_path):
    return Grid(("toy-stages",), {"task.dim": (2,)}, num_seeds=4, scale="smoke").plan(out=tmp_path)


def plant(monkeypatch, fates):
    """`perform` that does what it is told, by seed."""

    def perform(run, device):
        fate = fates.get(run.spec.seed, "finished")
        if isinstance(fate, Exception):
            raise fate
        return Attempt(run, fate, "why", 0.1)

    monkeypatch.setattr(_sweep, "perform", perform)


def test_runs_are_done_and_then_skipped(tmp_path, threads, plans):
    watch = Watch()
    done = sweep(plans, out=tmp_path, workers=Workers(), watch=watch)
    assert [attempt.fate for attempt in done] == ["finished"] * 4
    assert [attempt.run.folder for attempt in done] == [plan.folder for plan in plans]
    assert watch.ended[-1] == ("finished", 4, 0)
    assert watch.standings[0].num_total == 4
    assert [run.state for run in find_runs(tmp_path)] == ["finished"] * 4
    assert (tmp_path / "durations.json").is_file()
    again = sweep(plans, out=tmp_path, workers=Workers())
    assert [attempt.fate for attempt in again] == ["skipped"] * 4


def test_what_is_done_needs_no_workers(tmp_path, threads, plans, monkeypatch):
    sweep(plans, out=tmp_path, workers=Workers())
    monkeypatch.setattr(_sweep, "connected", None)
    plans = Grid(("toy-stages",), {"task.dim": (2,)}, num_seeds=4, scale="smoke").plan(out=tmp_path)
    assert [attempt.fate for attempt in sweep(plans, out=tmp_path, workers=Workers())] == ["skipped"] * 4


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, threads, plans, monkeypatch):
    plant(monkeypatch, {1: "diverged", 2: _work.RunDiedError("Its process was ended by signal 9")})
    watch = Watch()
    found = sweep(plans, out=tmp_path, workers=Workers(), watch=watch)
    assert [attempt.fate for attempt in found] == ["finished", "diverged", "failed", "finished"]
    assert found[2].message == "Its process was ended by signal 9"
    assert sorted(watch.ended)[-1][0] == "finished"
    assert max(failed for _, _, failed in watch.ended) == 2


@pytest.mark.parametrize("fate", ["full", OSError(errno.ENOSPC, "no room")])
def test_a_full_disk_stops_the_rest(tmp_path, threads, plans, monkeypatch, fate):
    plant(monkeypatch, dict.fromkeys(range(4), fate))
    found = sweep(plans, out=tmp_path, workers=Workers())
    assert [attempt.fate for attempt in found] == ["full"]


def test_a_run_without_data_is_left_out(tmp_path, threads, plans):
    found = sweep([replace(plans[0], problem="No data."), *plans[1:]], out=tmp_path, workers=Workers())
    assert [(a.fate, a.message) for a in found][:2] == [("missing", "No data."), ("finished", "")]


def test_a_run_of_another_process_is_waited_for(tmp_path, threads, plans):
    read, write = os.pipe()
    config = {"experiment": "toy-stages", "spec": to_json(plans[0].spec)}

    def hold():
        run = create_run(plans[0].folder, spec={"kind": "theory", "config": config}, initial={"w": torch.zeros(1)})
        os.write(write, b"x")
        time.sleep(0.5)
        run.close()

    other = start(hold)
    os.read(read, 1)
    found = sweep(plans[:2], out=tmp_path, workers=Workers())
    assert wait(other) == 0
    assert [attempt.fate for attempt in found] == ["finished"] * 2


def test_no_scheduler_at_the_address_is_one_sentence(tmp_path, plans, monkeypatch):
    from rankrise.lab.sweep import _cluster

    monkeypatch.setattr(_cluster, "_SECONDS", 0.2)
    with pytest.raises(
        OSError, match=r"^`--scheduler` must be the address of a Dask scheduler that answers; tcp://127"
    ):
        sweep(plans, out=tmp_path, workers=Workers(scheduler="tcp://127.0.0.1:9"))


def test_neither_dask_nor_torch_is_imported_by_the_package():
    code = "import rankrise.lab.sweep, sys; print(sorted({'dask', 'distributed', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
