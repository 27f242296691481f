"""Follow a run that is being written: tell whether it has changed, and read only the new part of its table."""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankrise.store import _schema
from rankrise.store._blocks import StreamTail
from rankrise.store._lock import is_locked_in
from rankrise.store._table import row_limit
from rankrise.store._untrusted import UntrustedFolder
from rankrise.store._writing import PARQUET, STREAM, read_sealed

if TYPE_CHECKING:
    import pyarrow as pa

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Followed:
    """A run as it was at one moment.

    Attributes:
        state: "finished", "running" while a process writes it, or "stopped" if it was cut off.
        spec: The spec of the run.
        table: All rows so far.
    """

    state: str
    spec: dict[str, Any]
    table: "pa.Table"


class RunFollower:
    """Reads a run again and again through one handle on its folder, so that no link leads elsewhere.

    Args:
        folder: The open folder of the run; the follower closes it.

    >>> import tempfile, torch
    >>> from rankrise.store import create_run, scalar_rows
    >>> path = tempfile.mkdtemp()
    >>> run = create_run(path, spec={}, initial={"w": torch.zeros(1)})
    >>> follower = RunFollower(UntrustedFolder(path))
    >>> before = follower.stamp()
    >>> run.append(scalar_rows([(1, "loss", 0.5)]))
    >>> follower.stamp() != before
    True
    >>> follower.read().table.num_rows, follower.read().state
    (1, 'running')
    """

    def __init__(self, folder: UntrustedFolder) -> None:
        self._folder = folder
        self._tail = StreamTail(folder, STREAM, most_rows=row_limit())
        self._manifest_stamp: tuple[int, int, int] = (0, 0, 0)
        self._sealed: pa.Table | None = None
        self._spec: dict[str, Any] = {}
        self._manifest: _schema.Manifest | None = None

    def close(self) -> None:
        """Close the handle on the folder."""
        self._folder.close()

    def is_in(self, folder: UntrustedFolder) -> bool:
        """Whether this follower reads the run in the given directory."""
        return self._folder.is_same(folder)

    def stamp(self) -> Stamp:
        """A value that changes whenever a file of the run changes; this is cheap, because no file is read."""
        return tuple(self._folder.stamp(name) for name in (_schema.NAME, "spec.json", STREAM, PARQUET))

    def state(self) -> str:
        """The state of the run now.

        Raises:
            ValueError: The manifest is damaged or of an unknown version.
            FileNotFoundError: The run is gone.
        """
        if self._read_manifest().state == "sealed":
            return "finished"
        return "running" if is_locked_in(self._folder) else "stopped"

    def head(self) -> tuple[dict[str, Any], _schema.Manifest]:
        """The spec and the manifest of the run, without its table.

        Raises:
            ValueError: The manifest or the spec is damaged.
            FileNotFoundError: The run is gone.
        """
        manifest = self._read_manifest()
        return self._spec, manifest

    def read(self) -> Followed:
        """The run as it is now.

        Raises:
            ValueError: A file is damaged, or the table is too large.
            FileNotFoundError: The run is gone.
        """
        manifest = self._read_manifest()
        if manifest.state == "running":
            with contextlib.suppress(FileNotFoundError):  # the run was sealed just now
                return Followed(self.state(), self._spec, self._tail.read())
            manifest = self._read_manifest()
        if self._sealed is None:
            self._sealed = read_sealed(self._folder, manifest)
        return Followed("finished", self._spec, self._sealed)

    def _read_manifest(self) -> _schema.Manifest:
        """Return the manifest; if its file has changed, the manifest and the spec are read again."""
        stamp = self._folder.stamp(_schema.NAME)
        if self._manifest is None or stamp != self._manifest_stamp:
            self._manifest = _schema.read_manifest(self._folder)
            _schema.verify(self._folder, self._manifest, ["spec.json"])
            self._spec = _schema.read_spec(self._folder)
            self._sealed, self._manifest_stamp = None, stamp
        return self._manifest
