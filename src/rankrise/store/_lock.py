"""One process writes a run directory; the kernel frees the lock when that process dies."""

import errno
import gc
import os
import time
import weakref
from pathlib import Path

from rankrise.store._untrusted import UntrustedFolder, show

_NAME = ".lock"
_MOST_TRIES = 5
_PAUSE = 0.01  # seconds; `is_locked` holds the lock for less than a thousandth of that


class RunBusyError(ValueError):
    """Another process is writing this run."""


_held: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


class RunLock:
    """An exclusive `flock` on `<folder>/.lock`.

    A forked child, such as a data loader's worker, gives up its copy at once, so that the lock ends with its owner. A
    lock object that nobody refers to any more gives up the lock too. A `.lock` that is a link, a pipe or hard-linked is
    refused.
    """

    def __init__(self, folder: Path | UntrustedFolder) -> None:
        self.folder = folder if isinstance(folder, UntrustedFolder) else UntrustedFolder(folder)
        descriptor = self.folder.open_to_write(_NAME)
        self._close = weakref.finalize(self, os.close, descriptor)
        if not _take(descriptor):
            owner = show(os.read(descriptor, 32).decode(errors="replace").strip()) or "unknown"
            if owner == str(os.getpid()):
                gc.collect()  # a trainer that crashed may still hold the lock, as garbage in reference cycles
                if not _take(descriptor):
                    self.release()
                    raise ValueError(
                        "A run directory must have one writer; a tracker in this process still holds "
                        f"{show(self.folder.path)}. Call its `close(seal=False)`, or choose another folder."
                    )
            else:
                self.release()
                raise RunBusyError(
                    f"A run directory must have one writer; {show(self.folder.path)} is being written by process "
                    f"{owner}. Wait for it to end, or choose another folder."
                )
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:  # a notebook keeps the traceback of an interrupt, and with it this object
            self.release()
            raise
        _held.add(self)

    def release(self) -> None:
        """Give up the lock; a second call does nothing."""
        self._close()
        _held.discard(self)


def _take(descriptor: int) -> bool:
    """Lock the file unless somebody else holds the lock.

    A reader that asks `is_locked` holds the lock for an instant; therefore further attempts follow, with pauses.
    """
    import fcntl

    for is_last in [False] * (_MOST_TRIES - 1) + [True]:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_last:
                time.sleep(_PAUSE)
        else:
            return True
    return False


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether some process is writing the run at `path` now.

    Raises:
        ValueError: The lock file is a link or not a regular file.
    """
    try:
        with UntrustedFolder(path) as folder:
            return is_locked_in(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_locked_in(folder: UntrustedFolder) -> bool:
    """Whether some process is writing the run in an open folder; the errors are those of `is_locked`."""
    import fcntl

    try:
        with folder.open(_NAME) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_still_held(folder: UntrustedFolder) -> None:
    """Check that a folder is the one whose lock this process took under the same path.

    Raises:
        FileNotFoundError: The folder that was locked has been removed, and another one is in its place.
    """
    for lock in list(_held):
        if lock.folder.path.absolute() == folder.path.absolute() and not lock.folder.is_same(folder):
            raise FileNotFoundError(errno.ENOENT, "the run directory was removed or replaced", str(folder.path))


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
