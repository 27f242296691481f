"""`rankrise run` as a user runs it: results, skips, plans, mistakes, signals."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rankrise.cli import main
from rankrise.lab import experiments as ex
from rankrise.store import load_run

NAME = "vit-cifar10"
HASH = ex.spec_hash(ex.experiments()[NAME].smoke)


@pytest.fixture
def rankrise(monkeypatch, capsys, tmp_path):
    """Run a command in this process, through the same entry point; returns exit code and streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKRISE_DATA", raising=False)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=stopped.value.code or 0, stdout=out, stderr=err)

    return run


def test_result_on_stdout_and_the_rest_on_stderr(rankrise, tmp_path):
    done = rankrise("run", NAME, "--scale", "smoke", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(rf"{NAME}/{HASH}, seed 0: step 8, train loss \S+, train accuracy \S+%, .*%", lines[0])
    assert lines[1] == "stable rank of the change, mean over heads:"
    assert lines[2].split() == ["circuit", "layer", "0", "layer", "1"]
    assert [line.split()[0] for line in lines[3:]] == ["kq", "vo"]
    errors = done.stderr.splitlines()
    assert errors[0] == f"{NAME}/{HASH}: new, in runs/{NAME}/{HASH}"
    assert errors[-1] == f"wrote runs/{NAME}/{HASH}"
    assert load_run(tmp_path / "runs" / NAME / HASH).num_rows

    again = rankrise("run", NAME, "--scale", "smoke")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert again.stderr == f"{NAME}/{HASH}: done before, in runs/{NAME}/{HASH}; skipped\n"


def test_json(rankrise):
    done = rankrise("run", NAME, "gpt2-wikitext2", "--scale", "smoke", "--seed", "0-1", "--json", "--device", "cpu")
    records = json.loads(done.stdout)
    assert [(r["name"], r["spec"]["seed"], r["status"]) for r in records] == [
        (name, seed, "finished") for name in (NAME, "gpt2-wikitext2") for seed in (0, 1)
    ]
    assert all(len(r["stable_ranks"]["vo"]) == 2 and r["scalars"]["train_loss"] > 0 for r in records)
    assert "4 runs: 4 finished." in done.stderr


def test_own_spec_and_the_spec_of_a_run(rankrise, tmp_path):
    spec = ex.experiments()[NAME].smoke
    spec = replace(spec, model=replace(spec.model, activation="relu"))
    (tmp_path / "with-relu.json").write_text(json.dumps(ex.to_json(spec)))
    done = rankrise("run", "--spec", "with-relu.json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    folder = f"runs/with-relu/{ex.spec_hash(spec)}"
    assert done.stderr.splitlines()[-1] == f"wrote {folder}"
    again = rankrise("run", "--spec", f"{folder}/spec.json", "--out", "elsewhere", "--device", "cpu")
    assert again.stdout == done.stdout
    assert load_run(tmp_path / folder).equals(load_run(tmp_path / "elsewhere" / "with-relu" / ex.spec_hash(spec)))


def test_dry_run_says_what_is_done_what_would_run_and_what_is_missing(rankrise, tmp_path):
    rankrise("run", NAME, "--scale", "smoke", "--device", "cpu")
    before = sorted(tmp_path.rglob("*"))
    plan = rankrise("run", NAME, "--scale", "smoke", "--seed", "0", "--seed", "4-5", "--dry-run")
    assert [line.split()[2:] for line in plan.stdout.splitlines()[1:]] == [
        ["0", "done", "skipped"],
        ["4", "new", "run"],
        ["5", "new", "run"],
    ]
    missing = rankrise("run", NAME, "--dry-run", "--json")
    (record,) = json.loads(missing.stdout)
    assert (record["state"], record["would be"]) == ("new", "refused")
    assert "cifar-10-batches-py" in record["problem"]
    assert record["problem"] in rankrise("run", NAME, "--dry-run").stdout
    assert (plan.returncode, missing.returncode) == (0, 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_scale_that_chooses_nothing_is_said(rankrise, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(ex.to_json(ex.experiments()[NAME].smoke)))
    done = rankrise("run", "--spec", "mine.json", "--scale", "paper", "--dry-run")
    assert "rankrise: warning: `--scale` is ignored" in done.stderr
    assert "ignored" not in rankrise("run", "--spec", "mine.json", "--dry-run").stderr


def test_a_folder_that_cannot_be_made_is_one_sentence_with_its_cause(rankrise):
    done = rankrise("run", NAME, "--scale", "smoke", "--out", "/proc/x", "--device", "cpu")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    assert "Opening the run directory /proc/x" in done.stderr.splitlines()[1]
    assert "No such file or directory" in done.stderr.splitlines()[1]


def test_a_failing_run_does_not_stop_the_others(rankrise):
    done = rankrise("run", "--data", "nowhere", "vit-cifar100", "toy-matrix-head", "--epochs", "20", "--device", "cpu")
    assert done.returncode == 1
    assert done.stdout.startswith("toy-matrix-head/")
    lines = done.stderr.splitlines()
    assert re.match(r"rankrise: vit-cifar100/\w{12}: The data set 'cifar100' must be in", lines[0])
    assert re.match(r"2 runs: 1 finished, 1 failed \(vit-cifar100/\w{12}\)\.", lines[-2])
    assert lines[-1].startswith("wrote runs/toy-matrix-head/")
    assert "Traceback" not in done.stderr


def test_the_same_run_twice_is_one_run(rankrise):
    done = rankrise("run", NAME, NAME, "--scale", "smoke", "--seed", "1", "--seed", "0-1", "--dry-run", "--json")
    assert [record["seed"] for record in json.loads(done.stdout)] == [1, 0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Name an experiment, or pass --spec: `rankrise list` shows the names."),
        (["vit-cifar"], "got 'vit-cifar'. Did you mean 'vit-cifar10'? Known: gpt2-wikitext103,"),
        ([NAME, "--seed", "x"], "`--seed` must be a whole number, or a range such as 0-2 of at most 1000; got 'x'."),
        ([NAME, "--seed", "2-1"], "got '2-1'"),
        ([NAME, "--seed", "-1"], "got '-1'"),
        ([NAME, "--seed", "0-999999999"], "got '0-999999999'"),
        ([NAME, "--epochs", "0"], "--epochs"),
        ([NAME, "--scale", "big"], "'big' is not one of"),
        (["--spec", "none.json"], "none.json is not there"),
        (["--spec", "bad.json"], "bad.json: A spec must have schema_version 1"),
        (["--spec", "evil.json"], "A name must be 1 to 64 of a-z"),
    ],
)
def test_mistakes_exit_with_two_and_are_said_before_any_work(rankrise, tmp_path, args, message):
    (tmp_path / "bad.json").write_text("{}")
    evil = {"experiment": "../../evil", "spec": ex.to_json(ex.experiments()[NAME].smoke)}
    (tmp_path / "evil.json").write_text(json.dumps(evil))
    done = rankrise("run", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_device_that_is_not_there_is_one_sentence(rankrise):
    done = rankrise("run", NAME, "--scale", "smoke", "--device", "abacus")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.splitlines()[1].startswith(f"rankrise: {NAME}/{HASH}: ")


def test_out_that_is_a_file(rankrise, tmp_path):
    (tmp_path / "file").write_text("here first")
    done = rankrise("run", NAME, "--scale", "smoke", "--out", "file", "--device", "cpu")
    assert done.returncode == 1
    assert "file" in done.stderr.splitlines()[-1]
    assert (tmp_path / "file").read_text() == "here first"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_with_a_sentence_and_the_same_command_goes_on(tmp_path, number, code, rankrise):
    command = ["run", NAME, "toy-matrix-head", "--scale", "smoke", "--epochs", "60", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rankrise", *command],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step"):  # training is under way
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Run it again to go on." in err
    assert "2 runs: 1 stopped, 1 not begun." in err
    assert err.splitlines()[-1].startswith(f"wrote runs/{NAME}/")
    assert out.startswith(NAME)
    again = rankrise(*command)
    assert again.returncode == 0
    assert f"(1 of 2): unfinished, in runs/{NAME}/" in again.stderr
    assert "step 240," in again.stdout


def torchrun(*args, cwd):
    """Two processes; the launcher is asked to end before it is given up, so that it ends them too."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    process = subprocess.Popen(
        [*launcher, "rankrise", *args],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
        raise
    return SimpleNamespace(returncode=process.returncode, stdout=out, stderr=err)


@pytest.mark.slow
def test_two_processes_train_one_run_and_one_of_them_speaks(tmp_path):
    command = ["run", NAME, "vit-cifar100", NAME, "--scale", "smoke", "--device", "cpu"]
    done = torchrun(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.partition("/")[0] for line in done.stdout.splitlines() if "seed" in line] == [NAME, "vit-cifar100"]
    assert done.stderr.count("wrote ") == 1
    alone = ex.run_experiment(NAME, scale="smoke", out=tmp_path / "alone", device="cpu")
    together = ex.summarise_run(tmp_path / "runs" / NAME / HASH)
    assert together.scalars["test_loss"] == pytest.approx(alone.summary.scalars["test_loss"], rel=1e-4)
    again = torchrun(*command, cwd=tmp_path)
    assert again.returncode == 0
    assert again.stderr.count("; skipped") == 2
