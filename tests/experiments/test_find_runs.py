"""Runs below a folder: one group of each experiment, the largest scale first, damage passed over."""

import json
from dataclasses import replace

import pytest

from rankrise.experiments import NamedSpec, _reproduction, experiments, find_runs, run_experiment, vary

NAME = "vit-cifar10"


def run(what, out, **options):
    return run_experiment(what, scale="smoke", out=out, device="cpu", **options).folder


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Two seeds at smoke, a longer one of another spec, a scale, a damaged one, an unfinished folder, a file."""
    out = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run(NAME, out, seed=seed)
    run(NAME, out, epochs=3)
    run(f"{NAME}-scale-0.1", out)
    damaged = run("vit-cifar100", out)
    (damaged / "spec.json").write_text("{}")
    (out / "empty" / "abc").mkdir(parents=True)
    (out / "durations.json").write_text("{}")
    return out


def test_groups_of_one_spec_and_the_registered_one_first(out):
    found = find_runs(out)
    assert set(found) == {NAME, f"{NAME}-scale-0.1", f"{NAME}-scale-1"}
    seeds = sorted(json.loads((folder / "spec.json").read_text())["config"]["spec"]["seed"] for folder in found[NAME])
    assert seeds == [0, 1]


def test_a_network_is_the_member_of_scale_one_of_its_family(out, tmp_path):
    assert find_runs(out)[f"{NAME}-scale-1"] == find_runs(out)[NAME]
    run(NamedSpec(NAME, vary(experiments()[NAME].smoke, epochs=3)), tmp_path)
    run(f"{NAME}-scale-0.1", tmp_path)
    assert f"{NAME}-scale-1" not in find_runs(tmp_path)  # of another length


def test_a_spec_of_ones_own_is_found(tmp_path):
    spec = experiments()[NAME].smoke
    own = replace(spec, model=replace(spec.model, activation="relu"))
    folder = run(NamedSpec("mine", own), tmp_path)
    assert find_runs(tmp_path) == {"mine": [folder]}


def test_only_runs_of_a_reproduction(out, monkeypatch):
    parts = (_reproduction.Part(NAME, "smoke"),)
    monkeypatch.setitem(_reproduction.PARTS, "smoke", parts)
    found = find_runs(out, scale="smoke")
    assert list(found) == [NAME]
    assert len(found[NAME]) == 1


def test_nothing(tmp_path):
    assert find_runs(tmp_path) == find_runs(tmp_path / "nowhere") == {}
