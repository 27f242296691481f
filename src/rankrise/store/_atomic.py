"""Files that are either old or new, whatever dies in between: temp, fsync, rename, fsync of the folder."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankrise.store._failpoints import failpoint

_PREFIX = ".tmp-"


@contextlib.contextmanager
def replacing(path: Path, label: str) -> Iterator[Path]:
    """Yield a temporary path; on leaving, what was written there becomes `path`, on an error it is removed.

    Args:
        path: The file to make or to replace.
        label: Name of its failpoints.
    """
    temporary = path.with_name(f"{_PREFIX}{path.name}-{os.getpid()}")
    try:
        failpoint(f"{label}.write")
        yield temporary
        failpoint(f"{label}.sync")
        sync(temporary)
        temporary.chmod(_mode())
        failpoint(f"{label}.rename")
        temporary.replace(path)
        sync(path.parent)
        failpoint(f"{label}.done")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object, label: str) -> None:
    """Replace `path` by `value` as JSON."""
    with replacing(path, label) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON, or say which file is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} must hold JSON; {error}. The file is damaged: restore it, or drop the run."
        ) from error


def sync(path: Path) -> None:
    """Ask the kernel to put a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Checksum of a file.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     sha256(Path(file.name))[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that died; call it only while holding the folder's lock."""
    for path in folder.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)


def _mode() -> int:
    """What `open` would have given the file: 0o666 less the umask."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
