"""A folder that is whole or not there: written beside its place under another name, synced, renamed."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rankrise.checkpoints._folders import show
from rankrise.store import failpoint, sync

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROOM = 1.2  # free space wanted, in sizes of what is written


def check_place(out: Path) -> None:
    """Refuse a place where something is, before any work is done for it.

    Raises:
        ValueError: A file, a folder that is not empty, or a place that cannot be written.
    """
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ValueError(f"`out` must be a new or an empty folder; {show(out)} is there. Choose another, or remove it.")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ValueError(f"`out` must be a place to write to; {show(above)} is not. Choose another.")


@contextlib.contextmanager
def new_folder(out: Path, num_bytes: int) -> Iterator[Path]:
    """Yield a temporary folder; on leaving it becomes `out`, on an error it is removed and `out` is as before.

    Raises:
        OSError: The disk is full, read-only, or gone.
        ValueError: As `check_place`.
    """
    check_place(out)
    failpoint("adapter.begin")
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(out)
    if shutil.disk_usage(out.parent).free < _ROOM * num_bytes:
        raise _full(errno.ENOSPC, out, num_bytes)
    temporary = out.parent / f".tmp-{out.name}-{os.getpid()}"
    try:
        temporary.mkdir()
        yield temporary
        sync(temporary)
        failpoint("adapter.rename")
        temporary.rename(out)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise _full(error.errno, out, num_bytes) from error
        raise
    failpoint("adapter.sync")
    sync(out.parent)
    failpoint("adapter.done")


def _full(number: int, out: Path, num_bytes: int) -> OSError:
    what = f"{os.strerror(number)}; {num_bytes / 1e6:.3g} MB are needed. Make room, or choose another `out`"
    return OSError(number, what, str(out))


def _remove_leftovers(out: Path) -> None:
    """What processes that died had begun; one with our own number died before us, as in a container every time."""
    begin = f".tmp-{out.name}-"
    for path in [p for p in out.parent.iterdir() if p.name.startswith(begin)]:
        pid = path.name.rpartition("-")[2]
        if pid.isdecimal() and (int(pid) == os.getpid() or not _is_alive(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
