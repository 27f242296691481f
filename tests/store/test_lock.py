"""One writer a folder; the lock dies with its owner, whatever children it left."""

import gc
import os
import signal
import time

import pytest
from tests.processes import exit_code

from rankrise.store._lock import RunLock, is_locked

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_second_writer_is_refused_in_one_sentence(tmp_path):
    lock = RunLock(tmp_path)
    assert is_locked(tmp_path)
    with pytest.raises(
        ValueError, match=r"must have one writer; a tracker in this process still holds .*`close\(seal=False\)`"
    ):
        RunLock(tmp_path)
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    lock.release()
    assert not is_locked(tmp_path)
    RunLock(tmp_path).release()


def test_second_process_is_refused(tmp_path):
    lock, owner = RunLock(tmp_path), os.getpid()

    def second():
        with pytest.raises(
            ValueError, match=rf"must have one writer; .* is being written by process {owner}\. Wait for it"
        ):
            RunLock(tmp_path)

    assert exit_code(second) == 0
    lock.release()


def test_lock_dies_with_its_owner_though_a_worker_lives(tmp_path):
    worker = tmp_path / "worker"

    def owner():
        lock = RunLock(tmp_path)
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
        worker.write_text(str(pid))
        time.sleep(0.1)  # the worker gives its copy up
        assert lock
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(owner) == -signal.SIGKILL
    RunLock(tmp_path).release()
    os.kill(int(worker.read_text()), signal.SIGKILL)


def test_lock_dies_with_its_last_reference(tmp_path):
    lock = RunLock(tmp_path)
    assert lock
    del lock
    assert not is_locked(tmp_path)
    gc.disable()
    try:
        cycle = [RunLock(tmp_path)]
        cycle.append(cycle)
        del cycle
        assert is_locked(tmp_path)
        RunLock(tmp_path).release()
    finally:
        gc.enable()


def test_folder_without_a_lock_is_not_locked(tmp_path):
    assert not is_locked(tmp_path)
