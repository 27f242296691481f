"""`rankrise reproduce` as a user runs it: plan, claims, report, strictness; its kills are in `tests/faults`."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tests.cli import tiny

from rankrise.cli import main
from rankrise.lab import report
from rankrise.lab.experiments import _plan
from rankrise.lab.report import write_report
from rankrise.view import Axis, FigureData, Panel, Trace

FIGURES = {
    "components_by_scale-vit-cifar10",
    "stable_rank_by_scale-vit-cifar10",
    "stable_rank_over_training-vit-cifar10",
}

A_FIGURE = FigureData("toy_stages", "", "", (Panel("", Axis(""), Axis(""), (Trace((0.0,), (1.0,)),)),), 1, 1, ())


@pytest.fixture
def rankrise(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKRISE_DATA", raising=False)
    monkeypatch.setitem(_plan.ENTRIES, "smoke", tiny.ENTRIES)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


def plain(text):
    """Without the line breaks of a usage message."""
    return " ".join(text.split())


def undrawn(monkeypatch):
    """A page without figures, which take seconds."""
    write = report.write_report
    monkeypatch.setattr(report, "write_report", lambda out, figures, *rest: write(out, [], *rest))


def test_from_nothing_to_the_report(rankrise, monkeypatch, tmp_path):
    plan = rankrise("reproduce", "--dry-run")
    assert "5 runs: 4 to run, 1 left out, about " in plan.stdout
    assert "left out: vit-cifar100. The data set 'cifar100' must be in" in plan.stdout
    assert "left out: vit-imagenet. Takes days." in plan.stdout
    assert not list(tmp_path.iterdir())

    done = rankrise("reproduce", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("scale smoke: 5 runs: 4 to run, 1 left out, about ")
    assert "[1/4] toy-stages/" in done.stderr
    assert "; nearly done" in done.stderr
    assert "not drawn: toy_scales: `toy_scales` needs finished runs of toy-flow" in done.stderr
    assert done.stderr.splitlines()[-1] == "wrote report/index.html"
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert lines[0] == "What was run: 4 runs at scale smoke: the toy, and networks on synthetic images."
    assert lines[1].startswith("yes         The toy learns in stages: ")
    assert lines[8].startswith("What fails: ")
    assert lines[9].startswith("Where to look: open report/index.html in a browser;")
    lines = rankrise("report", "--verbose").stdout.splitlines()
    assert lines[0].split() == ["verdict", "claim", "value", "95%", "interval", "must", "be", "n"]
    assert lines[1].split()[:3] == ["holds", "one-joins-per-stage@toy-stages", "1"]
    assert lines[-12].endswith(" not tested.")
    assert lines[-10].startswith("What was run: ")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "one-joins-per-stage@toy-stages" in page
    assert str(tmp_path) not in page
    assert {path.stem for path in (tmp_path / "report" / "figures").iterdir()} > FIGURES

    undrawn(monkeypatch)
    assert "No data: cifar100 is not in the data folder" in rankrise("reproduce", "--verbose").stdout
    again = rankrise("reproduce", "--json")
    assert again.stderr.splitlines()[0] == "scale smoke: 5 runs: 4 done, 1 left out"
    record = json.loads(again.stdout)
    assert [run["fate"] for run in record["runs"]] == ["skipped"] * 4 + ["missing"]
    assert record["report"] == "report/index.html"
    assert len(record["outcomes"]) == 7
    assert {figure["name"] for figure in record["figures"]} > FIGURES
    by_id = {claim["claim"]["id"]: claim for claim in record["claims"]}
    assert by_id["rises-kq@vit-imagenet"]["reason"] == "Takes days."
    assert json.loads((tmp_path / "runs" / "verdicts.json").read_text()) == record["claims"]
    assert by_id["rises-kq@vit-cifar10"]["verdict"] == "not tested"  # synthetic images stand in


def test_several_workers_do_the_plan_as_a_sweep(rankrise, monkeypatch, tmp_path):
    """Workers are asked for, and the attempts that come back make the report."""
    from rankrise.lab import sweep as package
    from rankrise.lab.experiments import attempt_run

    asked = []

    def sweep(runs, *, out, workers, device, watch):
        asked.append(workers)
        return [attempt_run(run, device=device) for run in runs if not run.problem]

    undrawn(monkeypatch)
    monkeypatch.setattr(package, "sweep", sweep)
    monkeypatch.setitem(_plan.ENTRIES, "smoke", tiny.ENTRIES[:1])
    done = rankrise("reproduce", "--device", "cpu", "--workers", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert [run["fate"] for run in json.loads(done.stdout)["runs"]] == ["finished"]
    assert [(workers.num_workers, workers.scheduler) for workers in asked] == [(3, "")]
    rankrise("reproduce", "--scheduler", "tcp://a:1")
    assert asked[1].scheduler == "tcp://a:1"


def test_a_full_disk_of_a_worker_stops_it_too(rankrise, monkeypatch):
    from rankrise.lab import sweep as package
    from rankrise.lab.experiments import Attempt

    monkeypatch.setattr(package, "sweep", lambda runs, **_: [Attempt(runs[0], "full", "no room")])
    done = rankrise("reproduce", "--workers", "2")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rankrise: The disk of runs is full: make room,")


def test_workers_ask_for_the_extra_in_one_sentence(rankrise, monkeypatch, tmp_path):
    from rankrise import _extras

    installed = _extras.is_installed
    monkeypatch.setattr(_extras, "is_installed", lambda module: module != "distributed" and installed(module))
    done = rankrise("reproduce", "--workers", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "rankrise: `rankrise reproduce` on several workers needs the package distributed, which is not installed: "
        "pip install 'rankrise[sweep]'; or leave --workers out, for one run after another.\n"
    )
    assert not list(tmp_path.iterdir())


def test_one_run_after_another_needs_no_dask(tmp_path):
    code = (
        "import sys; sys.argv = ['rankrise', 'reproduce', '--device', 'cpu', '--json']\n"
        "for name in ('dask', 'distributed'): sys.modules[name] = None\n"
        "from tests.cli import tiny\n"
        "from rankrise.cli import main\n"
        "from rankrise.lab.experiments import _plan\n"
        "_plan.ENTRIES['smoke'] = tiny.ENTRIES[:1]\n"
        "main()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [run["fate"] for run in json.loads(done.stdout)["runs"]] == ["finished"]


def test_strict_is_about_verdicts_and_nothing_else_is(rankrise, monkeypatch):
    from rankrise.lab.claims import _evaluate

    undrawn(monkeypatch)
    monkeypatch.setitem(_plan.ENTRIES, "smoke", tiny.ENTRIES[:1])
    rankrise("reproduce", "--device", "cpu")
    assert rankrise("reproduce", "--strict").returncode == 0
    monkeypatch.setattr(_evaluate.Predicate, "is_met", lambda self, value: False)
    assert rankrise("reproduce").returncode == 0
    strict = rankrise("reproduce", "--strict", "--verbose")
    assert strict.returncode == 1
    assert strict.stdout.splitlines()[1].startswith("fails")
    assert strict.stderr.splitlines()[-1] == "wrote report/index.html"


def test_a_failing_run_is_said_and_the_rest_goes_on(rankrise, monkeypatch, tmp_path):
    undrawn(monkeypatch)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "toy-stages").write_text("in the way")
    done = rankrise("reproduce", "--device", "cpu", "--verbose")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rankrise: toy-stages/")
    assert "has failed, as said above; run the same command again" in done.stderr
    assert "failed after" in done.stderr
    assert (tmp_path / "report" / "index.html").is_file()
    assert "toy-stages/" in done.stdout  # the reason of its claims
    assert "Traceback" not in done.stderr


def test_a_run_that_diverges_is_a_failure(rankrise, monkeypatch, tmp_path):
    from rankrise.lab.experiments import Attempt, _carry_out

    undrawn(monkeypatch)
    monkeypatch.setattr(_carry_out, "attempt_run", lambda run, **_: Attempt(run, "diverged", "loss is inf"))
    done = rankrise("reproduce", "--device", "cpu")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rankrise: 4 runs have failed, as said above;")
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.parametrize("place", ["block.write", "parquet.write", "initial.write"])
def test_a_full_disk_stops_it_with_a_sentence(place, rankrise, monkeypatch, tmp_path):
    monkeypatch.setenv("RANKRISE_FAILPOINT", f"{place}:full")
    done = rankrise("reproduce", "--device", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "rankrise: The disk of runs is full: make room, and run the same command again to go on."
    )
    assert "[2/4]" not in done.stderr
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("place", ["figure.write", "report.sync"])
def test_a_full_disk_while_drawing(place, rankrise, monkeypatch, tmp_path):
    monkeypatch.setitem(_plan.ENTRIES, "smoke", tiny.ENTRIES[:1])
    undrawn(monkeypatch)
    rankrise("reproduce", "--device", "cpu")
    before = (tmp_path / "report" / "index.html").read_text()
    monkeypatch.setenv("RANKRISE_FAILPOINT", f"{place}:full")
    monkeypatch.setattr(report, "write_report", lambda out, figures, *rest: write_report(out, [A_FIGURE], *rest))
    done = rankrise("reproduce")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "rankrise: The disk of report is full: make room, and run the same command again."
    )
    assert (tmp_path / "report" / "index.html").read_text() == before
    assert not list((tmp_path / "report").rglob(".tmp-*"))


def test_a_folder_of_runs_that_cannot_be_written_gets_no_verdicts(rankrise, monkeypatch, tmp_path):
    monkeypatch.setitem(_plan.ENTRIES, "smoke", tiny.ENTRIES[:1])
    undrawn(monkeypatch)
    monkeypatch.setenv("RANKRISE_FAILPOINT", "verdicts.write:readonly")
    done = rankrise("reproduce", "--device", "cpu")
    assert done.returncode == 0
    assert "no verdicts.json in runs: Read-only file system" in done.stderr
    assert not (tmp_path / "runs" / "verdicts.json").exists()
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_drawing(number, rankrise, monkeypatch):
    monkeypatch.setitem(_plan.ENTRIES, "smoke", tiny.ENTRIES[:1])
    before = signal.getsignal(number)
    monkeypatch.setattr(report, "write_report", lambda *rest: signal.raise_signal(number))
    done = rankrise("reproduce", "--device", "cpu")
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert done.stderr.splitlines()[-1] == "rankrise: stopped; run the same command again to go on."
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("option", ["--runs", "--out"])
def test_a_file_in_place_of_a_folder(option, rankrise, tmp_path):
    (tmp_path / "f").write_text("")
    for path in ("f", "f/below"):
        done = rankrise("reproduce", option, path)
        assert done.returncode == 2
        assert f"`{option}` must be a folder; f is a file. Move it, or name another folder." in plain(done.stderr)
        assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--scale", "huge"], "'huge' is not one of"),
        (["--seeds", "0"], "--seeds"),
        (["stray"], "stray"),
        (["--workers", "0"], "--workers"),
        (["--workers", "2", "--scheduler", "tcp://a:1"], "must not be given together"),
    ],
)
def test_mistakes(rankrise, tmp_path, args, message):
    done = rankrise("reproduce", *args)
    assert done.returncode == 2
    assert message in plain(done.stderr)
    assert not list(tmp_path.iterdir())


def test_not_under_torchrun(rankrise, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = rankrise("reproduce")
    assert done.returncode == 2
    assert "one process" in done.stderr
