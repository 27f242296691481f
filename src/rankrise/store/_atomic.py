"""Write files so that a reader sees either the old or the new content, even if the process or the machine dies.

A file is written under a temporary name beside its place, synced, and renamed; then its folder is synced. The temporary
file is always new: what a dead process, or the sender of a folder, left under that name is removed and never followed.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rankrise.store._failpoints import failpoint
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, show

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = ".tmp-"


@dataclass(frozen=True)
class Temporary:
    """A new file that is going to replace another: write to `file`, or let a library write to `path`."""

    file: BinaryIO
    path: Path


@contextlib.contextmanager
def replacing_in(folder: UntrustedFolder, name: str, label: str) -> Iterator[Temporary]:
    """Yield a temporary file; on leaving, its content becomes `name`, and on an error it is removed.

    Args:
        folder: The folder of the file.
        name: The file to make or to replace.
        label: Name of the failpoints of this file.
    """
    temporary = f"{_PREFIX}{name}-{os.getpid()}"
    try:
        failpoint(f"{label}.write")
        folder.remove(temporary)
        with os.fdopen(folder.create(temporary), "wb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            yield Temporary(file, folder.at(temporary))
            file.flush()
            failpoint(f"{label}.sync")
            with folder.open(temporary) as written:  # a library may have put another file in the place of ours
                os.fchmod(written.fileno(), mode)
                os.fsync(written.fileno())
        failpoint(f"{label}.rename")
        folder.rename(temporary, name)
        folder.sync()
        failpoint(f"{label}.done")
    except BaseException:
        folder.remove(temporary)
        raise


@contextlib.contextmanager
def replacing(path: Path, label: str) -> Iterator[Path]:
    """Yield a temporary path; on leaving, the file written there becomes `path`; on an error it is removed.

    Args:
        path: The file to make or to replace.
        label: Name of the failpoints of this file.
    """
    with UntrustedFolder(path.parent) as folder, replacing_in(folder, path.name, label) as temporary:
        yield temporary.path


def write_json_in(folder: UntrustedFolder, name: str, value: object, label: str) -> None:
    """Replace a file of a folder by `value` as JSON."""
    with replacing_in(folder, name, label) as temporary:
        temporary.file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_json(path: Path, value: object, label: str) -> None:
    """Replace `path` by `value` as JSON."""
    with UntrustedFolder(path.parent) as folder:
        write_json_in(folder, path.name, value, label)


def save_tensors_in(folder: UntrustedFolder, name: str, tensors: "dict[str, Tensor]", label: str) -> None:
    """Replace a safetensors file of a folder; the arguments are those of `save_tensors`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing_in(folder, name, label) as temporary:
        held = {k: t.detach().cpu().contiguous() for k, t in tensors.items()}
        try:
            save_file(held, temporary.path, {"format": "pt"})
        except SafetensorError as error:  # safetensors wraps errors of the disk in its own class, without their number
            if shutil.disk_usage(temporary.path.parent).free < sum(t.nbytes for t in held.values()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder.show(name)) from error
            raise OSError(f"{folder.show(name)} could not be written: {error}") from error


def save_tensors(path: Path, tensors: "dict[str, Tensor]", label: str) -> None:
    """Replace `path` by `tensors`.

    Args:
        path: A `.safetensors` file.
        tensors: Tensors by name, on any device; each is written contiguous.
        label: Name of the failpoints of this file.

    Raises:
        OSError: The disk is full or read-only.
    """
    with UntrustedFolder(path.parent) as folder:
        save_tensors_in(folder, path.name, tensors, label)


def load_tensors_in(folder: UntrustedFolder, name: str) -> "dict[str, Tensor]":
    """Read every tensor of a safetensors file of a folder; the refusals are those of `load_tensors`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with folder.open(name) as file:
            handle = Path(f"/proc/self/fd/{file.fileno()}")
            return load_file(handle if handle.exists() else folder.at(name))
    except (SafetensorError, FileNotFoundError) as error:
        raise UntrustedInputError(
            f"{folder.show(name)} must be a safetensors file; {show(error)}. Restore it, or drop the run."
        ) from error


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Read every tensor of a safetensors file.

    Raises:
        ValueError: The file is missing, damaged, or a link.
    """
    with UntrustedFolder(path.parent) as folder:
        return load_tensors_in(folder, path.name)


def sync(path: Path) -> None:
    """Ask the kernel to put a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(folder: UntrustedFolder, name: str) -> str:
    """Return the checksum of a file of a folder.

    >>> import tempfile
    >>> with UntrustedFolder(tempfile.mkdtemp()) as folder:
    ...     os.close(folder.create("empty"))
    ...     sha256(folder, "empty")[:8]
    'e3b0c442'
    """
    with folder.open(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def remove_leftovers(folder: UntrustedFolder, prefixes: tuple[str, ...] = (_PREFIX,)) -> None:
    """Remove what processes that died have left; call it only while holding the lock of the run."""
    for name in folder.names():
        if name.startswith(prefixes):
            folder.remove_folder(name)
