"""`rankrise figure` and `rankrise report`: files from finished runs, and help with names."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.lab.figures.runs import network_run

from rankrise.cli import main
from rankrise.lab.experiments import experiments, to_json

RANKS = {step: [[1.0, 1.2], [1.5 + step, 1.7]] for step in (0, 10, 20)}
SPECTRA = {step: [[[4.0, 1.0, 0.5]] * 2] * 2 for step in (10, 20)}
INITIAL = [[[2.0, 1.9, 1.8]] * 2] * 2


def planted(folder, name):
    """A finished run of a network of two layers with two heads, whose spec is one that `rankrise run` would write."""
    spec = experiments()["vit-digits"].spec("smoke")
    record = to_json(replace(spec, model=replace(spec.model, num_layers=2, num_heads=2)))
    return network_run(folder, name, ranks=RANKS, spectra=SPECTRA, initial=INITIAL, record=record)


@pytest.fixture
def rankrise(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("vit-cifar10", "gpt2-wikitext2"):
        planted(tmp_path / "runs", name)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


def test_one_figure_of_one_network(rankrise, tmp_path):
    done = rankrise("figure", "stable_rank_over_training", "--experiment", "vit-cifar10", "--format", "svg,csv")
    assert done.returncode == 0, done.stderr
    name = "stable_rank_over_training-vit-cifar10"
    assert done.stdout.startswith(f"{name}: Stable rank of what training added")
    assert done.stderr == f"wrote figures/{name}.svg, figures/{name}.csv\n"
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [f"{name}.csv", f"{name}.svg"]


def test_of_every_network_that_has_runs(rankrise):
    done = rankrise(
        "figure", "stable_rank_by_head", "perturbation_vs_init", "--format", "csv", "--json", "--out", "here"
    )
    records = json.loads(done.stdout)
    assert {record["name"] for record in records} == {
        f"{figure}-{name}"
        for figure in ("stable_rank_by_head", "perturbation_vs_init")
        for name in ("vit-cifar10", "gpt2-wikitext2")
    }
    assert all(record["files"][0].startswith("here/") and record["sources"] for record in records)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["stable_rnk_by_head"], 2, "Did you mean 'stable_rank_by_head'?"),
        (["stable_rank_by_head", "--experiment", "vit-cifar01"], 2, "Did you mean 'vit-cifar10'?"),
        (["stable_rank_by_head", "--experiment", "vit-digits"], 2, "Make some: rankrise run vit-digits"),
        (["stable_rank_by_head", "--format", "gif"], 2, "`--format` must be of svg, png, pdf, csv; got 'gif'"),
        (["toy_scales"], 1, "Run them: rankrise run toy-flow-1e-2 toy-flow-1e-8 toy-flow-1e-32"),
        (["stable_rank_by_head", "--runs", "nowhere"], 1, "needs finished runs of vit-digits"),
        ([], 2, "Missing argument"),
    ],
)
def test_mistakes(rankrise, tmp_path, args, code, message):
    done = rankrise("figure", *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "figures").exists()


def test_report_of_what_is_there(rankrise, tmp_path):
    planted(tmp_path / "own", "mine")
    done = rankrise("report", "--runs", "own", "--out", "page")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "wrote page/index.html"
    assert "not tested" in done.stdout
    assert "stable_rank_over_training-mine" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.filterwarnings("default")
def test_a_damaged_run_does_not_stop_the_report(rankrise, tmp_path):
    for name in ("mine", "yours"):
        planted(tmp_path / "own", name)
    (tmp_path / "own" / "yours" / f"{0:012x}" / "metrics.parquet").write_bytes(b"PAR1")
    done = rankrise("report", "--runs", "own")
    assert done.returncode == 0, done.stderr
    warning = "rankrise: warning: A run is passed over: own/yours/000000000000/metrics.parquet must be as the manifest"
    assert done.stderr.startswith(warning)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "stable_rank_over_training-mine" in page
    assert "stable_rank_over_training-yours" not in page


@pytest.mark.filterwarnings("default")
def test_the_report_says_that_a_run_is_damaged(rankrise, tmp_path):
    (tmp_path / "runs" / "vit-cifar10" / f"{0:012x}" / "metrics.parquet").write_bytes(b"PAR1")
    done = rankrise("report", "--json")
    reasons = {claim["claim"]["id"]: claim["reason"] for claim in json.loads(done.stdout)["claims"]}
    assert reasons["rises-kq@vit-cifar10"].startswith("No run of vit-cifar10 is finished and whole: ")
    assert reasons["rises-kq@vit-cifar100"] == "No run of vit-cifar100. `rankrise run vit-cifar100` makes one."


@pytest.mark.parametrize("args", [["report"], ["figure", "stable_rank_by_head"]])
def test_out_that_is_a_file(rankrise, tmp_path, args):
    (tmp_path / "f").write_text("")
    done = rankrise(*args, "--out", "f")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`--out` must be a folder; f is a file." in " ".join(done.stderr.split())


def test_report_of_nothing(rankrise):
    done = rankrise("report", "--runs", "nowhere")
    assert done.returncode == 1
    assert done.stderr == (
        "rankrise: `--runs` must hold finished runs, as runs/<experiment>/<hash>; nowhere holds none. "
        "Make some: rankrise reproduce\n"
    )
