"""A thin copy of a finished run: its spec, its environment and a part of its table, small enough for a repository."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rankrise.store import _atomic, _manifest

if TYPE_CHECKING:
    import pyarrow as pa

_PARQUET = "metrics.parquet"


def copy_thin(source: str | os.PathLike[str], target: str | os.PathLike[str], table: "pa.Table") -> Path:
    """Write a thin copy of a sealed run: readable as any run, but without weights, so that it cannot be resumed.

    Args:
        source: The run.
        target: Folder of the copy; a thin copy that is there is replaced, anything else refused.
        table: What to keep, in the columns of `load_run`.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: There is no run at `source`.
        ValueError: It is not finished, its spec or environment is damaged, or `target` holds something else.
    """
    import pyarrow.parquet as pq

    origin, folder = Path(source), Path(target)
    manifest = _manifest.read_manifest(origin)
    if manifest.state != "sealed":
        raise ValueError(f"{origin} must be a finished run; it is {manifest.state}. Finish it first.")
    _manifest.verify(origin, manifest, list(_manifest.THIN))
    if folder.exists() and any(folder.iterdir()) and not _manifest.read_manifest(folder).is_thin:
        raise ValueError(f"{folder} must be empty or hold a thin copy; it holds a whole run. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _manifest.THIN:
        shutil.copyfile(origin / name, folder / name)
    with _atomic.replacing(folder / _PARQUET, "thin") as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=19,
            use_dictionary=["step", "layer", "head", "circuit", "quantity", "index"],
            column_encoding={"value": "BYTE_STREAM_SPLIT"},
            write_page_checksum=True,
        )
    files = _manifest.checksums(folder, [*_manifest.THIN, _PARQUET])
    _manifest.write_manifest(folder, _manifest.Manifest("sealed", files, num_rows=table.num_rows, is_thin=True))
    return folder
