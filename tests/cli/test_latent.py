"""`rankrise latent` as a user runs it: an answer, JSON, a figure, and files that are refused."""

import csv
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from tests.trust.hostile import npy_head

from rankrise.cli import main
from rankrise.latent import LatentRank

FAST = ("--steps", "60", "--code-dim", "4", "--hidden", "8", "--depth", "1")


@pytest.fixture
def latent(monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", "latent", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


@pytest.fixture
def data(tmp_path):
    draw = np.random.default_rng(0).standard_normal
    np.save(tmp_path / "data.npy", draw((100, 2)) @ draw((2, 6)) + 0.01 * draw((100, 6)))
    return tmp_path / "data.npy"


def test_text_and_json_say_what_the_library_says(latent, data):
    expected = LatentRank(depth=1, code_dim=4, hidden=8, steps=60).fit(np.load(data))
    done = latent(data, *FAST)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"100 samples of 6 numbers: {expected.verdict_}.")
    record = json.loads(latent(data, *FAST, "--json").stdout)
    assert (record["rank"], record["verdict"]) == (expected.rank_, expected.verdict_.state)
    assert record["singular_values"] == expected.path_.spectra[-1].tolist()
    assert record["path"]["ranks"] == expected.path_.ranks().tolist()
    assert record["parameters"]["steps"] == 60


def test_full_code_has_no_gap_in_strict_json(latent, data):
    record = json.loads(latent(data, "--steps", "5", "--code-dim", "1", "--json").stdout)
    assert (record["verdict"], record["gap"]) == ("no gap", None)


def test_figure_is_written(latent, data, tmp_path):
    for name in ("latent.png", "latent.csv"):
        done = latent(data, *FAST, "--figure", tmp_path / name)
        assert done.stderr.splitlines()[-1] == f"wrote {tmp_path / name}"
        assert (tmp_path / name).stat().st_size > 1000
    with (tmp_path / "latent.csv").open() as file:
        assert {row["panel"] for row in csv.DictReader(file)} >= {"rank", "singular values of the code"}


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(npy_head((2**27, 1))), "unpacks to 1073741824 bytes"),
        (lambda path: np.save(path, np.ones(3)), "must hold a matrix, a row for each sample; got the shape (3,)"),
        (lambda path: np.save(path, np.zeros((1, 10**6), np.uint8)), "has 1000000 columns, for which training takes"),
        (lambda path: np.save(path, np.full((3, 2), np.nan)), "must be a matrix (n, d) of finite numbers"),
        (lambda path: np.save(path, np.ones((3, 2))), "must have rows that differ"),
        (lambda path: path.write_text("1,2\n"), "must be an .npy with an array of real numbers; x.npy"),
        (lambda path: None, "must be an .npy that exists"),
    ],
)
def test_file_that_cannot_be_used_is_one_sentence(latent, tmp_path, write, message):
    write(tmp_path / "x.npy")
    done = latent(tmp_path / "x.npy")
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_place_of_the_figure_is_checked_first(latent, tmp_path):
    for name in ("latent.gif", "no/latent.png"):
        done = latent(tmp_path / "missing.npy", "--figure", tmp_path / name)
        assert done.returncode == 2
