"""Rows are what was measured, in order, without nulls."""

import numpy as np
import pytest

from rankrise.store import rows, schema
from rankrise.store._table import COLUMNS


def test_vector_for_every_head():
    values = np.arange(12.0).reshape(2, 3, 2)
    table = rows(7, "spectrum", values, circuit="kq", layers=[4, 9], heads=True).to_pydict()
    assert table["layer"] == [4] * 6 + [9] * 6
    assert table["head"] == [0, 0, 1, 1, 2, 2] * 2
    assert table["index"] == [0, 1] * 6
    assert table["value"] == list(range(12))
    assert set(table["step"]) == {7}
    assert set(table["circuit"]) == {"kq"}


def test_number_for_every_head_and_for_a_whole_matrix():
    assert rows(1, "stable_rank", [[1.0, 2.0]], circuit="kq", layers=[0], heads=True)["index"].to_pylist() == [-1, -1]
    whole = rows(1, "spectrum", [[1.0, 2.0]], circuit="q", layers=[3])
    assert whole["head"].to_pylist() == [-1, -1]
    assert whole["index"].to_pylist() == [0, 1]


def test_index_may_be_named():
    batch = rows(1, "energy_rank", [[[3, 4, 5]]], circuit="kq", layers=[0], heads=True, index=(90, 95, 99))
    assert batch["index"].to_pylist() == [90, 95, 99]


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0, 5e-324])
def test_every_float_survives(value):
    (found,) = rows(1, "loss", [value])["value"].to_numpy()
    assert np.array_equal(found, value, equal_nan=True)


def test_no_nulls_and_documented_columns():
    assert tuple(schema().names) == COLUMNS
    assert not any(field.nullable for field in schema())
