"""Two processes with gloo: DDP and FSDP2 give the numbers of one process, and nobody waits for ever."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tracking import two_ranks
from tests.tracking.models import in_order, small_model

import rankrise as rr

pytestmark = pytest.mark.slow


def run_two(kind, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.tracking.two_ranks", kind, str(rank), str(folder)],
            cwd=root,
            env=environment,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for process in ranks:
        _, error = process.communicate(timeout=180)
        assert process.returncode == 0, error.decode()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    model = small_model(dropout=0.0, dtype=torch.float64)
    with rr.RankTracker(model, folder, every=1, spectra=2) as tracker:
        two_ranks.train(model, tracker)
    return in_order(rr.load_run(folder))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_values_equal_those_of_one_process(tmp_path, alone, kind):
    run_two(kind, tmp_path)
    table = in_order(rr.load_run(tmp_path / "run"))
    assert table.drop_columns("value").equals(alone.drop_columns("value"))
    np.testing.assert_allclose(table["value"].to_numpy(), alone["value"].to_numpy(), rtol=1e-5, atol=1e-6)
    names = [set(rr.store.load_initial(path)) for path in (tmp_path / "run",)]
    assert names == [{f"layers.{i}.self_attn.{w}" for i in (0, 1) for w in ("in_proj_weight", "out_proj.weight")}]


def test_full_disk_on_rank_0_does_not_leave_the_others_waiting(tmp_path):
    run_two("fsdp-full-disk", tmp_path)
    assert not rr.store.has_run(tmp_path / "run")
