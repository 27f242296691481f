"""`rankrise reproduce` of a tiny plan, killed at any time and run again: the same tables, the same verdicts."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from rankrise.lab.experiments import runs_by_experiment
from rankrise.store import load_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # ten runs of the plan, also on a busy machine


@pytest.fixture
def start():
    """Begin the plan in a folder; processes that are left at the end of the test are killed."""
    begun = []

    def start(folder):
        begun.append(_start(folder))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def _start(folder):
    command = [sys.executable, "-m", "tests.cli.tiny", "reproduce", "--json", "--device", "cpu"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, *sys.path])}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def outcome(folder, stdout):
    """Verdicts, and every table."""
    claims = [(c["claim"]["id"], c["verdict"], c["value"], c["reason"]) for c in json.loads(stdout)["claims"]]
    tables = {path.name: load_run(path) for paths in runs_by_experiment(folder / "runs").values() for path in paths}
    return claims, tables


def test_killed_at_any_time_it_finishes_with_the_same_tables(tmp_path, start, record_property):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    process = start(whole)
    begun = time.monotonic()
    expected, error = process.communicate(timeout=900)
    took = time.monotonic() - begun
    assert process.returncode == 0, error
    generator = random.Random(0)
    num_killed = 0
    for _ in range(8):
        process = start(cut)
        time.sleep(generator.uniform(0.1, 1.0) * took)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            num_killed += 1
        process.communicate()
    assert num_killed >= 2
    record_property("kills survived", num_killed)
    process = start(cut)
    found, error = process.communicate(timeout=900)
    assert process.returncode == 0, error
    (claims, tables), (want, want_tables) = outcome(cut, found), outcome(whole, expected)
    assert claims == want
    assert tables.keys() == want_tables.keys()
    assert all(tables[name].equals(want_tables[name]) for name in tables)


def test_a_signal_stops_it_with_a_sentence(tmp_path, start):
    process = start(tmp_path)
    for line in process.stderr:
        if "toy-stages" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, ""), err
    assert "stopped" in err
