"""`rankrise sweep` as a user runs it; its crashes are in `tests/faults`."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from rankrise.cli import _sweep, main
from rankrise.cli._sweep_watch import SweepLines
from rankrise.lab import sweep as package
from rankrise.lab.experiments import Attempt, execute_run, plan_run
from rankrise.lab.sweep import Standing


@pytest.fixture
def rankrise(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKRISE_DATA", raising=False)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", "sweep", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=stopped.value.code or 0, out=out, err=" ".join(err.split()))

    return run


@pytest.fixture
def one_by_one(monkeypatch):
    """The runs of a sweep done here, one after another; the workers that were asked for."""
    asked = []

    def sweep(plans, *, out, workers, device, watch):
        asked.append(workers)
        attempts = []
        for plan in plans:
            fate = "failed" if plan.spec.seed == 7 else execute_run(plan).status
            attempts.append(Attempt(plan, fate, "It died" if fate == "failed" else "", 0.1))
            watch.end(attempts[-1], Standing((), len(plans), len(attempts), 0, 0.0))
        return attempts

    monkeypatch.setattr(package, "sweep", sweep)
    return asked


TOY = ("toy-stages", "--scale", "smoke", "--grid", "task.dim=2")


def test_a_table_on_stdout_and_lines_on_stderr(rankrise, one_by_one, tmp_path):
    done = rankrise(*TOY, "--seeds", "2", "--workers", "3", "--memory-limit", "2GB")
    assert done.code == 0
    assert done.out.startswith("runs: 2 runs: 2 finished\n")
    assert "seed 0: finished after 0 s; 1 of 2 done, 0 running, 0 failed" in done.err
    assert done.err.endswith("wrote runs")
    assert one_by_one[0].num_workers == 3
    assert one_by_one[0].memory_limit == "2GB"
    assert len(json.loads((tmp_path / "runs" / "sweep.json").read_text())) == 2
    assert "skipped" not in rankrise(*TOY, "--seeds", "2").err


def test_as_json(rankrise, one_by_one):
    records = json.loads(rankrise(*TOY, "--seeds", "2", "--json").out)
    assert [(r["spec"]["seed"], r["fate"], r["state"]) for r in records] == [
        (n, "finished", "finished") for n in (0, 1)
    ]
    assert records[0]["values"]["loss"] >= 0


def test_a_failed_run_is_told_and_the_exit_code_is_1(rankrise, one_by_one):
    done = rankrise(*TOY, "--grid", "seed=0,7")
    assert done.code == 1
    assert "seed 7: failed after 0 s (It died)" in done.err
    assert "1 finished, 1 missing" in done.out
    assert done.err.endswith("some runs failed, as said above; run the same command again to try once more.")


def test_a_plan_is_only_told(rankrise, tmp_path):
    done = rankrise(*TOY, "--seeds", "2", "--dry-run")
    assert done.code == 0
    assert "2 runs: 2 new" in done.out
    assert not list(tmp_path.iterdir())
    refused = rankrise("vit-cifar10", "--dry-run", "--json")
    assert refused.code == 1
    assert "cifar10" in json.loads(refused.out)[0]["problem"]


def test_a_named_grid_can_be_changed(rankrise):
    plans = json.loads(rankrise("toy-alphas", "--seeds", "1", "--grid", "task.dim=2", "--dry-run", "--json").out)
    assert {plan["spec"]["log10_alpha"] for plan in plans} == {-2, -4, -8, -16, -32, -64}
    assert {plan["spec"]["task"]["dim"] for plan in plans} == {2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vit-digitz"], "Grids that have a name: digits-scales"),
        (["vit-digits", "--grid", "width=3"], "The fields: data.name"),
        (["vit-digits", "--grid", "width"], "must be written as field=value,value"),
        (["vit-digits", "--workers", "2", "--scheduler", "tcp://a:1"], "must not be given together"),
        (["vit-digits", "--memory-limit", "lots"], "must be an amount of memory; got 'lots'"),
        (["vit-digits", "--scale", "huge"], "huge"),
    ],
)
def test_usage(rankrise, words, message):
    done = rankrise(*words)
    assert done.code == 2
    assert message in done.err.replace("│ │ ", "").replace(" │", "")


def test_a_full_disk_is_one_sentence(rankrise, monkeypatch):
    def full(plans, **_):
        return [Attempt(plans[0], "full", "no room")]

    monkeypatch.setattr(package, "sweep", full)
    done = rankrise(*TOY)
    assert done.code == 1
    assert done.err == "rankrise: The disk of runs is full: make room, and run the same command again to go on."


def test_on_a_terminal_there_is_a_table(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    plan = plan_run("toy-stages", scale="smoke", out=tmp_path)
    with SweepLines(stream, clock=lambda: 0.0) as lines:
        lines.update(Standing((plan,) * 14, 20, 3, 1, 75.0))
        lines.end(Attempt(plan, "failed", "why", 2.0), Standing((), 20, 3, 2, 60.0))
        lines.note("the scheduler went away")
    text = stream.getvalue()
    assert "3 of 20 done, 14 running, 1 failed, about 1 min 15 s left" in text
    assert "and 2 more" in text
    assert "seed 0: failed after 2 s (why); 3 of 20 done, 0 running, 2 failed, about 1 min 00 s left" in text
    assert "the scheduler went away" in text


def test_help_imports_neither_dask_nor_torch():
    import subprocess

    code = (
        "import sys; sys.argv = ['rankrise', 'sweep', '--help']\n"
        "from rankrise.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'dask', 'distributed', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "Example: rankrise sweep vit-digits" in done.stdout


def test_the_cores_of_this_process_are_the_default(rankrise, one_by_one):
    rankrise(*TOY)
    import os

    assert one_by_one[0].num_workers == len(os.sched_getaffinity(0))
    assert _sweep.the_workers(None, "none", "tcp://a:1").memory_limit is None
