"""Thin copies: sealed, checked, without weights; nothing else is written over."""

import json

import pytest
import torch

from rankrise.store import copy_thin, create_run, is_sealed, load_run, load_spec, resume_run, rows, verify_run


@pytest.fixture
def whole(tmp_path):
    run = create_run(tmp_path / "whole", spec={"kind": "theory"}, initial={"w": torch.zeros(2)})
    for step in range(3):
        run.append(rows(step, "loss", [float(step)]))
    run.seal()
    return run.folder


def test_a_part_of_the_table(whole, tmp_path):
    table = load_run(whole).slice(1)
    thin = copy_thin(whole, tmp_path / "thin", table)
    assert is_sealed(thin)
    verify_run(thin)
    assert load_run(thin).equals(table)
    assert load_spec(thin) == load_spec(whole)
    assert not (thin / "initial.safetensors").exists()


def test_damage_is_found(whole, tmp_path):
    thin = copy_thin(whole, tmp_path / "thin", load_run(whole))
    (thin / "spec.json").write_text("{}")
    with pytest.raises(ValueError, match=r"spec\.json must be as the manifest says"):
        verify_run(thin)


def test_refusals(whole, tmp_path):
    table = load_run(whole)
    with pytest.raises(ValueError, match="it holds a whole run"):
        copy_thin(whole, whole, table)
    with pytest.raises(FileNotFoundError):
        copy_thin(tmp_path / "nowhere", tmp_path / "thin", table)
    running = create_run(tmp_path / "running", spec={}, initial={"w": torch.zeros(1)})
    with pytest.raises(ValueError, match="must be a finished run; it is running"):
        copy_thin(running.folder, tmp_path / "thin", table)
    running.close()
    thin = copy_thin(whole, tmp_path / "thin", table)
    with pytest.raises(ValueError, match="it is a thin copy"):
        resume_run(thin, step=1)


@pytest.mark.parametrize("changes", [{"is_thin": "yes"}, {"is_thin": True, "state": "running"}, {"is_thin": False}])
def test_a_manifest_that_contradicts_itself(whole, tmp_path, changes):
    thin = copy_thin(whole, tmp_path / "thin", load_run(whole))
    path = thin / "MANIFEST.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match="must be a run's manifest"):
        load_run(thin)
