"""Bad input is refused with a sentence that names the argument and the batch index; never NaN out, never a hang."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rankrise as rr

FUNCTIONS = [rr.delta_spectrum, rr.delta_svd, rr.delta_stable_rank]


def good(dtype=torch.float32):
    return [torch.ones(2, 3, 5, 2, dtype=dtype) for _ in range(4)]


def with_value(position, index, value):
    change = good()
    change[position][index] = value
    return change


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_value(3, (1, 2, 4, 1), torch.nan),
            r"`right0` must be finite; got NaN or infinity at batch index \(1, 2\)",
        ),
        (with_value(0, (0, 1, 0, 0), -torch.inf), r"`left` must be finite; .* at batch index \(0, 1\)"),
        ([*good()[:3], torch.ones(2, 3, 4, 2)], r"`right0` must have the shape of `right`; got \(2, 3, 4, 2\)"),
        ([good()[0], torch.ones(2, 3, 5, 7), good()[0], torch.ones(2, 3, 5, 7)], "must agree in r.*passed transposed"),
        ([*good()[:3], good(torch.float64)[0]], "`right0` must have the dtype of `left`; got torch.float64"),
        (
            [*good()[:3], torch.ones(2, 3, 5, 2, device="meta")],
            "`right0` must be a dense tensor with values; got a meta tensor",
        ),
        ([torch.ones(2, 0, 2)] * 4, r"`left` must not be empty; got shape \(2, 0, 2\)"),
        ([torch.ones(2, 2, 2, device="meta")] * 4, "`left` must be a dense tensor with values; got a meta tensor"),
        ([torch.eye(3).to_sparse()] * 4, "`left` must be a dense tensor with values; got a torch.sparse_coo tensor"),
        ([torch.full((3, 2), 1e80, dtype=torch.float64)] * 4, "between 1e-50 and 1e50; got 1e\\+80. Rescale it"),
        ([torch.full((3, 2), 1e-80, dtype=torch.float64)] * 4, "`left` must have its largest value between 1e-50"),
        ([torch.ones(4)] * 4, r"`left` must have shape \(..., rows, columns\); got \(4,\)"),
        ([torch.ones(4, 4, dtype=torch.int64)] * 4, "`left` must hold real floating-point numbers; got torch.int64"),
        ([[[1.0]]] * 4, "`left` must be a torch tensor; got list"),
    ],
)
def test_refusals(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(*change)


def test_product_spectrum_refuses_other_batches():
    with pytest.raises(ValueError, match="must agree in r and in the batch dimensions"):
        rr.product_spectrum(torch.ones(2, 5, 3), torch.ones(5, 3))


def test_svd_refuses_no_triplets():
    for k in (0, 1.5):
        with pytest.raises(ValueError, match=f"`k` must be an integer of at least 1; got {k}"):
            rr.delta_svd(*good(), k=k)


@given(st.data())
def test_anything_finite_gives_finite_numbers(data):
    """Values over the whole range of float32, zeros and subnormals among them."""
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    change = [torch.tensor(data.draw(st.lists(numbers, min_size=6, max_size=6))).reshape(3, 2) for _ in range(4)]
    sigma = rr.delta_spectrum(*change)
    assert sigma.isfinite().all()
    assert (sigma.diff() <= 0).all()
    rank = rr.delta_stable_rank(*change)
    assert all(x.isfinite() for x in (rank.value, rank.lower, rank.upper, rank.frobenius_norm))
    assert rr.delta_svd(*change).U.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats_are_read(dtype):
    left = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).to(dtype)
    assert rr.product_spectrum(left, left).tolist() == [4.0, 1.0]
