"""Files of a folder that someone else wrote: nothing outside it is read, and nothing but regular files.

A shard index names files, and a name may be `../secret`, an absolute path or a symbolic link. Links of the hub's cache,
`snapshots/<revision>/x -> ../../blobs/<hash>`, also of folders below the revision, stay within the same repository and
are followed.
"""

import contextlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankrise import store

_JSON_BYTES = 100 * 2**20


@dataclass(frozen=True)
class File:
    """A regular file as it was when it was found; opening it later refuses another one in its place."""

    path: Path  # the path that the user gave
    real: Path
    size: int
    identity: tuple[int, int]

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        """A descriptor for reading.

        Raises:
            OSError: The file has gone.
            ValueError: It is not the one that was found.
        """
        descriptor = os.open(self.real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            now = os.fstat(descriptor)
            if (now.st_dev, now.st_ino) != self.identity or now.st_size != self.size:
                raise ValueError(
                    f"{show(self.path)} must stay as it is while it is read; it was replaced or changed. Start again."
                )
            yield descriptor
        finally:
            os.close(descriptor)


def find_file(path: Path) -> File:
    """A file that the user named, links followed.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is not a regular file.
    """
    return _file(path, Path(os.path.realpath(path)))


def find_inside(folder: Path, name: str) -> File:
    """The file `name` directly in `folder`.

    Raises:
        FileNotFoundError: There is none.
        ValueError: The name has a path in it, or leads out of the folder.
    """
    if not store.is_part(name) or "\\" in name:
        raise ValueError(f"A file named by {show(folder)} must lie directly in it; got {show(name)}.")
    path = folder / name
    real = Path(os.path.realpath(path))  # a loop of links does not stop `realpath`
    if leads_out(folder, real):
        raise ValueError(f"{show(path)} must not lead out of its folder; it is a link to elsewhere. It was not read.")
    return _file(path, real)


def leads_out(folder: Path, real: Path) -> bool:
    """Whether a path without links is elsewhere: not in the folder, nor in the blobs of the hub's cache it is in."""
    root = Path(os.path.realpath(folder))
    snapshots = next((parent for parent in root.parents if parent.name == "snapshots"), None)
    return not (real.is_relative_to(root) or (snapshots and real.parent == snapshots.parent / "blobs"))


def has_file(folder: Path, name: str) -> bool:
    """Whether `folder` holds an entry of this name; a link counts, although it will be refused."""
    return os.path.lexists(folder / name)


def read_json(file: File) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ValueError: Too large, no JSON object, or a key twice.
    """
    if file.size > _JSON_BYTES:
        raise ValueError(f"{show(file.path)} must be below 100 MB; it has {file.size} bytes. It was not read.")
    with file.open() as descriptor:
        text = read_bytes(descriptor, 0, file.size)
    return parse_json(text, file.path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """A JSON object without a key that occurs twice, which readers understand differently."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{show(path)} must hold sound JSON; {show(str(error))}. Download it again.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{show(path)} must hold a JSON object; got {type(value).__name__}. Download it again.")
    return value


def read_bytes(descriptor: int, begin: int, length: int) -> bytes:
    """Exactly `length` bytes.

    Raises:
        ValueError: The file ends before.
    """
    buffer = bytearray(length)
    read_into(descriptor, begin, memoryview(buffer))
    return bytes(buffer)


def read_into(descriptor: int, begin: int, buffer: memoryview) -> None:
    """Fill `buffer` from the file."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done : done + 2**30]], begin + done)
        if count == 0:
            raise ValueError(
                f"The file must have {begin + len(buffer)} bytes; it ends at {begin + done}. Copy it again."
            )
        done += count


def show(name: object, limit: int = 200) -> str:
    r"""A name for people: control characters as escapes, and no longer than `limit`.

    >>> show("a" + chr(10) + chr(27) + "[2Jb")
    'a\\n\\x1b[2Jb'
    """
    text = store.show(name)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"


def _file(path: Path, real: Path) -> File:
    try:
        found = os.stat(real)
    except FileNotFoundError:
        raise FileNotFoundError(f"{show(path)} does not exist.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{show(path)} cannot be read: {show(str(error))}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{show(path)} must be a regular file; it is something else. It was not read.")
    return File(path, real, found.st_size, (found.st_dev, found.st_ino))


def _without_duplicates(items: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(items)
    if len(value) < len(items):
        twice = Counter(key for key, _ in items).most_common(1)[0][0]
        raise ValueError(f"the key {show(twice)!r} occurs twice")
    return value
