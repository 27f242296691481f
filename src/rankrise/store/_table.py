"""The long table of a run: one number a row.

| column | meaning | where it does not apply |
|---|---|---|
| `step` | optimiser steps done | - |
| `layer`, `head` | from 0 | -1: a user's scalar; `head` -1: the whole matrix of a layer |
| `circuit` | `kq`, `vo`, or a whole matrix `q`, `k`, `v`, `o` | empty: a user's scalar |
| `quantity` | `spectrum`, `stable_rank`, …, `loss` | - |
| `index` | position in a vector (from 0); for `energy_rank` the percentage | -1: one number |
| `value` | float64 | NaN: the weights were not finite, or the number is not defined |

There are no nulls, so that columns go to numpy as they are.

A finished table is a Parquet file. A few megabytes of Parquet can unpack to gigabytes, so the file is measured before
anything is unpacked: at most 20 million rows, and at most half a million plus one for every two bytes of the file,
unless the caller or `RANKRISE_MOST_ROWS` says otherwise. A tracked run of a week has one to ten million rows, and a row
takes two bytes or more because its value hardly compresses; 20 million rows take about a gigabyte of memory.
"""

import functools
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from rankrise.store._atomic import replacing_in
from rankrise.store._limits import MOST_ROWS
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import ArrayLike

_BYTES_PER_ROW = 64  # a table may unpack to this many bytes for each allowed row
_ROWS_OF_ANY_FILE = 500_000
_BYTES_OF_A_ROW = 2
COLUMNS = ("step", "layer", "head", "circuit", "quantity", "index", "value")


@functools.cache
def schema() -> "pa.Schema":
    """Column names and types of every table of a run."""
    import pyarrow as pa

    types = (pa.int64(), pa.int32(), pa.int32(), pa.string(), pa.string(), pa.int32(), pa.float64())
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in zip(COLUMNS, types, strict=True)])


def rows(
    step: int,
    quantity: str,
    values: "ArrayLike",
    *,
    circuit: str = "",
    layers: "ArrayLike" = (-1,),
    heads: bool = False,
    index: "ArrayLike | None" = None,
) -> "pa.RecordBatch":
    """Return the rows of one quantity at one step.

    Args:
        step: Optimiser steps done.
        quantity: Name of the quantity.
        values: (layers,) or (layers, k); with `heads` (layers, heads) or (layers, heads, k).
        circuit: `kq`, `vo`, `q`, `k`, `v`, `o`, or empty.
        layers: Index of each layer.
        heads: Whether the second dimension counts heads.
        index: What the last dimension counts; by default 0 … k − 1.

    >>> rows(5, "loss", [0.25]).to_pylist()
    [{'step': 5, 'layer': -1, 'head': -1, 'circuit': '', 'quantity': 'loss', 'index': -1, 'value': 0.25}]
    >>> rows(5, "spectrum", [[[2.0, 1.0]]], circuit="kq", layers=[3], heads=True)["index"].to_pylist()
    [0, 1]
    """
    import numpy as np
    import pyarrow as pa

    value = np.asarray(values, dtype=np.float64)
    if not heads:
        value = value[:, None]  # (layers, heads or 1, ...)
    is_vector = value.ndim == 3
    if not is_vector:
        value = value[..., None]  # (layers, heads or 1, k or 1)
    column: dict[str, Any] = {
        "step": np.full(value.size, step, dtype=np.int64),
        "layer": _spread(layers, value.shape, 0),
        "head": _spread(np.arange(value.shape[1]) if heads else [-1], value.shape, 1),
        "circuit": pa.array([circuit]).take(pa.array(np.zeros(value.size, dtype=np.int8))),
        "quantity": pa.array([quantity]).take(pa.array(np.zeros(value.size, dtype=np.int8))),
        "index": _spread(
            (np.arange(value.shape[2]) if is_vector else [-1]) if index is None else index, value.shape, 2
        ),
        "value": value.ravel(),
    }
    return pa.record_batch([column[name] for name in COLUMNS], schema=schema())


def scalar_rows(scalars: "Sequence[tuple[int, str, float]]") -> "pa.RecordBatch":
    """Rows of a user's own numbers, each (step, name, value).

    >>> scalar_rows([(5, "loss", 0.25)]) == rows(5, "loss", [0.25])
    True
    """
    import numpy as np
    import pyarrow as pa

    nowhere = np.full(len(scalars), -1, dtype=np.int32)
    steps, names, values = zip(*scalars, strict=True) if scalars else ((), (), ())
    columns = (steps, nowhere, nowhere, [""] * len(scalars), names, nowhere, values)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema(), strict=True)], schema=schema())


def _spread(values: "ArrayLike", shape: tuple[int, ...], axis: int) -> "np.ndarray":
    """Return `values`, one for each position along `axis`, repeated over the other axes."""
    import numpy as np

    aligned = np.asarray(values, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(aligned, shape).ravel()


def row_limit(most_rows: int | None = None) -> int:
    """Return how many rows a table may have: the number given, or `RANKRISE_MOST_ROWS`, or 20 million.

    >>> row_limit(5)
    5
    """
    return MOST_ROWS.value() if most_rows is None else most_rows


def write_parquet(folder: UntrustedFolder, name: str, table: "pa.Table", label: str, **options: Any) -> None:
    """Replace a file of a folder by a table, with a checksum for each page."""
    import pyarrow.parquet as pq

    with replacing_in(folder, name, label) as temporary:
        pq.write_table(table, temporary.file, compression="zstd", write_page_checksum=True, **options)


def read_parquet(folder: UntrustedFolder, name: str, *, most_rows: int | None) -> "pa.Table":
    """Read the table of a finished run.

    Args:
        folder: The run.
        name: The file.
        most_rows: Refuse a table with more rows; None for the limit that the size of the file gives.

    Raises:
        UntrustedInputError: The file is no table of a run, or would unpack to more than `most_rows` allow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["circuit", "quantity"]
    with folder.open(name) as file:
        if most_rows is None and not MOST_ROWS.is_set():
            backed = os.fstat(file.fileno()).st_size // _BYTES_OF_A_ROW
            most_rows = min(row_limit(), _ROWS_OF_ANY_FILE + backed)
        most_rows = row_limit(most_rows)
        try:
            content = _native(file, _BYTES_PER_ROW * max(most_rows, _ROWS_OF_ANY_FILE))
            metadata = pq.read_metadata(pa.BufferReader(content))
            problem = _size_problem(metadata, most_rows)
            if not problem and not metadata.schema.to_arrow_schema().equals(schema()):
                problem = f"its columns are {show(metadata.schema.names)}"
            if not problem:
                options = {"metadata": metadata, "read_dictionary": names, "page_checksum_verification": True}
                table = pq.ParquetFile(pa.BufferReader(content), **options).read()
                table.validate(full=True)
                if sum(_num_name_bytes(table[column]) for column in names) > _BYTES_PER_ROW * most_rows:
                    problem = f"its names unpack to more than {_BYTES_PER_ROW * most_rows} bytes"
                else:
                    problem = _number_problem(table)
                if not problem:
                    return table.cast(schema())
        except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
            problem = show(str(error).partition("\n")[0].rstrip("."))
    raise UntrustedInputError(
        f"{folder.show(name)} must be the table of a run; {problem}. Restore it, or drop the run."
    )


def _native(file: BinaryIO, most_bytes: int) -> "pa.Buffer":
    """Return the content of a file in memory that belongs to Arrow.

    Threads of Arrow still free what they have read while the interpreter ends. If that memory belonged to Python, as it
    does when Arrow reads a file object of Python, the process would abort.
    """
    import pyarrow as pa

    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes > most_bytes:
        raise ValueError(f"it has {num_bytes} bytes, more than {most_bytes}")
    content = pa.allocate_buffer(num_bytes)
    return content.slice(0, file.readinto(memoryview(content)))  # type: ignore[attr-defined]


def _size_problem(metadata: "pq.FileMetaData", most_rows: int) -> str:
    """Return why a Parquet file is too large to be unpacked; empty if it is not."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    num_rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if num_rows > most_rows:
        return f"it has {num_rows} rows, more than {most_rows}: set {MOST_ROWS.variable} to read it"
    num_bytes = sum(group.column(i).total_uncompressed_size for group in groups for i in range(group.num_columns))
    if num_bytes > _BYTES_PER_ROW * most_rows:
        most = _BYTES_PER_ROW * most_rows
        return f"it unpacks to {num_bytes} bytes, more than {most}: set {MOST_ROWS.variable} to read it"
    return ""


def _number_problem(table: "pa.Table") -> str:
    """Return which column counts something and has a number below those that are written; empty if none has."""
    import pyarrow.compute as pc

    for name in ("step", "layer", "head", "index"):
        least = pc.min(table[name]).as_py()
        if least is not None and least < -1:
            return f"its column {name} holds {least}"
    return ""


def _num_name_bytes(column: "pa.ChunkedArray") -> int:
    """Return how many bytes a column of names has once each name is written out in its row."""
    import pyarrow.compute as pc

    return sum(
        pc.sum(pc.take(pc.cast(pc.binary_length(chunk.dictionary), "int64"), chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )
