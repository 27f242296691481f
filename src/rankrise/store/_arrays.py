"""Arrays of an `.npz` or `.npy` from somebody else: headers are compared with a limit before anything is allocated."""

import io
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from rankrise.store._limits import MOST_BYTES
from rankrise.store._untrusted import UntrustedInputError, open_file, show

if TYPE_CHECKING:
    import numpy as np

_SINGLE = b"\x93NUMPY"  # the first bytes of an .npy
_HEAD_BYTES = 2**16
_UNREADABLE = (  # what `zipfile` and numpy raise for a file that is no .npz
    ValueError, KeyError, EOFError, TypeError, RuntimeError, MemoryError, zlib.error, zipfile.BadZipFile,
    tokenize.TokenError,
)  # fmt: skip


def read_npz(
    path: str | os.PathLike[str], names: Sequence[str] | None = None, *, argument: str
) -> "dict[str, np.ndarray[Any, Any]]":
    """Read arrays of real numbers from an `.npz`.

    A large file may hold large arrays, but a small file must not unpack to a large one (`RANKRISE_MOST_BYTES`). Every
    number counts as 8 bytes whatever its dtype is, because it may be read as float64.

    Args:
        path: The file.
        names: The arrays to read; by default all.
        argument: The name of the option or argument that gave the path, for messages.

    Raises:
        OSError: The file is missing or cannot be read.
        UntrustedInputError: The file is no .npz, or an array is missing, holds no real numbers, or is too large.

    >>> import numpy as np, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "data.npz")
    >>> np.savez(path, x=[1, 2])
    >>> read_npz(path, argument="--data")
    {'x': array([1, 2])}
    """
    with open_file(path) as file:
        try:
            if file.read(len(_SINGLE)) == _SINGLE:
                raise TypeError("it holds a single array")
            file.seek(0)
            with zipfile.ZipFile(file) as archive:
                size = os.fstat(file.fileno()).st_size
                if names is None:
                    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
                members = [_member(archive, name, size) for name in names]
                return {name: _array(archive, member) for name, member in zip(names, members, strict=True)}
        except (OSError, *_UNREADABLE) as error:
            given = f"numeric arrays {' and '.join(names)}" if names else "numeric arrays"
            example = ", ".join(f"{name}={name}" for name in names or ("x",))
            raise UntrustedInputError(
                f"`{argument}` must be an .npz with {show(given[:200])}; {show(os.path.basename(path))}: "
                f"{show(str(error)[:200])}. Write one with numpy.savez(path, {show(example[:200])})."
            ) from error


def read_npy(path: str | os.PathLike[str], *, argument: str) -> "np.ndarray[Any, Any]":
    """Read the array of real numbers that an `.npy` holds; the limit is that of `read_npz`.

    Args:
        path: The file.
        argument: What the user calls the file, for the message.

    Raises:
        OSError: The file is missing or cannot be read.
        UntrustedInputError: It is no such file, does not hold real numbers, or is too large.

    >>> import numpy as np, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "data.npy")
    >>> np.save(path, [1, 2])
    >>> read_npy(path, argument="data.npy")
    array([1, 2])
    """
    import numpy as np

    with open_file(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            num_bytes = _check_header(io.BytesIO(file.read(_HEAD_BYTES)), "the array", size)
            if num_bytes > size:
                raise ValueError(f"the array has {num_bytes} bytes, more than the file")
            file.seek(0)
            array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, *_UNREADABLE) as error:
            raise UntrustedInputError(
                f"`{argument}` must be an .npy with an array of real numbers; {show(os.path.basename(path))}: "
                f"{show(str(error)[:200])}. Write one with numpy.save(path, x)."
            ) from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _member(archive: zipfile.ZipFile, name: str, num_file_bytes: int) -> str:
    """Return the name of a member of an .npz, once its header says that its numbers are few enough."""
    member = f"{name}.npy"
    if member not in archive.namelist():
        raise KeyError(f"it holds no array {name}")
    if archive.getinfo(member).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise TypeError(f"{name} is compressed as numpy never does")
    with archive.open(member) as file:
        _check_header(io.BytesIO(file.read(_HEAD_BYTES)), name, num_file_bytes)
    return member


def _check_header(head: BinaryIO, name: str, num_file_bytes: int) -> int:
    """Refuse what is no array of real numbers, or has too many; return the bytes that the array takes in the file.

    Only the first bytes of the file are given, because a header may claim gigabytes, which numpy would read first.
    """
    import numpy as np

    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[np.lib.format.read_magic(head)](head)
    if dtype.kind not in "fiub":
        raise TypeError(f"{name} holds {dtype}, not real numbers")
    if min(shape, default=0) < 0:  # two negative sizes would multiply to few numbers, and numpy would wrap them around
        raise ValueError(f"{name} has the shape {shape}")
    num_bytes, most = 8 * math.prod(shape), max(MOST_BYTES.value(), 8 * num_file_bytes)
    if num_bytes > most:
        raise ValueError(f"{name} unpacks to {num_bytes} bytes, more than {most}. {MOST_BYTES.remedy}")
    return math.prod(shape) * int(dtype.itemsize)


def _array(archive: zipfile.ZipFile, member: str) -> "np.ndarray[Any, Any]":
    import numpy as np

    with archive.open(member) as file:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
