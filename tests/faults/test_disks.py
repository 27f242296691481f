"""A real disk that is full or read-only, as far as this machine lets a test mount one."""

import contextlib
import os
import subprocess
import sys
import warnings

import pytest
from tests.faults.loop import SAVE_EVERY, live, lost

import rankrise as rr
from rankrise.tracking import RunDirectoryError, TrackingWarning

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0,
        reason="only root may mount a disk; limits and failpoints stand for it in tests/tracking/test_recorder.py",
    ),
]


def fill(path):
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(b"\0" * 512):
            pass


@pytest.mark.parametrize("begin", range(1, 9))
def test_full_disk_that_has_room_again_loses_nothing(disk, tmp_path, whole, begin):
    """The disk fills up at a step and is emptied a few steps later, before the next checkpoint."""
    ballast, end = disk / "ballast", min(begin + 4, SAVE_EVERY - 1) if begin < SAVE_EVERY else begin + 4

    def after_step(step):
        if begin <= step < end:
            fill(ballast)
        else:
            ballast.unlink(missing_ok=True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        live(disk / "run", after_step=after_step, strict=False)
    said = [str(w.message) for w in caught if w.category is TrackingWarning]
    assert all("the disk is full. Make room." in message for message in said)
    assert len(said) == len(set(said)) <= 3
    table = rr.load_run(disk / "run")
    assert lost(disk / "run", whole) == 0, said
    assert table.num_rows == whole.num_rows


def test_full_disk_at_the_end_is_sealed_by_the_next_run(disk, whole):
    def after_step(step):
        if step == 39:
            fill(disk / "ballast")

    with pytest.raises(OSError, match="No space left"):
        live(disk / "run", after_step=after_step)
    (disk / "ballast").unlink()
    live(disk / "run")
    assert lost(disk / "run", whole) == 0


def test_read_only_disk_is_read_and_not_written(disk, whole):
    with pytest.raises(ZeroDivisionError):
        live(disk / "run", after_step=lambda step: 1 // (step - 20))
    before = rr.load_run(disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert rr.load_run(disk / "run").equals(before)
    with pytest.raises(RunDirectoryError, match=r"the folder cannot be written \(Read-only file system\)"):
        live(disk / "run")
    with pytest.raises(RunDirectoryError, match=r"the folder cannot be written \(Read-only file system\)"):
        live(disk / "other")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    live(disk / "run")
    assert lost(disk / "run", whole) == 0
