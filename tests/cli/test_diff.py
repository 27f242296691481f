"""`rankrise diff` as a user meets it."""

import json
import os
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
from tests.checkpoints import files
from typer.testing import CliRunner

from rankrise.cli import app
from rankrise.cli._errors import plain_warnings


def run(*args):
    with plain_warnings():
        return CliRunner().invoke(app, ["diff", *map(str, args)])


@pytest.fixture
def pair(tmp_path):
    base = files.weights()
    tuned = {f"module.{k}": t for k, t in files.tuned(base, size=0.05).items()}
    return files.save(tmp_path / "base", base), files.save(tmp_path / "tuned", tuned)


def test_the_summary_comes_first_then_layers_weights_and_heads(pair):
    done = run(*pair)
    assert done.exit_code == 0
    first, *rest = done.stdout.splitlines()
    assert re.fullmatch(
        r"14 of 17 weights changed \(4,400 parameters\); the matrices changed by [45]\.?\d*%; ‖Δ‖ = \S+", first
    )
    assert rest[0].startswith("changed most: ")
    text = done.stdout
    places = [text.index(word) for word in ("layer  weights", "weight   ", "layer  head")]
    assert places == sorted(places)
    assert "tuned: tuned: 'module.' stripped from 17 names" in done.stderr


def test_dry_run_reads_names_only(pair, monkeypatch):
    monkeypatch.setattr("rankrise.checkpoints.files._safetensors.SafetensorsFile._read", lambda *a: pytest.fail("read"))
    done = run(*pair, "--dry-run")
    assert done.exit_code == 0
    assert done.stdout.startswith("matched    17 tensors, 4,400 parameters\nrenamed    tuned: 'module.'")
    (record,) = json.loads(run(*pair, "--dry-run", "--json").stdout)
    assert (record["matched"], record["problems"]) == (17, [])


def test_dry_run_of_two_that_do_not_fit_fails(pair, tmp_path):
    files.save(tmp_path / "other", {"conv.weight": torch.ones(3, 3)})
    done = run(pair[0], tmp_path / "other", "--dry-run")
    assert done.exit_code == 1
    assert "problem    Both must be one architecture" in done.stdout


def test_json_parquet_and_html(pair, tmp_path):
    done = run(*pair, "--json", "--parquet", tmp_path / "d.parquet", "--html", tmp_path / "d.html")
    record = json.loads(done.stdout)
    assert len(record["rows"]) == 17 + 16
    assert pq.read_table(tmp_path / "d.parquet").num_rows == 33
    assert (tmp_path / "d.html").read_text().count("<svg") > 8
    assert done.stderr.splitlines()[-1] == f"wrote {tmp_path / 'd.parquet'}, {tmp_path / 'd.html'}"


def test_summary(pair):
    record = json.loads(run(*pair, "--summary", "--json").stdout)
    assert record["summary"]
    assert all(row["effective_rank"] in (None, 0.0) for row in record["rows"])


@pytest.mark.filterwarnings("default")
def test_a_series_and_a_jump(tmp_path):
    base = files.weights()
    files.save(tmp_path / "base", base)
    for n, seed in ((100, 1), (200, 1), (300, 9)):
        files.save(tmp_path / "run" / f"checkpoint-{n}", files.tuned(base, size=n / 1e4, seed=seed))
    done = run(tmp_path / "base", tmp_path / "run", "--summary")
    assert done.exit_code == 0
    assert re.search(r"^step +relative +stable rank +above floor +cosine$", done.stdout, flags=re.M)
    assert "rankrise: warning: the series jumps between 200 and 300" in done.stderr


def test_nothing_is_written_on_failure(pair, tmp_path):
    base = files.weights()
    files.save(tmp_path / "bad", base | {"lm_head.weight": torch.ones(40, 3)})
    before = sorted(p.name for p in tmp_path.iterdir())
    done = run(pair[0], tmp_path / "bad", "--html", tmp_path / "d.html", "--parquet", tmp_path / "d.parquet")
    assert done.exit_code == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    done = run(*pair, "--html", tmp_path / "nowhere" / "d.html")
    assert done.exit_code == 2
    assert "must exist" in done.stderr
    for option in ("--html", "--parquet"):
        done = run(*pair, option, tmp_path)
        assert done.exit_code == 2
        assert not done.stdout
        assert f"`{option}` must be a file" in " ".join(done.stderr.split())


def test_a_place_that_cannot_be_written_is_refused_before_any_work(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda _, mode, **__: not mode & os.W_OK)  # root may write anywhere
    done = run(*pair, "--parquet", tmp_path / "d.parquet")
    assert done.exit_code == 2
    assert not done.stdout
    assert "must be a place to write to" in " ".join(done.stderr.split())


def test_a_pickle_is_refused_in_one_line(tmp_path):
    torch.save(files.weights(), tmp_path / "a.pt")
    command = [sys.executable, "-m", "rankrise", "diff", str(tmp_path / "a.pt"), str(tmp_path / "a.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"rankrise: \S+a\.pt is a pickle, which can run code .* weights_only\.\n", done.stderr)
    allowed = run(tmp_path / "a.pt", tmp_path / "a.pt", "--allow-torch-load")
    assert allowed.stdout.startswith("identical: none of 17 weights differs")
