"""Checkpoints are whole or not there, and what is damaged is named."""

import errno
import json
import os
import signal
from collections import namedtuple

import pytest
import torch
from tests.processes import exit_code

from rankrise.store import TrainingState, checkpoint_steps, find_checkpoint, load_checkpoint, prune_checkpoints
from rankrise.store import save_checkpoint as save
from rankrise.store._failpoints import CHECKPOINT_FAILPOINTS, VARIABLE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def state_of(step):
    return TrainingState(
        step, {"w": torch.full((3,), float(step))}, {"exp_avg/w": torch.ones(3)}, {"step": step, "a": 0.1}
    )


def newest(folder):
    checkpoint, skipped = find_checkpoint(folder)
    return None if checkpoint is None else checkpoint.step, skipped


def leftovers(folder):
    return [p.name for p in (folder / "checkpoints").glob(".*")]


def test_round_trip(tmp_path):
    save(tmp_path, state_of(5))
    found = load_checkpoint(tmp_path, 5)
    assert torch.equal(found.model["w"], torch.full((3,), 5.0))
    assert torch.equal(found.optimiser["exp_avg/w"], torch.ones(3))
    assert found.state == {"step": 5, "a": 0.1}
    files = sorted(p.name for p in (tmp_path / "checkpoints" / "step-000000005").iterdir())
    assert files == ["MANIFEST.json", "model.safetensors", "optimiser.safetensors", "state.json"]
    manifest = json.loads((tmp_path / "checkpoints" / "step-000000005" / "MANIFEST.json").read_text())
    assert manifest["files"]["model.safetensors"].keys() == {"size", "sha256"}


def test_none(tmp_path):
    assert newest(tmp_path) == (None, [])
    prune_checkpoints(tmp_path, keep=[])
    with pytest.raises(ValueError, match=r"MANIFEST\.json is missing"):
        load_checkpoint(tmp_path, 5)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


@pytest.mark.parametrize("file", ["model.safetensors", "optimiser.safetensors", "state.json", "MANIFEST.json"])
@pytest.mark.parametrize("damage", [truncate, flip, empty, remove])
def test_damage_falls_back_to_the_one_before_and_names_the_file(tmp_path, file, damage):
    for step in (3, 6):
        save(tmp_path, state_of(step))
    path = tmp_path / "checkpoints" / "step-000000006" / file
    text = path.read_text() if file == "MANIFEST.json" else ""
    damage(path)
    if file == "MANIFEST.json" and damage is truncate:  # the last byte is only the end of the line
        assert json.loads(path.read_text()) == json.loads(text)
        assert newest(tmp_path) == (6, [])
        return
    step, skipped = newest(tmp_path)
    assert step == 3
    assert len(skipped) == 1
    assert "step-000000006 is skipped: " in skipped[0]
    assert file in skipped[0] or file == "MANIFEST.json"


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("[]", "schema_version must be 1; got None"),
        ('{"schema_version": 9}', "schema_version must be 1; got 9"),
        ('{"schema_version": 1, "step": 7}', "its manifest is of step 7"),
        ('{"schema_version": 1, "step": 6, "files": 3}', "does not list model.safetensors"),
        ('{"schema_version": 1, "step": 6, "files": {"model.safetensors": 1}}', "does not list model.safetensors"),
    ],
)
def test_strange_manifests(tmp_path, manifest, reason):
    save(tmp_path, state_of(6))
    (tmp_path / "checkpoints" / "step-000000006" / "MANIFEST.json").write_text(manifest)
    step, skipped = newest(tmp_path)
    assert step is None
    assert reason in skipped[0]


def test_same_step_again_replaces_what_is_there(tmp_path):
    save(tmp_path, state_of(6))
    flip(tmp_path / "checkpoints" / "step-000000006" / "model.safetensors")
    save(tmp_path, state_of(6))
    assert newest(tmp_path) == (6, [])
    assert leftovers(tmp_path) == []


def test_prune_keeps_those_named_and_clears_leftovers(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, state_of(step))
    for name in (".tmp-9-1", ".trash-step-000000009-1"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "model.safetensors").write_text("half")
    prune_checkpoints(tmp_path, keep=[1, 3])
    assert sorted(checkpoint_steps(tmp_path)) == [1, 3]
    assert leftovers(tmp_path) == []


def test_room_is_looked_for_first(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    size = sum(t.nbytes for t in (state_of(1).model["w"], state_of(1).optimiser["exp_avg/w"]))
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0, 0, int(1.2 * size) - 1))
    with pytest.raises(OSError, match="No space left") as caught:
        save(tmp_path, state_of(1))
    assert caught.value.errno == errno.ENOSPC
    assert newest(tmp_path) == (None, [])
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0, 0, 2 * size))
    save(tmp_path, state_of(1))
    assert newest(tmp_path) == (1, [])


def turn(folder, failpoint):
    """What training does: save step 9, then keep two."""
    os.environ[VARIABLE] = failpoint
    save(folder, state_of(9))
    prune_checkpoints(folder, keep=[6, 9])


@pytest.mark.parametrize("failpoint", CHECKPOINT_FAILPOINTS)
def test_killed_anywhere_leaves_a_good_checkpoint(tmp_path, failpoint):
    for step in (3, 6):
        save(tmp_path, state_of(step))
    assert exit_code(lambda: turn(tmp_path, f"{failpoint}:kill")) == -signal.SIGKILL
    step, skipped = newest(tmp_path)
    is_there = failpoint in ("checkpoint.sync", "checkpoint.done") or failpoint.startswith("prune")
    assert (step, skipped) == (9 if is_there else 6, [])
    save(tmp_path, state_of(12))
    prune_checkpoints(tmp_path, keep=[12])
    assert (newest(tmp_path), leftovers(tmp_path)) == ((12, []), [])


@pytest.mark.parametrize("action", ["full", "readonly"])
@pytest.mark.parametrize("failpoint", [f for f in CHECKPOINT_FAILPOINTS if not f.startswith("prune")])
def test_disk_that_refuses_leaves_the_others(tmp_path, monkeypatch, failpoint, action):
    for step in (3, 6):
        save(tmp_path, state_of(step))
    monkeypatch.setenv(VARIABLE, f"{failpoint}:{action}")
    with pytest.raises(OSError, match=r"No space left|[Rr]ead-only"):
        save(tmp_path, state_of(9))
    assert newest(tmp_path) in [(6, []), (9, [])]
    assert leftovers(tmp_path) == []
    monkeypatch.delenv(VARIABLE)
    save(tmp_path, state_of(9))
    assert newest(tmp_path) == (9, [])
