"""Tables of theory runs: paths of products and single numbers, in the columns of every run."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.store import schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import ArrayLike


def path_rows(
    quantity: str, values: "ArrayLike", *, circuit: str, steps: "ArrayLike | None" = None, head: int = 0
) -> "pa.RecordBatch":
    """Rows of a vector that moves: `index` is its coordinate.

    Args:
        quantity: Its name.
        values: (T, k).
        circuit: "kq" or "vo".
        steps: (T,), 0 … T − 1 unless given.
        head: What tells paths of one run apart.

    >>> path_rows("product", [[0.5, 1.0]], circuit="kq").select(["step", "index", "value"]).to_pylist()
    [{'step': 0, 'index': 0, 'value': 0.5}, {'step': 0, 'index': 1, 'value': 1.0}]
    """
    import pyarrow as pa

    value = np.asarray(values, dtype=np.float64)
    num, k = value.shape
    step = np.arange(num) if steps is None else np.asarray(steps)
    none = pa.array(np.zeros(num * k, dtype=np.int8))
    columns = [
        np.repeat(step, k),
        np.zeros(num * k),
        np.full(num * k, head),
        pa.array([circuit]).take(none),
        pa.array([quantity]).take(none),
        np.tile(np.arange(k), num),
        value.ravel(),
    ]
    return _batch(columns)


def product_rows(
    values: "ArrayLike", *, quantity: str = "product", steps: "ArrayLike | None" = None, head: int = 0
) -> "list[pa.RecordBatch]":
    """Rows of q = [a, b], (T, 2d): a = w_K ⊙ w_Q is circuit "kq", b = w_V ⊙ w_O is "vo"."""
    value = np.asarray(values, dtype=np.float64)
    halves = np.split(value, 2, axis=1)
    return [
        path_rows(quantity, half, circuit=circuit, steps=steps, head=head)
        for circuit, half in zip(("kq", "vo"), halves, strict=True)
    ]


def curve_rows(curves: "Mapping[str, ArrayLike]", *, steps: "Sequence[int] | None" = None) -> "pa.RecordBatch":
    """Rows of single numbers that move, each (T,), as a training run has its scalars; NaN is left out.

    >>> curve_rows({"loss": [2.0, 1.0]})["value"].to_pylist()
    [2.0, 1.0]
    """
    names, places, values = [], [], []
    for name, curve in curves.items():
        value = np.asarray(curve, dtype=np.float64)
        step = np.arange(len(value)) if steps is None else np.asarray(steps)
        keep = ~np.isnan(value)
        names += [name] * int(keep.sum())
        places.append(step[keep])
        values.append(value[keep])
    num = len(names)
    nowhere = np.full(num, -1)
    return _batch([np.concatenate(places), nowhere, nowhere, [""] * num, names, nowhere, np.concatenate(values)])


def _batch(columns: list[object]) -> "pa.RecordBatch":
    import pyarrow as pa

    arrays = [
        column.cast(field.type) if isinstance(column, pa.Array) else pa.array(_typed(column, field), field.type)
        for column, field in zip(columns, schema(), strict=True)
    ]
    return pa.record_batch(arrays, schema=schema())


def _typed(column: object, field: "pa.Field") -> object:
    return column.astype(field.type.to_pandas_dtype()) if isinstance(column, np.ndarray) else column
