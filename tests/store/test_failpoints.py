"""Kill a run at every step of every write, in its first life or while it is resumed: what is left is a run, and goes on
to the same table as one that was never killed."""

import contextlib
import os
import signal

import pytest
import torch
from tests.processes import exit_code

from rankrise.store import create_run, has_run, load_directions, load_run, resume_run, rows
from rankrise.store._failpoints import RUN_FAILPOINTS, VARIABLE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*was cut off or damaged")
LAST, CHECKPOINT = 6, 3


def live(folder, *, failpoint=None):
    """Go through what is left of a run's life; the checkpoint of the training is a file beside it."""
    if failpoint:
        os.environ[VARIABLE] = failpoint
    checkpoint = folder.parent / "checkpoint"
    done = CHECKPOINT if checkpoint.exists() else 0
    if has_run(folder):
        run = resume_run(folder, step=done)
    else:
        assert not done
        run = create_run(folder, spec={"name": "killed"}, initial={"w": torch.ones(3)})
    with contextlib.closing(run):
        for step in range(done + 1, LAST + 1):
            if step % 2 == 0:
                run.save_directions(step, {"0.kq.left": torch.full((1, 2, 1), float(step))})
            run.append(rows(step, "spectrum", [[1.0 / step, 0.5 / step]], circuit="q", layers=[0]), sync=True)
            if step == CHECKPOINT:
                checkpoint.touch()
        run.seal()


def outcome(folder):
    return load_run(folder), {step: kept["0.kq.left"].sum().item() for step, kept in load_directions(folder).items()}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    live(folder)
    return outcome(folder)


@pytest.mark.parametrize("failpoint", RUN_FAILPOINTS)
def test_killed_anywhere_then_resumed_is_as_if_never_killed(tmp_path, uninterrupted, failpoint):
    folder = tmp_path / "run"
    assert exit_code(lambda: live(folder, failpoint=f"{failpoint}:kill")) == -signal.SIGKILL
    if has_run(folder):
        table = load_run(folder)  # readable as it lies there
        assert table.equals(uninterrupted[0].slice(0, table.num_rows))
        assert table.num_rows % 2 == 0  # blocks are whole
    live(folder)
    assert outcome(folder)[0].equals(uninterrupted[0])
    assert outcome(folder)[1] == uninterrupted[1]
    assert not [p for p in folder.rglob("*") if p.name.startswith(".tmp")]


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("failpoint", ["block.write", "block.half", "block.sync"])
def test_killed_later(tmp_path, uninterrupted, failpoint, count):
    folder = tmp_path / "run"
    assert exit_code(lambda: live(folder, failpoint=f"{failpoint}@{count}:kill")) == -signal.SIGKILL
    assert load_run(folder).num_rows == 2 * (count - (failpoint != "block.sync"))
    live(folder)
    assert outcome(folder)[0].equals(uninterrupted[0])


@pytest.mark.parametrize("failpoint", [f for f in RUN_FAILPOINTS if f.split(".")[0] in ("stream", "manifest")])
@pytest.mark.parametrize("was_sealed", [False, True])
def test_killed_while_it_is_resumed(tmp_path, uninterrupted, failpoint, was_sealed):
    folder = tmp_path / "run"
    first = None if was_sealed else "block.half@5:kill"
    assert exit_code(lambda: live(folder, failpoint=first)) == (0 if was_sealed else -signal.SIGKILL)
    assert exit_code(lambda: live(folder, failpoint=f"{failpoint}:kill")) == -signal.SIGKILL
    live(folder)
    assert outcome(folder)[0].equals(uninterrupted[0])
    assert outcome(folder)[1] == uninterrupted[1]


@pytest.mark.parametrize("failpoint", RUN_FAILPOINTS)
def test_full_disk_anywhere_leaves_what_was_written(tmp_path, uninterrupted, failpoint, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setenv(VARIABLE, f"{failpoint}:full")
    with pytest.raises(OSError, match="No space left"):
        live(folder)
    monkeypatch.delenv(VARIABLE)
    assert not [p for p in folder.rglob("*") if p.name.startswith(".tmp")]
    if has_run(folder):
        table = load_run(folder)
        assert table.equals(uninterrupted[0].slice(0, table.num_rows))
    live(folder)
    assert outcome(folder)[0].equals(uninterrupted[0])
    assert outcome(folder)[1] == uninterrupted[1]
