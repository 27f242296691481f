"""The one place that opens files in a folder that may come from somebody else.

A received folder can hold links that lead to files of the user, pipes that hang a reader, and names that are paths. An
`UntrustedFolder` therefore opens every file relative to a handle on the directory. The folder that the user names may
itself be a link; nothing inside it is followed, and only regular files are opened. Because the handle stays on the same
directory, renaming or replacing the folder while it is used leads no read and no write elsewhere.
"""

import contextlib
import errno
import io
import os
import shutil
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

_NO_WAIT = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | _NO_WAIT
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_LONGEST_NAME = 255  # bytes of a name; file systems take no longer one
_LONGEST_PATH = 1000  # characters of the path of a file within its folder


class UntrustedInputError(ValueError):
    """A file or a path that may come from somebody else is not what it must be."""


def show(name: object) -> str:
    r"""Return a name or a path for a message; characters that a terminal would obey are escaped as `ascii` writes them.

    >>> show("runs/größe\x1b[2J")
    'runs/größe\\x1b[2J'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(name))


class UntrustedFolder:
    """A handle on a directory whose content is not trusted.

    Names are relative to the folder, with `/` between their parts.

    >>> import tempfile
    >>> with UntrustedFolder(tempfile.mkdtemp()) as folder:
    ...     os.close(folder.create("a.txt"))
    ...     folder.names(), folder.has_file("a.txt"), folder.has_file("b.txt")
    (['a.txt'], True, False)
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        """Open a directory; the path itself may lead through links.

        Args:
            path: The directory that the user names.
            create: Whether to make the directory, and those above it, if it is missing.

        Raises:
            UntrustedInputError: The path cannot be written in UTF-8, or holds a zero byte.
            OSError: There is no such directory, or it cannot be opened or made.
        """
        self.path = check_path(path)
        if create:
            self.path.mkdir(parents=True, exist_ok=True)
        self._hold(os.open(self.path, os.O_RDONLY | _DIRECTORY | getattr(os, "O_CLOEXEC", 0)))

    def _hold(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        """Give up the handle; a second call does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_in_place(self) -> None:
        """Check that the path still leads to this directory.

        Raises:
            FileNotFoundError: The directory was removed or replaced by another one.
        """
        here = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
            raise FileNotFoundError(errno.ENOENT, "the run directory was removed or replaced", str(self.path))

    def is_same(self, other: "UntrustedFolder") -> bool:
        """Whether two handles are on the same directory."""
        return os.path.samestat(os.fstat(self._descriptor), os.fstat(other._descriptor))

    def folder(self, name: str, *, create: bool = False) -> "UntrustedFolder":
        """Open a directory inside this one.

        Raises:
            FileNotFoundError: The directory is missing and `create` is False.
            UntrustedInputError: The name leads outside, or belongs to a link or a file.
        """
        inner = UntrustedFolder.__new__(UntrustedFolder)
        inner.path = self.path / name
        with self._parent(name) as (parent, last):
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(last, dir_fd=parent)
            inner._hold(_open(last, os.O_RDONLY | _DIRECTORY, parent, inner.path))
        return inner

    def names(self) -> list[str]:
        """Return the names of all entries, in order."""
        return sorted(os.listdir(self._descriptor))

    def exists(self, name: str) -> bool:
        """Whether there is an entry of this name; files, folders, links and anything else count."""
        try:
            with self._parent(name) as (parent, last):
                os.stat(last, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def has_file(self, name: str) -> bool:
        """Whether there is a regular file of this name."""
        try:
            with self._parent(name) as (parent, last):
                return stat.S_ISREG(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode)
        except (FileNotFoundError, UntrustedInputError):
            return False

    def stamp(self, name: str) -> tuple[int, int, int]:
        """Inode, size and time of change of an entry, which tell whether it has changed; zeros for a missing entry."""
        try:
            with self._parent(name) as (parent, last):
                found = os.stat(last, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, UntrustedInputError):
            return 0, 0, 0
        return found.st_ino, found.st_size, found.st_mtime_ns

    def open(self, name: str, *, most_bytes: int | None = None) -> BinaryIO:
        """Open a regular file for reading.

        Args:
            name: Name of the file, relative to the folder.
            most_bytes: Refuse a larger file; None for no limit.

        Raises:
            FileNotFoundError: There is no such file.
            UntrustedInputError: The name leads outside, belongs to a link, a pipe, a device or a folder, or the file is
                too large.
        """
        file = io.FileIO(self._open_file(name, os.O_RDONLY), "rb")
        size = os.fstat(file.fileno()).st_size
        if most_bytes is not None and size > most_bytes:
            file.close()
            raise UntrustedInputError(f"{self.show(name)} must have at most {most_bytes} bytes; it has {size}.")
        return io.BufferedReader(file)

    def read(self, name: str, *, most_bytes: int | None = None) -> bytes:
        """Return the content that a regular file has now; the arguments and refusals are those of `open`."""
        with self.open(name, most_bytes=most_bytes) as file:
            return file.read(os.fstat(file.fileno()).st_size)  # a larger number would be allocated whatever the size

    def create(self, name: str) -> int:
        """Make a new file and return its descriptor; it is open for appending, with the mode that the umask gives.

        Raises:
            FileExistsError: There is an entry of this name.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | _NO_FOLLOW
        with self._parent(name) as (parent, last):
            return _open(last, flags, parent, self.path / name)

    def open_to_write(self, name: str) -> int:
        """Return a descriptor of a regular file, which is made if it does not exist; its content is not changed.

        Raises:
            UntrustedInputError: The name belongs to a link, a pipe, a device or a folder, or the file has a second name
                elsewhere (a hard link), so that writing would change a file outside the folder.
        """
        descriptor = self._open_file(name, os.O_RDWR | os.O_CREAT)
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            raise UntrustedInputError(f"{self.show(name)} must have one name; it is hard-linked. Remove it.")
        return descriptor

    def remove(self, name: str) -> None:
        """Remove a file or a link, never what the link leads to; a missing one is no error."""
        with contextlib.suppress(FileNotFoundError), self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with everything in it; a link is removed, and what it leads to stays."""
        with self._parent(name) as (parent, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=parent)
            else:
                os.unlink(last, dir_fd=parent)

    def rename(self, old: str, new: str) -> None:
        """Give an entry of this folder another name; an existing file of that name is replaced."""
        os.rename(_part(old), _part(new), src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def sync(self) -> None:
        """Ask the kernel to put the list of entries on the disk."""
        os.fsync(self._descriptor)

    def at(self, name: str) -> Path:
        """Return a path for libraries that take only paths; it goes through the handle where the system allows that."""
        handle = Path(f"/proc/self/fd/{self._descriptor}")
        return (handle if handle.is_dir() else self.path) / _part(name)

    def show(self, name: str) -> str:
        """Return the path of an entry for a message."""
        return show(self.path / name)

    def _open_file(self, name: str, flags: int) -> int:
        with self._parent(name) as (parent, last):
            return _regular(_open(last, flags, parent, self.path / name), self.path / name)

    @contextlib.contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the handle on the directory that holds `name`, and the last part of the name."""
        if not is_inside(name):
            raise UntrustedInputError(f"A name must lead to a file inside the folder; got {_short(name)}.")
        *parts, last = name.split("/")
        descriptor, opened = self._descriptor, -1
        try:
            for part in parts:
                inner = _open(part, os.O_RDONLY | _DIRECTORY, descriptor, self.path / name)
                if opened >= 0:
                    os.close(opened)
                descriptor = opened = inner
            yield descriptor, last
        finally:
            if opened >= 0:
                os.close(opened)


def as_folder(where: "str | os.PathLike[str] | UntrustedFolder") -> contextlib.AbstractContextManager[UntrustedFolder]:
    """Return a context with the folder: a given folder, which stays open, or a new one on a path, which is closed."""
    return contextlib.nullcontext(where) if isinstance(where, UntrustedFolder) else UntrustedFolder(where)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that the user names, links followed, without waiting if it is a pipe.

    Raises:
        OSError: There is no such file, or it cannot be read.
        UntrustedInputError: It is a pipe, a device or a folder.
    """
    path = check_path(path)
    return open(_regular(os.open(path, os.O_RDONLY | _NO_WAIT), path), "rb")


def is_inside(name: str) -> bool:
    """Whether a name, with `/` between its parts, leads to a place below a folder, as long as no part is a link.

    >>> [is_inside(name) for name in ("a/b", "/a", "a/../b", "a//b", "")]
    [True, False, False, False, False]
    """
    return len(name) <= _LONGEST_PATH and all(map(is_part, name.split("/")))


def is_part(name: str) -> bool:
    """Whether a name is one part of a path, not a step upwards, and not longer than file systems take."""
    is_path = name in ("", ".", "..") or "/" in name or "\0" in name
    return not is_path and 0 < _num_bytes(name) <= _LONGEST_NAME


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that a user or a file names.

    Raises:
        UntrustedInputError: The path cannot be written in UTF-8, or holds a zero byte.
    """
    text = str(Path(path))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UntrustedInputError(f"A path must be text in UTF-8; got {text!a}. Rename the folder.") from None
    if "\0" in text:
        raise UntrustedInputError(f"A path must not hold a zero byte; got {text!a}.")
    return Path(path)


def _part(name: str) -> str:
    """Return a name that is one part of a path."""
    if not is_part(name):
        raise UntrustedInputError(f"A name must lead to a file inside the folder; got {_short(name)}.")
    return name


def _num_bytes(name: str) -> int:
    """Return the length of a name on disk; 0 if it cannot be written in UTF-8."""
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        return 0


def _short(name: str) -> str:
    return ascii(name) if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]!a} and more"


def _open(name: str, flags: int, parent: int, path: Path) -> int:
    """Open an entry without following it if it is a link, and without waiting if it is a pipe."""
    try:
        return os.open(name, flags | _NO_FOLLOW, 0o666, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            kind = "folder" if flags & _DIRECTORY else "regular file"
            raise UntrustedInputError(f"{show(path)} must be a {kind}; it is not. Do not trust this folder.") from None
        raise type(error)(error.errno, error.strerror, str(path)) from None


def _regular(descriptor: int, path: Path) -> int:
    """Return the descriptor of a regular file; that of anything else is closed and refused."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedInputError(f"{show(path)} must be a regular file; it is not. Do not trust this folder.")
    return descriptor
