"""Rank measures of spectra whose answer is known, and the properties every measure must have."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankrise import linalg

MEASURES = [
    linalg.stable_rank,
    linalg.effective_rank,
    linalg.energy_rank,
    linalg.nuclear_ratio,
    lambda sigma: linalg.numerical_rank(sigma, rtol=1e-6),
]
spectra = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@pytest.mark.parametrize("measure", MEASURES)
def test_zero_spectrum_has_rank_zero(measure):
    assert measure(torch.zeros(2, 5)).tolist() == [0, 0]


@pytest.mark.parametrize("measure", [*MEASURES[:3], MEASURES[4]])
@pytest.mark.parametrize("n", [1, 4])
def test_n_equal_values_have_rank_n(measure, n):
    sigma = torch.cat([torch.full((n,), 3.0), torch.zeros(3)])
    expected = n if measure is not linalg.energy_rank else int(np.ceil(0.9 * n))
    assert measure(sigma).item() == pytest.approx(expected)


@given(spectra, st.integers(-250, 250))
def test_scale_and_order_do_not_matter(values, exponent):
    sigma = torch.tensor(values, dtype=torch.float64)
    for measure in MEASURES:
        expected = measure(sigma).double()
        torch.testing.assert_close(measure(sigma.flip(0) * 2.0**exponent).double(), expected)


@given(spectra)
def test_between_one_and_the_number_of_values(values):
    sigma = torch.tensor(values, dtype=torch.float64)
    for measure in MEASURES:
        assert 1 - 1e-12 <= measure(sigma).item() <= len(values) + 1e-9


def test_batches_and_array_likes():
    sigma = np.array([[2.0, 1.0], [1.0, 1.0]])
    assert linalg.stable_rank(sigma).tolist() == [1.25, 2.0]
    assert linalg.rank_measures(sigma).energy_99.tolist() == [2, 2]


def test_energy_of_everything_needs_all_but_the_zeros():
    assert linalg.energy_rank([1.0, 1.0, 1.0, 0.0], 1.0).item() == 3
    assert linalg.energy_rank([1.0] + [1e-6] * 5, 1.0).item() == 6


def test_share_that_rounding_keeps_short_is_enough():
    assert linalg.energy_rank([0.1] * 10, 0.3).item() == 3


def test_plain_numbers_are_read_in_float64():
    assert linalg.stable_rank([1e-50, 1e-50]).item() == 2
    assert linalg.stable_rank([1e200, 1e200]).item() == 2


def test_gradients_stop_here():
    assert not linalg.stable_rank(torch.ones(3, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linalg.stable_rank(torch.tensor([1.0, -0.5])), "`sigma` must not be negative; got -0.5"),
        (lambda: linalg.stable_rank(torch.tensor([[1.0], [-1.0]])), r"negative; got -1 at batch index \(1,\)"),
        (lambda: linalg.stable_rank(torch.tensor([[1.0], [torch.nan]])), r"finite; got NaN.*batch index \(1,\)"),
        (lambda: linalg.stable_rank(torch.zeros(3, 0)), r"at least one singular value.*\(3, 0\)"),
        (lambda: linalg.stable_rank(torch.ones(2, dtype=torch.complex64)), "real numbers; got torch.complex64"),
        (lambda: linalg.energy_rank([1.0], 0.0), r"`energy` must be in \(0, 1\]; got 0.0"),
        (lambda: linalg.numerical_rank([1.0], rtol=2.0), r"`rtol` must be in \[0, 1\); got 2.0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
