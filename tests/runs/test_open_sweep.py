"""A folder of runs as one table."""

import json

import pytest
import torch

import rankrise as rr
from rankrise.lab.experiments import execute_run, to_json
from rankrise.lab.sweep import Grid
from rankrise.runs import write_sweep_plan
from rankrise.store import create_run, rows, scalar_rows


@pytest.fixture
def folder(tmp_path):
    """Three runs of a toy, of which one has not begun."""
    plans = Grid(("toy-stages",), {"task.dim": (2,)}, num_seeds=3, scale="smoke").plan(out=tmp_path)
    write_sweep_plan(tmp_path, {f"{p.name}/{p.hash}": to_json(p.spec) for p in plans})
    for plan in plans[:2]:
        execute_run(plan)
    return tmp_path


def make(folder, rate, loss):
    run = create_run(folder, spec={"config": {"rate": rate}}, initial={"w": torch.zeros(1)})
    run.append(scalar_rows([(1, "loss", 9.0), (2, "loss", loss)]))
    run.append(rows(2, "stable_rank", [[1.0, 2.0], [3.0, 4.0]], circuit="kq", layers=[0, 1], heads=True))
    return run


def test_a_sweep_is_one_table(folder):
    sweep = rr.open_sweep(folder)
    assert len(sweep) == 3
    assert sweep.differing == ("seed",)
    assert sorted(row.state for row in sweep.rows) == ["finished", "finished", "missing"]
    assert sweep.table["seed"].to_pylist().count(2) == 1
    assert sweep.table.column_names[:3] == ["experiment", "seed", "state"]
    frame = sweep.to_pandas()
    assert frame.shape[0] == 3
    assert frame["loss"].notna().sum() == 2
    assert sum(1 for _ in sweep) == 2


def test_the_repr_has_a_line_for_each_run(folder):
    text = repr(rr.open_sweep(folder)).splitlines()
    assert text[0] == f"{folder}: 3 runs: 2 finished, 1 missing"
    assert text[1].split()[:3] == ["run", "seed", "state"]
    assert len(text) == 5


def test_values_are_the_last_ones_and_ranks_are_means_over_heads(tmp_path):
    make(tmp_path / "a", 0.1, 0.5).seal()
    make(tmp_path / "b", 0.2, 0.25).close()
    sweep = rr.open_sweep(tmp_path)
    assert [row.state for row in sweep.rows] == ["finished", "stopped"]
    assert [row.values for row in sweep.rows] == [
        {"loss": 0.5, "stable_rank.kq": 2.5},
        {"loss": 0.25, "stable_rank.kq": 2.5},
    ]
    assert sweep.table["rate"].to_pylist() == [0.1, 0.2]


def test_a_damaged_run_is_a_row_with_its_problem(tmp_path):
    make(tmp_path / "a", 0.1, 0.5).seal()
    (tmp_path / "a" / "metrics.parquet").write_bytes(b"no")
    (row,) = rr.open_sweep(tmp_path).rows
    assert row.state == "damaged"
    assert row.problem in repr(rr.open_sweep(tmp_path))


def test_runs_of_a_sweep_can_be_compared(folder):
    assert len(rr.compare(rr.open_sweep(folder)).runs) == 2


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a folder that holds runs"):
        rr.open_sweep(tmp_path)


def test_a_plan_of_somebody_else_leads_nowhere_else(tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"../b": {}, "/etc": {}, "a/b": {"seed": 1}, "a/c": 3}))
    assert [(row.experiment, row.state) for row in rr.open_sweep(tmp_path).rows] == [("a", "missing")]


def test_fields_of_several_types_become_text(tmp_path):
    make(tmp_path / "a", 0.1, 0.5).seal()
    make(tmp_path / "b", "fast", 0.5).seal()
    assert rr.open_sweep(tmp_path).table["rate"].to_pylist() == ["0.1", "fast"]
