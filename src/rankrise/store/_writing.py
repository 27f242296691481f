"""A run directory that is being written.

spec.json             what was asked for
env.json              where it ran
initial.safetensors   the weights before the first step
directions/           leading singular vectors at some steps, step-<n>.safetensors
metrics.arrows        the table while running, an Arrow IPC stream
metrics.parquet       the table of a sealed run
MANIFEST.json         which of these are the truth
.lock                 held by the process that writes
"""

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rankrise.store import _schema
from rankrise.store._atomic import load_tensors_in, remove_leftovers, save_tensors_in, write_json_in
from rankrise.store._blocks import StreamWriter, read_stream
from rankrise.store._environment import environment
from rankrise.store._failpoints import failpoint
from rankrise.store._lock import RunLock
from rankrise.store._table import read_parquet, row_limit, write_parquet
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, show

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

STREAM, PARQUET, INITIAL, DIRECTIONS = "metrics.arrows", "metrics.parquet", "initial.safetensors", "directions"
_FIXED = _schema.REQUIRED


class Dropped(NamedTuple):
    """What was dropped when a run was resumed before its end."""

    num_rows: int = 0
    num_steps: int = 0  # recorded steps
    last_step: int = -1


class LaterRowsError(ValueError):
    """A run holds rows after the step at which it is resumed, and they must not be dropped.

    Attributes:
        later: What would be dropped.
    """

    def __init__(self, folder: Path, step: int, later: Dropped) -> None:
        super().__init__(
            f"{show(folder)} must hold no rows after step {step}; it was recorded at {later.num_steps} later steps, to "
            f"step {later.last_step}. Resume it there, or allow that they are dropped."
        )
        self.later = later


class Run:
    """One run directory, open for writing; make one with `create_run` or `resume_run`.

    A run belongs to the process that opened it. In a forked child, such as a data loader's worker, writing, sealing and
    closing do nothing.
    """

    def __init__(self, lock: RunLock, manifest: _schema.Manifest, table: "pa.Table | None") -> None:
        self.folder = lock.folder.path
        self._handle = lock.folder
        self._lock = lock
        self._manifest = manifest
        self._process = os.getpid()
        self.last_measured = _last_measured(table)  # step of the last rows that belong to a layer; -1 for none
        self.last_step = -1 if table is None or not table.num_rows else int(max(table["step"].to_numpy()))
        self.dropped = Dropped()  # on resuming
        self._stream = StreamWriter(self._handle, STREAM, table)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened the run; in a forked child the run does nothing."""
        return self._process == os.getpid()

    @property
    def initial_path(self) -> Path:
        """The weights before the first step."""
        return self.folder / INITIAL

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run that is open for writing must not be copied or pickled; open it in one process only.")

    def append(self, block: "pa.RecordBatch", *, sync: bool = False, is_late: bool = False) -> None:
        """Add rows to the table.

        Args:
            block: Rows made by `rows`. A reader gets either all of them or none.
            sync: Wait until the rows are on the disk. Without it a power cut may lose them; a killed process does not.
            is_late: Whether the block holds rows that were counted as lost; once written, they no longer count as lost.

        Raises:
            OSError: The disk is full, read-only, or gone. If the disk refused the block, the table is as before and
                takes further blocks, and the manifest of the sealed run will count this block as lost.
        """
        if not self.is_ours:
            return
        try:
            self._stream.append(block)
        except BaseException:  # an interrupt loses the block too
            if not is_late:
                self._count_lost(1)
            raise
        if is_late:
            self._count_lost(-1)
        if sync:
            self._stream.sync()

    def sync(self) -> None:
        """Wait until all rows are on the disk.

        Raises:
            OSError: The disk does not take the rows, or the run directory was removed or replaced.
        """
        if self.is_ours:
            self._stream.sync()

    def save_directions(self, step: int, tensors: "Mapping[str, Tensor]") -> None:
        """Save the leading singular vectors of a step beside the table."""
        if not self.is_ours:
            return
        self._handle.check_in_place()
        with self._handle.folder(DIRECTIONS, create=True) as folder:
            save_tensors_in(folder, f"step-{step:09d}.safetensors", dict(tensors), "directions")

    def last_directions(self) -> "dict[str, Tensor]":
        """Return the newest saved singular vectors; empty if none were saved."""
        names = directions_names(self._handle)
        return load_tensors_in(self._handle, names[max(names)]) if names else {}

    def seal(self) -> None:
        """Turn the stream into Parquet and say in the manifest that the run is finished; then close.

        Raises:
            OSError: The disk is full or read-only, or has damaged the stream; the run can still be read and resumed.
        """
        if not self.is_ours:
            return
        self._stream.sync()
        contents = read_stream(self._handle, STREAM)
        if contents.num_unread_bytes:
            raise OSError(f"{self.folder / STREAM} is damaged; the run is left unsealed with what can be read")
        table = contents.table
        write_parquet(self._handle, PARQUET, table, "parquet")
        files = _schema.checksums(self._handle, [*_FIXED, PARQUET, *directions_names(self._handle).values()])
        _schema.write_manifest(
            self._handle, replace(self._manifest, state="sealed", files=files, num_rows=table.num_rows)
        )
        failpoint("seal.remove")
        self._handle.remove(STREAM)
        self.close()

    def _count_lost(self, change: int) -> None:
        self._manifest = replace(self._manifest, num_lost_blocks=self._manifest.num_lost_blocks + change)

    def close(self) -> None:
        """Stop writing and give up the lock. A run that was not sealed stays `running` and can be resumed."""
        if self.is_ours:
            self._stream.close()
            self._lock.release()


def create_run(
    folder: Path, *, spec: Mapping[str, object], initial: "Mapping[str, Tensor]", overwrite: bool = False
) -> Run:
    """Begin a run in a folder that holds none.

    Args:
        folder: Folder of the run, which is made if it does not exist. Other files in it are left alone.
        spec: What is asked for; it is written to `spec.json`.
        initial: The weights before the first step.
        overwrite: Replace the run that the folder holds.

    Raises:
        ValueError: The folder holds a run that is not overwritten, files that a run would overwrite, or is being
            written by another process.
        OSError: The folder cannot be written.
    """
    handle = UntrustedFolder(folder, create=True)
    is_replaced = overwrite and handle.exists(_schema.NAME)
    if handle.exists(_schema.NAME) and not is_replaced:
        raise ValueError(f"{show(folder)} must not hold a run yet; it does. Resume it, or choose another folder.")
    strange = [name for name in (*_FIXED, STREAM, PARQUET, DIRECTIONS) if handle.exists(name)]
    if (
        strange and not is_replaced and not handle.exists(".lock")
    ):  # a process that died while it began a run has left the lock file
        raise ValueError(f"{show(folder)} must not hold {', '.join(strange)} of something else. Choose another folder.")
    lock = RunLock(handle)
    try:
        if is_replaced:
            handle.remove(_schema.NAME)  # first, so that a process that dies here leaves no run rather than a mixture
            handle.remove(STREAM)
        _clean(handle, keep_to=-1)
        write_json_in(handle, "spec.json", dict(spec), "spec")
        write_json_in(handle, "env.json", environment(), "env")
        save_tensors_in(handle, INITIAL, dict(initial), "initial")
        manifest = _schema.Manifest("running", _schema.checksums(handle, _FIXED))
        run = Run(lock, manifest, None)
        _schema.write_manifest(handle, manifest)
    except BaseException:
        lock.release()
        raise
    return run


def resume_run(folder: Path, *, step: int | None, may_drop: bool = True) -> Run:
    """Go on with a run, sealed or not, from a checkpoint: rows and directions after `step` are dropped.

    Args:
        folder: The run.
        step: Step of the checkpoint that training goes on from; -1 drops everything, None goes on at the last row.
        may_drop: Whether rows after `step` may be dropped.

    Raises:
        FileNotFoundError: There is no run.
        LaterRowsError: There are rows after `step`, and `may_drop` is not set; the run is as before.
        ValueError: The run is damaged, of an unknown version, or being written by another process.
        OSError: The folder cannot be written.
    """
    import pyarrow.compute as pc

    try:
        handle = UntrustedFolder(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"A run directory must hold {_schema.NAME}; {show(folder)} does not. Check the path."
        ) from None
    if _schema.read_manifest(handle).is_thin:
        raise ValueError(
            f"{show(folder)} must be a run with its weights to go on; it is a thin copy. Choose another folder."
        )
    lock = RunLock(handle)
    try:
        manifest = _schema.read_manifest(handle)  # read again, because another process may have sealed the run just now
        _schema.verify(handle, manifest, _FIXED)
        verify_directions(handle, manifest)
        table, num_torn = _recorded(handle, manifest, -1 if step is None else step)
        step = (pc.max(table["step"]).as_py() if table.num_rows else -1) if step is None else step
        later = table["step"].filter(pc.greater(table["step"], step))
        dropped = Dropped(len(later), len(pc.unique(later)), pc.max(later).as_py()) if len(later) else Dropped()
        if dropped.num_rows and not may_drop:
            raise LaterRowsError(folder, step, dropped)
        kept = table.filter(pc.less_equal(table["step"], step)).combine_chunks()
        files = {name: manifest.files[name] for name in _FIXED}
        lost = manifest.num_lost_blocks + num_torn
        running = replace(manifest, state="running", num_rows=None, files=files, num_lost_blocks=lost)
        run = Run(lock, running, kept)
        run.dropped = dropped
        _schema.write_manifest(handle, running)
        _clean(handle, keep_to=step)
    except BaseException:
        lock.release()
        raise
    return run


def read_sealed(folder: UntrustedFolder, manifest: _schema.Manifest, most_rows: int | None = None) -> "pa.Table":
    """Read the table of a finished run, checked against the manifest."""
    _schema.verify(folder, manifest, [PARQUET])
    return read_parquet(folder, PARQUET, most_rows=most_rows)


def verify_directions(folder: UntrustedFolder, manifest: _schema.Manifest) -> None:
    """Check the directions of a sealed run: the files that the manifest lists are there, and there are no others."""
    if manifest.state == "sealed":
        listed = [name for name in manifest.files if name.startswith(f"{DIRECTIONS}/")]
        _schema.verify(folder, manifest, dict.fromkeys([*listed, *directions_names(folder).values()]))


def _recorded(folder: UntrustedFolder, manifest: _schema.Manifest, step: int) -> "tuple[pa.Table, int]":
    """Return all rows that can be read, and the number of torn blocks; warn if rows up to `step` may be missing."""
    if manifest.state == "sealed":
        return read_sealed(folder, manifest), 0
    try:
        contents = read_stream(folder, STREAM, most_rows=row_limit())
    except FileNotFoundError:
        raise UntrustedInputError(
            f"{show(folder.path)} must hold {STREAM}; it is missing. Restore it, or drop the run."
        ) from None
    last = contents.table["step"][-1].as_py() if contents.table.num_rows else 0
    if contents.num_unread_bytes and last < step:
        warnings.warn(
            f"{show(folder.path)} was cut off or damaged: it can be read to step {last}, and is resumed from step "
            f"{step}. What was recorded in between is lost.",
            UserWarning,
            stacklevel=4,
        )
    return contents.table, contents.num_torn_blocks


def _last_measured(table: "pa.Table | None") -> int:
    import pyarrow.compute as pc

    if table is None:
        return -1
    last = pc.max(table.filter(pc.greater_equal(table["layer"], 0))["step"]).as_py()
    return -1 if last is None else int(last)


def directions_names(folder: UntrustedFolder) -> dict[int, str]:
    """Return the names of the files of singular vectors, relative to the run's folder, in ascending order of steps."""
    try:
        with folder.folder(DIRECTIONS) as inner:
            found = [(re.fullmatch(r"step-([0-9]{1,18})\.safetensors", name), name) for name in inner.names()]
    except FileNotFoundError:
        return {}
    return dict(sorted((int(match[1]), f"{DIRECTIONS}/{name}") for match, name in found if match))


def _clean(folder: UntrustedFolder, *, keep_to: int) -> None:
    """Remove the leftovers of a dead process, the files that sealing made, and what was recorded after a step."""
    remove_leftovers(folder)
    folder.remove(PARQUET)
    if folder.exists(DIRECTIONS):
        with folder.folder(DIRECTIONS) as inner:
            remove_leftovers(inner)
        for step, name in directions_names(folder).items():
            if step > keep_to:
                folder.remove(name)
