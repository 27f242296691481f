"""Read a run: finished, still being written, or cut off."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.store import _manifest
from rankrise.store._atomic import read_json
from rankrise.store._lock import is_locked
from rankrise.store._run import directions_paths, read_sealed, verify_directions
from rankrise.store._stream import read_stream
from rankrise.store._tensors import load_tensors

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor


def load_run(path: str | os.PathLike[str]) -> "pa.Table":
    """Return the long table of a run: `step, layer, head, circuit, quantity, index, value`, one number a row.

    A sealed run is checked against its manifest. Of a run that was cut off, the blocks that can be read come back, with
    a warning if there is more in the file; of a run still being written, those written so far.

    Args:
        path: The run directory.

    Returns:
        A `pyarrow.Table` in the order of recording. Where a column does not apply it is -1 or empty, never null:
        a user's scalar has layer, head and index -1 and no circuit.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: Unknown version, or a file that is not what the manifest says.

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
    folder = Path(path)
    manifest = _manifest.read_manifest(folder)
    if manifest.state == "running":
        try:
            return _read_live(folder)
        except FileNotFoundError:  # sealed just now
            manifest = _manifest.read_manifest(folder)
    return read_sealed(folder, manifest)


def _read_live(folder: Path) -> "pa.Table":
    """The rows in the stream of a run, with a warning if bytes of a run that nobody writes could not be read."""
    contents = read_stream(folder / "metrics.arrows")
    if contents.num_unread_bytes and not is_locked(folder):
        last = contents.table["step"][-1].as_py() if contents.table.num_rows else "none"
        warnings.warn(
            f"{folder} was cut off or damaged: {contents.num_unread_bytes} bytes after step {last} could not be read.",
            UserWarning,
            stacklevel=3,
        )
    return contents.table


def has_run(path: str | os.PathLike[str]) -> bool:
    """Whether a run was begun in this folder.

    >>> has_run("/nowhere")
    False
    """
    return (Path(path) / _manifest.NAME).is_file()


def is_sealed(path: str | os.PathLike[str]) -> bool:
    """Whether the run in this folder is finished.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: Its manifest is damaged or of an unknown version.
    """
    return _manifest.read_manifest(Path(path)).state == "sealed"


def verify_run(path: str | os.PathLike[str]) -> None:
    """Check every file that the manifest of a run lists: of a sealed one, all there is.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: A file is missing or is not what the manifest says; names it.
    """
    folder = Path(path)
    manifest = _manifest.read_manifest(folder)
    _manifest.verify(folder, manifest)
    verify_directions(folder, manifest)


def load_spec(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what was asked for when a run was made, as its manifest has it.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The file is missing or not what the manifest says.
    """
    folder = Path(path)
    _manifest.verify(folder, _manifest.read_manifest(folder), ["spec.json"])
    spec: dict[str, Any] = read_json(folder / "spec.json")
    return spec


def load_initial(path: str | os.PathLike[str]) -> "dict[str, Tensor]":
    """Return the weights a run began with, as its manifest has them.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The file is missing or not what the manifest says.
    """
    folder = Path(path)
    _manifest.verify(folder, _manifest.read_manifest(folder), ["initial.safetensors"])
    return load_tensors(folder / "initial.safetensors")


def load_directions(path: str | os.PathLike[str]) -> "dict[int, dict[str, Tensor]]":
    """Return the leading singular vectors a run kept, by step: `"3.kq.left"` is (heads, d, k) of layer 3.

    Those of a sealed run are checked against its manifest.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: A file is damaged, or missing from a sealed run.
    """
    folder = Path(path)
    verify_directions(folder, _manifest.read_manifest(folder))
    return {step: load_tensors(file) for step, file in directions_paths(folder).items()}
