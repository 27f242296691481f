"""Read a run that is finished, still being written, or cut off; and copy a finished run without its weights."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.store import _schema
from rankrise.store._atomic import load_tensors_in, replacing_in
from rankrise.store._blocks import read_stream
from rankrise.store._lock import is_locked
from rankrise.store._table import row_limit, write_parquet
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, show
from rankrise.store._writing import INITIAL, PARQUET, STREAM, directions_names, read_sealed, verify_directions

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor


def load_run(path: str | os.PathLike[str], *, most_rows: int | None = None) -> "pa.Table":
    """Return the long table of a run: `step, layer, head, circuit, quantity, index, value`, one number a row.

    A sealed run is checked against its manifest. For a run that was cut off, the blocks that can be read are returned,
    with a warning if the file holds more; for a run that is still being written, the blocks written so far.

    Args:
        path: The run directory.
        most_rows: Refuse a table with more rows before it fills the memory. The default is `RANKRISE_MOST_ROWS`, or 20
            million, and fewer for a sealed file that is small.

    Returns:
        A `pyarrow.Table` in the order of recording. Where a column does not apply it is -1 or empty, never null:
        a user's scalar has layer, head and index -1 and no circuit.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The version is unknown, a file is not what the manifest says, or the table is too large.

    >>> import tempfile, torch
    >>> from rankrise.store import create_run, rows
    >>> folder = Path(tempfile.mkdtemp())
    >>> run = create_run(folder, spec={}, initial={"w": torch.zeros(2)})
    >>> run.append(rows(10, "loss", [0.5]))
    >>> load_run(folder).select(["step", "quantity", "value"]).to_pylist()
    [{'step': 10, 'quantity': 'loss', 'value': 0.5}]
    >>> run.seal()
    >>> load_run(folder).num_rows
    1
    """
    with _open_run(path) as folder:
        manifest = _schema.read_manifest(folder)
        if manifest.state == "running":
            try:
                return _read_live(folder, row_limit(most_rows))
            except FileNotFoundError:  # the run was sealed just now
                manifest = _schema.read_manifest(folder)
                if manifest.state == "running":
                    raise UntrustedInputError(
                        f"{show(folder.path)} must hold {STREAM}; it is missing. Restore it, or drop the run."
                    ) from None
        return read_sealed(folder, manifest, most_rows)


def _open_run(path: str | os.PathLike[str]) -> UntrustedFolder:
    """Open the folder of a run.

    Raises:
        FileNotFoundError: There is no folder at `path`.
    """
    try:
        return UntrustedFolder(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"A run directory must hold {_schema.NAME}; {show(path)} does not. Check the path."
        ) from None


def _read_live(folder: UntrustedFolder, most_rows: int) -> "pa.Table":
    """Return the rows in the stream of a run; warn if nobody writes the run and some bytes could not be read."""
    contents = read_stream(folder, STREAM, most_rows=most_rows)
    if contents.num_unread_bytes and not is_locked(folder.path):
        last = contents.table["step"][-1].as_py() if contents.table.num_rows else "none"
        warnings.warn(
            f"{show(folder.path)} was cut off or damaged: {contents.num_unread_bytes} bytes after step {last} could "
            "not be read.",
            UserWarning,
            stacklevel=3,
        )
    return contents.table


def has_run(path: str | os.PathLike[str]) -> bool:
    """Whether a run was begun in this folder.

    >>> has_run("/nowhere")
    False
    """
    try:
        with UntrustedFolder(path) as folder:
            return folder.has_file(_schema.NAME)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_sealed(path: str | os.PathLike[str]) -> bool:
    """Whether the run in this folder is finished.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The manifest of the run is damaged or of an unknown version.
    """
    return _schema.read_manifest(path).state == "sealed"


def verify_run(path: str | os.PathLike[str], *, with_weights: bool = True) -> None:
    """Check every file that the manifest of a run lists; the manifest of a sealed run lists all its files.

    Args:
        path: The run.
        with_weights: Whether to check the initial weights and the directions too, which takes nearly all the time.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: A file is missing or is not what the manifest says; the message names the file.
    """
    with _open_run(path) as folder:
        manifest = _schema.read_manifest(folder)
        if with_weights:
            _schema.verify(folder, manifest)
            verify_directions(folder, manifest)
        else:
            _schema.verify(folder, manifest, [name for name in manifest.files if not name.endswith(".safetensors")])


def load_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the spec of a run, checked against the manifest.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The file is missing or not what the manifest says.
    """
    with _open_run(path) as folder:
        _schema.verify(folder, _schema.read_manifest(folder), ["spec.json"])
        return _schema.read_spec(folder)


def load_initial(path: str | os.PathLike[str]) -> "dict[str, Tensor]":
    """Return the weights before the first step of a run, checked against the manifest.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The file is missing or not what the manifest says.
    """
    with _open_run(path) as folder:
        _schema.verify(folder, _schema.read_manifest(folder), [INITIAL])
        return load_tensors_in(folder, INITIAL)


def load_directions(path: str | os.PathLike[str]) -> "dict[int, dict[str, Tensor]]":
    """Return the leading singular vectors that a run kept, by step: `"3.kq.left"` is (heads, d, k) of layer 3.

    Those of a sealed run are checked against its manifest.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: A file is damaged, or missing from a sealed run.
    """
    with _open_run(path) as folder:
        verify_directions(folder, _schema.read_manifest(folder))
        return {step: load_tensors_in(folder, name) for step, name in directions_names(folder).items()}


def copy_thin(source: str | os.PathLike[str], target: str | os.PathLike[str], table: "pa.Table") -> Path:
    """Write a thin copy of a sealed run: readable as any run, but without weights, so that it cannot be resumed.

    Args:
        source: The run.
        target: Folder of the copy. A thin copy in that folder is replaced; anything else is refused.
        table: What to keep, in the columns of `load_run`.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: There is no run at `source`.
        ValueError: The run is not finished, its spec or environment is damaged, or `target` holds something else.
    """
    origin, target = Path(source), Path(target)
    with _open_run(origin) as whole:
        manifest = _schema.read_manifest(whole)
        if manifest.state != "sealed":
            raise ValueError(f"{show(origin)} must be a finished run; it is {manifest.state}. Finish it first.")
        _schema.verify(whole, manifest, _schema.THIN)
        with UntrustedFolder(target, create=True) as folder:
            if folder.names() and not _schema.read_manifest(folder).is_thin:
                raise ValueError(
                    f"{show(target)} must be empty or hold a thin copy; it holds a whole run. Choose another folder."
                )
            for name in _schema.THIN:
                with replacing_in(folder, name, "thin") as temporary:
                    temporary.file.write(whole.read(name))
            write_parquet(
                folder,
                PARQUET,
                table,
                "thin",
                compression_level=19,
                use_dictionary=["step", "layer", "head", "circuit", "quantity", "index"],
                column_encoding={"value": "BYTE_STREAM_SPLIT"},
            )
            files = _schema.checksums(folder, [*_schema.THIN, PARQUET])
            _schema.write_manifest(folder, _schema.Manifest("sealed", files, num_rows=table.num_rows, is_thin=True))
    return target
