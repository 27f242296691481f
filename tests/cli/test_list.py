"""`rankrise list`: names, whether their data is found, what is done."""

import json
import subprocess
import sys

import pytest

from rankrise.cli import main
from rankrise.lab import experiments as ex


@pytest.fixture
def listed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKRISE_DATA", raising=False)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rankrise", "list", *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code
        return capsys.readouterr().out

    return run


def test_table(listed):
    lines = listed().splitlines()
    assert lines[0].split() == ["name", "smoke", "small", "paper", "done", "what"]
    assert [line.split()[0] for line in lines[1 : 1 + len(ex.experiments())]] == list(ex.experiments())
    assert lines[1].split()[:5] == ["vit-digits", "ready", "ready", "ready", "0"]
    assert "Data is looked for in data; --data DIR or RANKRISE_DATA=DIR names another folder." in lines
    assert max(len(line) for line in lines) <= 120


def test_data_found_and_runs_done(listed, tmp_path, monkeypatch):
    folder = tmp_path / "sets" / "tiny-imagenet-20"
    for split in ("train", "val"):
        (folder / split / "cat").mkdir(parents=True)
    ex.run_experiment("vit-cifar10", scale="smoke", out=tmp_path / "runs", device="cpu")
    damaged = ex.run_experiment("vit-cifar10", scale="smoke", seed=1, out=tmp_path / "runs", device="cpu")
    (damaged.folder / "MANIFEST.json").write_text("{")
    (tmp_path / "runs" / "vit-cifar10" / "notes.txt").write_text("mine")

    def record(*args):
        return {entry["name"]: entry for entry in json.loads(listed("--json", *args))}

    before = record()
    assert before["vit-tiny-imagenet"]["scales"]["paper"]["missing"]
    assert (before["vit-cifar10"]["done"], before["vit-cifar100"]["done"]) == (1, 0)
    monkeypatch.setenv("RANKRISE_DATA", str(tmp_path / "sets"))
    for after in (record(), record("--data", str(tmp_path / "sets"))):
        assert after["vit-tiny-imagenet"]["scales"]["paper"]["missing"] == ""
        assert after["vit-cifar10"]["scales"]["paper"]["missing"]
    assert record("--out", "elsewhere")["vit-cifar10"]["done"] == 0
    paper = before["vit-cifar10"]["scales"]["paper"]
    assert paper["hash"] == ex.spec_hash(ex.experiments()["vit-cifar10"].paper)


def test_listing_loads_neither_torch_nor_numpy(tmp_path):
    code = (
        "import sys; sys.argv = ['rankrise', 'list']\n"
        "from rankrise.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*(m for m in ('torch', 'numpy', 'scipy', 'pyarrow') if m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "vit-cifar10" in done.stdout
    assert done.stderr.strip() == ""
