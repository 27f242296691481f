"""One process writes a run directory; the kernel frees the lock when that process dies."""

import os
import weakref
from pathlib import Path

_held: "weakref.WeakSet[RunLock]" = weakref.WeakSet()


class RunLock:
    """An exclusive `flock` on `<folder>/.lock`.

    A forked child (a data loader's worker) gives its copy up at once, so that the lock dies with its owner.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl

        self._descriptor: int | None = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            self.release()
            raise ValueError(
                f"A run directory must have one writer; {folder} is being written by process {owner}. "
                "Wait for it to end, or choose another folder."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        _held.add(self)

    def release(self) -> None:
        """Give the lock up; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
