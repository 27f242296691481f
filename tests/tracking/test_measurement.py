"""A measurement fits its places, or is refused with the shape that would fit."""

import pytest
import torch

from rankrise.tracking import Measurement


def test_rows_of_a_vector_of_every_head():
    values = torch.arange(12.0).reshape(2, 3, 2)
    rows = Measurement("share", values, layers=(0, 4), heads=True, circuit="kq", index=(90, 99)).rows(7).to_pylist()
    assert [row["value"] for row in rows] == list(range(12))
    assert rows[-1] == {
        "step": 7, "layer": 4, "head": 2, "circuit": "kq", "quantity": "share", "index": 99, "value": 11.0
    }  # fmt: skip


def test_vector_of_the_model():
    rows = Measurement("kernel", torch.tensor([2.0, 1.0], dtype=torch.bfloat16)).rows(1).to_pylist()
    assert [(row["layer"], row["head"], row["index"], row["value"]) for row in rows] == [(-1, -1, 0, 2), (-1, -1, 1, 1)]


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (torch.ones(2), {"layers": (0, 1), "heads": True}, r"the shape \(2, heads\) or \(2, heads, k\); got \(2,\)"),
        (torch.ones(3, 2), {"layers": (0,)}, r"the shape \(1\) or \(1, k\); got \(3, 2\)"),
        (torch.ones(1, 2), {"layers": (0,), "index": (1, 2, 3)}, r"the shape \(1, 3\); got \(1, 2\)"),
        (torch.ones(1, 2), {"heads": True}, "must name the layers of its heads"),
        (0.5, {}, "`values` of 'mine' must be a tensor; got float"),
    ],
)
def test_shape_that_does_not_fit(values, options, message):
    with pytest.raises(ValueError, match=message):
        Measurement("mine", values, **options)
