"""One process writes a run directory; the kernel frees the lock when that process dies."""

import gc
import os
import weakref
from pathlib import Path


class RunBusyError(ValueError):
    """Another process is writing this run."""


_held: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


class RunLock:
    """An exclusive `flock` on `<folder>/.lock`.

    A forked child (a data loader's worker) gives its copy up at once, so that the lock dies with its owner; a lock that
    nobody refers to any more is given up too.
    """

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._close = weakref.finalize(self, os.close, descriptor)
        if not _take(descriptor):
            owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            if owner == str(os.getpid()):
                gc.collect()  # it may be held by garbage: a trainer that crashed, full of cycles
                if not _take(descriptor):
                    self.release()
                    raise ValueError(
                        f"A run directory must have one writer; a tracker in this process still holds {folder}. "
                        "Call its `close(seal=False)`, or choose another folder."
                    )
            else:
                self.release()
                raise RunBusyError(
                    f"A run directory must have one writer; {folder} is being written by process {owner}. "
                    "Wait for it to end, or choose another folder."
                )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Give the lock up; a second call does nothing."""
        self._close()


def _take(descriptor: int) -> bool:
    """Lock the file if nobody else has it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Whether some process is writing the run in `folder` now."""
    import fcntl

    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
