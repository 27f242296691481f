"""Two processes started by torchrun, with gloo on the CPU: the results of one process, also after a killed worker."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.lab.training.tasks import assert_same_outcome, outcome, tiny_data, train_tiny
from tests.lab.training.two_ranks import CONFIG
from tests.tracking.models import in_order

from rankrise.store import is_sealed

pytestmark = pytest.mark.slow


def run_two(folder, *kind, restarts=0, count=2):
    folder.mkdir(exist_ok=True)
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command += [f"--max-restarts={restarts}", "-m", "tests.lab.training.two_ranks", str(folder), *kind]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return [(folder / f"result-{rank}").read_text() for rank in range(count)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    assert [r.split()[:2] for r in run_two(folder)] == [["finished", "25"]] * 2
    return outcome(folder / "run")


def test_equals_one_process(two, tmp_path):
    train_tiny(tmp_path, CONFIG, data=tiny_data(augment=("crop",)), checkpoint_every=4)
    alone = outcome(tmp_path)
    table, expected = in_order(two[0]), in_order(alone[0])
    assert table.drop_columns("value").equals(expected.drop_columns("value"))
    np.testing.assert_allclose(table["value"].to_numpy(), expected["value"].to_numpy(), rtol=2e-3, atol=1e-5)
    for name, tensor in alone[2].model.items():
        if name.endswith("in_proj_bias"):  # the gradient of the keys' bias is zero but for rounding; Adam magnifies it
            continue
        np.testing.assert_allclose(two[2].model[name].numpy(), tensor.numpy(), rtol=1e-4, atol=1e-5)


def test_again_is_the_same(two, tmp_path):
    run_two(tmp_path)
    assert_same_outcome(outcome(tmp_path / "run"), two)


def test_killed_worker_and_restart_of_all(two, tmp_path):
    run_two(tmp_path, "killed", restarts=1)
    assert (tmp_path / "marker").exists()
    assert_same_outcome(outcome(tmp_path / "run"), two)


def test_signal_to_one_stops_all_at_the_same_step(two, tmp_path):
    results = run_two(tmp_path, "term")
    assert [r.split()[:2] for r in results] == [["stopped", "10"]] * 2  # they agree every ten steps
    assert "Stopped by SIGTERM" in results[1]
    assert "The last good checkpoint is of step 10" in results[0]
    assert not is_sealed(tmp_path / "run")
    run_two(tmp_path)
    assert_same_outcome(outcome(tmp_path / "run"), two)


def test_nan_on_one_stops_all(tmp_path):
    results = run_two(tmp_path, "nan")
    assert [r.split()[:2] for r in results] == [["diverged", "10"]] * 2
    assert "no longer finite at step 8. The last good checkpoint is of step 4." in results[0]


def test_resumed_with_another_number_says_so(tmp_path):
    run_two(tmp_path, "term")
    with pytest.warns(UserWarning, match="`world_size` was 2 and is 1"):
        train_tiny(tmp_path / "run", CONFIG, data=tiny_data(augment=("crop",)))
    assert is_sealed(tmp_path / "run")
