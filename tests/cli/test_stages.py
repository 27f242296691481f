"""`rankrise stages` as a user runs it: tables, JSON, own data, files written, mistakes."""

import csv
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rankrise import theory
from rankrise.cli import main


@pytest.fixture
def stages(monkeypatch, capsys):
    """Run the command in this process, through the same entry point; returns exit code and streams."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", "stages", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


def test_table_and_json_say_what_the_library_says(stages):
    task = theory.teacher_task(samples=50, tokens=4, dim=3, seed=1)
    expected = theory.incremental_stages(theory.attention_head(task.x, task.y))
    args = ["--dim", "3", "--samples", "50", "--tokens", "4", "--seed", "1"]
    record = json.loads(stages(*args, "--json").stdout)
    assert [row["time"] for row in record["stages"]] == expected.times.tolist()
    assert [row["loss"] for row in record["stages"]] == expected.losses[1:].tolist()
    assert record["stages"][-1]["lead"] is None  # infinite: no second candidate; strict JSON has no Infinity
    text = stages(*args).stdout
    assert text.count("\n") >= len(expected.times) + 3
    assert f"{expected.times[0]:.6g}" in text


def test_flows_beside_the_limit_and_files(stages, tmp_path):
    alphas = ["--alpha", "1e-8", "--log10-alpha", "-100000"]
    done = stages("--dim", "2", "--samples", "40", *alphas, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "1e-100000" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("wrote ")
    record = json.loads((tmp_path / "stages.json").read_text())
    flows = record["flows"]
    assert flows[1]["distance from limit"] < 1e-3 < flows[0]["distance from limit"]
    assert record["environment"]["packages"]["torch"]
    with (tmp_path / "times.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["coordinate"] for row in rows] == [row["coordinate"] for row in record["times"]]
    assert list(rows[0]) == ["coordinate", "alpha", "limit", "flow", "predicted"]
    assert [row["alpha"] for row in rows[:2]] == ["1e-8", "1e-100000"]
    assert all(row["holds"] is True for row in record["stages"])
    assert max(len(line) for line in done.stdout.splitlines()) <= 120


def test_a_cut_by_time_is_said(stages):
    args = ["--dim", "2", "--samples", "40"]
    times = [row["time"] for row in json.loads(stages(*args, "--json").stdout)["stages"]]
    cut = ["--t-end", str(0.5 * (times[0] + times[1]))]
    record = json.loads(stages(*args, *cut, "--json").stdout)
    assert record["status"] == "t_end"
    assert [row["time"] for row in record["stages"]] == times[:1]
    text = stages(*args, *cut).stdout
    assert "hold at every stage shown." in text
    assert "t_end: The next stage lies after the time asked for." in text


@pytest.mark.parametrize("extra", [["--max-stages", "0"], ["--t-end", "1e-3"]])
def test_flows_before_the_first_stage(stages, extra):
    done = stages("--dim", "2", "--samples", "40", "--alpha", "1e-8", *extra)
    assert done.returncode == 0, done.stderr
    assert "No stages." in done.stdout


def test_out_is_checked_before_any_work(stages, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("here first")
    monkeypatch.setattr(theory, "incremental_stages", None)
    for name in ("file", "file/below"):
        done = stages("--out", str(tmp_path / name))
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1
        assert "`--out` must be a folder to write to" in done.stderr
        assert "name another one" in done.stderr
    assert (tmp_path / "file").read_text() == "here first"


def test_own_linear_data(stages, tmp_path):
    """Orthogonal features: T_i = 1/|g_i(0)| exactly."""
    x = np.sqrt(3) * np.eye(3)
    np.savez(tmp_path / "data.npz", x=x, y=x @ np.array([1.0, -4.0, 2.0]))
    record = json.loads(stages("--input", str(tmp_path / "data.npz"), "--json").stdout)
    assert [row["joins"] for row in record["stages"]] == ["q[1]", "q[2]", "q[0]"]
    assert [row["time"] for row in record["stages"]] == pytest.approx([0.25, 0.5, 1.0])


def bad_files(tmp_path):
    np.savez(tmp_path / "no_y.npz", x=np.ones((3, 2)))
    np.savez(tmp_path / "shapes.npz", x=np.ones((3, 2, 2)), y=np.ones((3, 2)))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 2), np.nan), y=np.ones(3))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.ones(1))
    np.savez(tmp_path / "complex.npz", x=np.ones((3, 2), dtype=complex), y=np.ones(3))
    np.savez(tmp_path / "words.npz", x=np.ones((3, 2)), y=np.array(["1", "2", "3"]))
    np.save(tmp_path / "single.npy", np.ones((3, 2)))
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.npz").write_text("not an archive")
    whole = (tmp_path / "no_y.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.npz", "must name a file"),
        ("folder", "is a folder. Write one"),
        ("single.npy", "must be an .npz with numeric arrays x and y; single.npy: it holds a single array"),
        ("complex.npz", "x holds complex128, not real numbers"),
        ("words.npz", "y holds <U1, not real numbers"),
        ("no_y.npz", "must be an .npz with numeric arrays x and y"),
        ("shapes.npz", "must have shape (N, n, d)"),
        ("nan.npz", "`x` must be finite"),
        ("objects.npz", "must be an .npz with numeric arrays"),
        ("text.npz", "must be an .npz with numeric arrays"),
        ("torn.npz", "must be an .npz with numeric arrays"),
    ],
)
def test_bad_input_is_one_sentence(stages, tmp_path, name, message):
    bad_files(tmp_path)
    done = stages("--input", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--alpha", "2"],
        ["--alpha", "0"],
        ["--log10-alpha", "3"],
        ["--log10-alpha", "-inf"],
        ["--log10-alpha", "nan"],
        ["--dim", "x"],
        ["--t-end", "0"],
        ["--t-end", "-1"],
        ["--max-stages", "-1"],
        ["--seed", "99999999999999999999"],
    ],
)
def test_usage(stages, args):
    done = stages(*args)
    assert done.returncode == 2
    assert args[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_to_learn(stages, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((3, 2)), y=np.zeros(3))
    done = stages("--input", str(tmp_path / "data.npz"))
    assert done.returncode == 0
    assert "No stages." in done.stdout


def test_a_small_file_that_unpacks_to_much_is_refused(stages, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKRISE_NO_LIMITS", "1")  # so that what the flag sets is taken back after the test
    monkeypatch.delenv("RANKRISE_NO_LIMITS")
    zeros = np.zeros((60_000, 10, 10), np.uint8)  # 6 MB, and 48 MB as numbers
    np.savez_compressed(tmp_path / "data.npz", x=zeros, y=zeros)
    assert (tmp_path / "data.npz").stat().st_size < 50_000
    done = stages("--input", str(tmp_path / "data.npz"))
    assert done.returncode == 1
    assert "x unpacks to 48000000 bytes, more than 40000000. If you trust it, set RANKRISE_MOST_BYTES" in done.stderr
    done = stages("--input", str(tmp_path / "data.npz"), "--no-limits")
    assert done.returncode == 0
    assert "No stages." in done.stdout


def test_files_hold_no_paths_and_are_not_written_through_links(stages, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.eye(3), y=np.ones(3))
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out" / "stages.json").symlink_to(tmp_path / "victim")
    done = stages("--input", str(tmp_path / "data.npz"), f"--out={tmp_path / 'out'}")
    assert done.returncode == 0
    written = (tmp_path / "out" / "stages.json").read_text()
    assert str(tmp_path) not in written
    assert json.loads(written)["command"] == "rankrise stages --input data.npz --out=out"
    assert (tmp_path / "victim").read_text() == "precious"


OWN = """import torch

def h(x, q):
    return torch.tanh(x * q[:3]) @ q[3:]

def flat(x, q):
    return x @ q

number = 3
"""


@pytest.fixture
def own_network(tmp_path):
    """Write a file with networks, and data for them."""
    (tmp_path / "mine.py").write_text(OWN)
    x = np.random.default_rng(0).standard_normal((50, 3))
    np.savez(tmp_path / "data.npz", x=x, y=np.tanh(x[:, 0]))
    return ["--input", str(tmp_path / "data.npz"), "--network", f"{tmp_path}/mine.py:"]


def test_own_network(stages, own_network):
    *words, network = own_network
    record = json.loads(stages(*words, f"{network}flat", "--num-weights", "3", "--json").stdout)
    assert record["network"] == "mine.py:flat"
    assert record["stages"][0]["joins"] == "q[0]"
    assert record["stuck"] == []


def test_own_network_that_is_stuck_is_told_what_to_do(stages, own_network):
    *words, network = own_network
    done = stages(*words, f"{network}h", "--num-weights", "6")
    assert done.returncode == 0
    assert "stuck_at_saddle: Stuck at a saddle of loss" in done.stdout
    assert "h(x, q + q0)" in done.stdout


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("h", [], "`--num-weights` must be given"),
        ("number", ["--num-weights", "3"], "has no function 'number'"),
        ("1", ["--num-weights", "3"], "`--network` must be FILE.py:NAME"),
        ("h", ["--num-weights", "5"], "pass the length of q that h expects"),
    ],
)
def test_own_network_that_cannot_be_used(stages, own_network, name, more, message):
    *words, network = own_network
    done = stages(*words, f"{network}{name}", *more)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_ends_the_program_is_no_success(stages, own_network, tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit(0)")
    done = stages(*own_network[:3], f"{own_network[3]}h", "--num-weights", "3")
    assert done.returncode == 1
    assert "mine.py ends the program: remove exit()" in done.stderr
