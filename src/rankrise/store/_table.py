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
"""

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import ArrayLike

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
    """Rows of one quantity at one step.

    Args:
        step: Optimiser steps done.
        quantity: Its name.
        values: (layers,) or (layers, k); with `heads` (layers, heads) or (layers, heads, k).
        circuit: `kq`, `vo`, `q`, `k`, `v`, `o`, or empty.
        layers: Index of each layer.
        heads: Whether the second dimension counts heads.
        index: What the last dimension counts, 0 … k − 1 unless given.

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
    """`values`, one for each position along `axis`, repeated over the other axes."""
    import numpy as np

    aligned = np.asarray(values, dtype=np.int32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(aligned, shape).ravel()
