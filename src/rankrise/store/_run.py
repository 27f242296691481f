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

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.store import _atomic, _manifest
from rankrise.store._environment import environment
from rankrise.store._failpoints import failpoint
from rankrise.store._lock import RunLock
from rankrise.store._stream import StreamWriter, read_stream
from rankrise.store._tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

_STREAM, _PARQUET, _INITIAL, _DIRECTIONS = "metrics.arrows", "metrics.parquet", "initial.safetensors", "directions"
_FIXED = _manifest.REQUIRED


class Run:
    """One run directory, open for writing; make one with `create_run` or `resume_run`."""

    def __init__(self, folder: Path, lock: RunLock, manifest: _manifest.Manifest, table: "pa.Table | None") -> None:
        self.folder = folder
        self._lock = lock
        self._manifest = manifest
        self.last_measured = _last_measured(table)  # step of the last rows that belong to a layer; -1 for none
        self.dropped = (0, -1)  # on resuming: how many rows, and their last step
        self._stream = StreamWriter(folder / _STREAM, table)

    @property
    def initial_path(self) -> Path:
        """The weights before the first step."""
        return self.folder / _INITIAL

    def append(self, block: "pa.RecordBatch", *, sync: bool = False, is_late: bool = False) -> None:
        """Add rows to the table.

        Args:
            block: Rows made by `rows`; they are read back all or none.
            sync: Wait until they are on the disk; a killed process loses nothing without it, a power cut may.
            is_late: The block holds one that was counted as lost; if it is written now, that is taken back.

        Raises:
            OSError: The disk is full, read-only, or gone. If it refused the block, the table is as before and takes
                further ones, and the manifest of the sealed run will count this one as lost.
        """
        try:
            self._stream.append(block)
        except OSError:
            self._count_lost(0 if is_late else 1)
            raise
        self._count_lost(-1 if is_late else 0)
        if sync:
            self._stream.sync()

    def sync(self) -> None:
        """Wait until all rows are on the disk.

        Raises:
            OSError: It cannot, or the file was removed.
        """
        self._stream.sync()

    def save_directions(self, step: int, tensors: "Mapping[str, Tensor]") -> None:
        """Keep leading singular vectors of a step beside the table."""
        folder = self.folder / _DIRECTIONS
        folder.mkdir(exist_ok=True)
        save_tensors(folder / f"step-{step:09d}.safetensors", dict(tensors), "directions")

    def last_directions(self) -> "dict[str, Tensor]":
        """The newest of them; empty when there are none."""
        paths = directions_paths(self.folder)
        return load_tensors(paths[max(paths)]) if paths else {}

    def seal(self) -> None:
        """Turn the stream into Parquet and say in the manifest that the run is finished; then close.

        Raises:
            OSError: The disk is full or read-only, or has damaged the stream; the run can still be read and resumed.
        """
        import pyarrow.parquet as pq

        self._stream.sync()
        contents = read_stream(self.folder / _STREAM)
        if contents.num_unread_bytes:
            raise OSError(f"{self.folder / _STREAM} is damaged; the run is left unsealed with what can be read")
        table = contents.table
        with _atomic.replacing(self.folder / _PARQUET, "parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        names = [*_FIXED, _PARQUET, *(f"{_DIRECTIONS}/{p.name}" for p in directions_paths(self.folder).values())]
        files = _manifest.checksums(self.folder, names)
        _manifest.write_manifest(
            self.folder, replace(self._manifest, state="sealed", files=files, num_rows=table.num_rows)
        )
        failpoint("seal.remove")
        (self.folder / _STREAM).unlink()
        self.close()

    def _count_lost(self, change: int) -> None:
        self._manifest = replace(self._manifest, num_lost_blocks=self._manifest.num_lost_blocks + change)

    def close(self) -> None:
        """Stop writing and give the lock up; the run stays `running`, to be resumed, unless it was sealed."""
        self._stream.close()
        self._lock.release()


def create_run(folder: Path, *, spec: Mapping[str, object], initial: "Mapping[str, Tensor]") -> Run:
    """Begin a run in a folder that holds none.

    Args:
        folder: Made if it is not there. Other files in it are left alone.
        spec: What is asked for; goes to `spec.json`.
        initial: The weights before the first step.

    Raises:
        ValueError: The folder holds a run, files that a run would overwrite, or is being written by another process.
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / _manifest.NAME).exists():
        raise ValueError(f"{folder} must not hold a run yet; it does. Resume it, or choose another folder.")
    strange = [name for name in (*_FIXED, _STREAM, _PARQUET, _DIRECTIONS) if (folder / name).exists()]
    if strange and not (folder / ".lock").exists():  # a run that died while it was begun has the lock file
        raise ValueError(f"{folder} must not hold {', '.join(strange)} of something else. Choose another folder.")
    lock = RunLock(folder)
    try:
        _clean(folder, keep_to=-1)
        _atomic.write_json(folder / "spec.json", dict(spec), "spec")
        _atomic.write_json(folder / "env.json", environment(), "env")
        save_tensors(folder / _INITIAL, dict(initial), "initial")
        manifest = _manifest.Manifest("running", _manifest.checksums(folder, list(_FIXED)))
        run = Run(folder, lock, manifest, None)
        _manifest.write_manifest(folder, manifest)
    except BaseException:
        lock.release()
        raise
    return run


def resume_run(folder: Path, *, step: int) -> Run:
    """Go on with a run, sealed or not, from a checkpoint: rows and directions after `step` are dropped.

    Args:
        folder: The run.
        step: Of the checkpoint that training goes on from; -1 drops everything.

    Raises:
        FileNotFoundError: There is no run.
        ValueError: It is damaged, of an unknown version, or being written by another process.
        OSError: The folder cannot be written.
    """
    import pyarrow.compute as pc

    manifest = _manifest.read_manifest(folder)
    if manifest.is_thin:
        raise ValueError(f"{folder} must be a run with its weights to go on; it is a thin copy. Choose another folder.")
    lock = RunLock(folder)
    try:
        manifest = _manifest.read_manifest(folder)  # again: its writer may just have sealed it
        _manifest.verify(folder, manifest, list(_FIXED))
        verify_directions(folder, manifest)
        table = _recorded(folder, manifest, step)
        last = pc.max(table["step"]).as_py()
        kept = table.filter(pc.less_equal(table["step"], step)).combine_chunks()
        running = replace(
            manifest, state="running", num_rows=None, files={name: manifest.files[name] for name in _FIXED}
        )
        run = Run(folder, lock, running, kept)
        if kept.num_rows < table.num_rows:
            run.dropped = (table.num_rows - kept.num_rows, last)
        _manifest.write_manifest(folder, running)
        _clean(folder, keep_to=step)
    except BaseException:
        lock.release()
        raise
    return run


def read_sealed(folder: Path, manifest: _manifest.Manifest) -> "pa.Table":
    """The table of a finished run, checked."""
    import pyarrow.parquet as pq

    _manifest.verify(folder, manifest, [_PARQUET])
    return pq.read_table(folder / _PARQUET, page_checksum_verification=True)


def verify_directions(folder: Path, manifest: _manifest.Manifest) -> None:
    """Check the directions of a sealed run: those listed are there, and there are no others."""
    if manifest.state == "sealed":
        listed = [name for name in manifest.files if name.startswith(f"{_DIRECTIONS}/")]
        found = [f"{_DIRECTIONS}/{path.name}" for path in directions_paths(folder).values()]
        _manifest.verify(folder, manifest, list(dict.fromkeys(listed + found)))


def _recorded(folder: Path, manifest: _manifest.Manifest, step: int) -> "pa.Table":
    """All rows that can be read, with a warning if some up to `step` may be missing."""
    if manifest.state == "sealed":
        return read_sealed(folder, manifest)
    contents = read_stream(folder / _STREAM)
    last = contents.table["step"][-1].as_py() if contents.table.num_rows else 0
    if contents.num_unread_bytes and last < step:
        warnings.warn(
            f"{folder} was cut off or damaged: it can be read to step {last}, and is resumed from step {step}. "
            "What was recorded in between is lost.",
            UserWarning,
            stacklevel=4,
        )
    return contents.table


def _last_measured(table: "pa.Table | None") -> int:
    import pyarrow.compute as pc

    if table is None:
        return -1
    last = pc.max(table.filter(pc.greater_equal(table["layer"], 0))["step"]).as_py()
    return -1 if last is None else int(last)


def directions_paths(folder: Path) -> dict[int, Path]:
    """Files of leading singular vectors of a run, by step, ascending."""
    found = ((re.fullmatch(r"step-(\d+)\.safetensors", p.name), p) for p in (folder / _DIRECTIONS).glob("step-*"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def _clean(folder: Path, *, keep_to: int) -> None:
    """Remove what a dead process left, what sealing made, and what was recorded after a step."""
    _atomic.remove_leftovers(folder)
    (folder / _PARQUET).unlink(missing_ok=True)
    if (folder / _DIRECTIONS).is_dir():
        _atomic.remove_leftovers(folder / _DIRECTIONS)
        for step, path in directions_paths(folder).items():
            if step > keep_to:
                path.unlink()
