"""Runs below a folder: one group of each experiment, the largest scale first, damage passed over with a warning."""

import json
from dataclasses import replace

import pytest
import torch

from rankrise.lab.experiments import NamedSpec, _plan, experiments, run_experiment, runs_by_experiment, vary
from rankrise.store import create_run

NAME = "vit-cifar10"


def run(what, out, **options):
    return run_experiment(what, scale="smoke", out=out, device="cpu", **options).folder


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Two seeds at smoke, a longer one of another spec, a scale, an empty folder, a file."""
    out = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run(NAME, out, seed=seed)
    run(NAME, out, epochs=3)
    run(f"{NAME}-scale-0.1", out)
    (out / "empty" / "abc").mkdir(parents=True)
    (out / "durations.json").write_text("{}")
    return out


def test_groups_of_one_spec_and_the_registered_one_first(out):
    found = runs_by_experiment(out)
    assert set(found) == {NAME, f"{NAME}-scale-0.1", f"{NAME}-scale-1"}
    seeds = sorted(json.loads((folder / "spec.json").read_text())["config"]["spec"]["seed"] for folder in found[NAME])
    assert seeds == [0, 1]


def test_a_network_is_the_member_of_scale_one_of_its_family(out, tmp_path):
    assert runs_by_experiment(out)[f"{NAME}-scale-1"] == runs_by_experiment(out)[NAME]
    run(NamedSpec(NAME, vary(experiments()[NAME].smoke, epochs=3)), tmp_path)
    run(f"{NAME}-scale-0.1", tmp_path)
    assert f"{NAME}-scale-1" not in runs_by_experiment(tmp_path)  # of another length


def test_a_spec_of_ones_own_is_found(tmp_path):
    spec = experiments()[NAME].smoke
    own = replace(spec, model=replace(spec.model, activation="relu"))
    folder = run(NamedSpec("mine", own), tmp_path)
    assert runs_by_experiment(tmp_path) == {"mine": [folder]}


def test_only_runs_of_a_reproduction(out, monkeypatch):
    parts = (_plan.Entry(NAME, "smoke"),)
    monkeypatch.setitem(_plan.ENTRIES, "smoke", parts)
    found = runs_by_experiment(out, scale="smoke")
    assert list(found) == [NAME]
    assert len(found[NAME]) == 1


@pytest.mark.parametrize("name", ["spec.json", "metrics.parquet", "MANIFEST.json"])
def test_a_damaged_run_is_passed_over_and_named(name, tmp_path):
    folder = run(NAME, tmp_path)
    whole = run(NAME, tmp_path, seed=1)
    with open(folder / name, "r+b") as file:
        file.truncate(20)
    with pytest.warns(UserWarning, match=rf"^A run is passed over: .*{folder.name}/{name} must .*\.$") as said:
        assert runs_by_experiment(tmp_path) == {NAME: [whole]}
    assert len(said) == 1


def test_a_damaged_run_of_a_reproduction_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(_plan.ENTRIES, "smoke", (_plan.Entry(NAME, "smoke"),))
    (run(NAME, tmp_path) / "metrics.parquet").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"metrics\.parquet must be as the manifest says"):
        assert runs_by_experiment(tmp_path, scale="smoke") == {}


def test_a_run_of_no_experiment_is_named(tmp_path):
    create_run(tmp_path / "mine" / "0", spec={}, initial={"w": torch.zeros(1)}).seal()
    with pytest.warns(UserWarning, match=r"mine/0 must be the run of an experiment; its spec\.json names none\.$"):
        assert runs_by_experiment(tmp_path) == {}


def test_nothing(tmp_path):
    assert runs_by_experiment(tmp_path) == runs_by_experiment(tmp_path / "nowhere") == {}
