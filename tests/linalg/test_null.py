"""The random-matrix null against matrices really drawn."""

import pytest
import torch

from rankrise import linalg


@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(40, 70, None), (70, 40, None), (50, 60, 20), (10, 12, 30), (3, 1, 1)]
)
def test_same_law_as_matrices_really_drawn(rows, columns, inner):
    n = 400
    g = torch.Generator().manual_seed(1)
    if inner is None:
        drawn = torch.randn(n, rows, columns, generator=g)
    else:
        drawn = torch.randn(n, rows, inner, generator=g) @ torch.randn(n, inner, columns, generator=g)
    expected = torch.linalg.svdvals(drawn.double())
    sigma = linalg.gaussian_spectra(rows, columns, inner=inner, samples=n)
    expected = expected[:, : sigma.shape[1]]
    error = (expected.var(0) / n + sigma.var(0) / n).sqrt()
    assert ((sigma.mean(0) - expected.mean(0)).abs() < 5 * error).all()


def test_value_of_the_paper():
    """A random change of a head of the paper's vision transformer has stable rank between 42 and 60 (its size)."""
    stable = linalg.stable_rank(linalg.gaussian_spectra(512, 512, inner=256))
    assert 42 < stable.mean() < 60


def test_seed_decides():
    first, again, other = (linalg.gaussian_spectra(8, 5, seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_bad_size():
    with pytest.raises(ValueError, match="`inner` must be an integer of at least 1; got 0"):
        linalg.gaussian_spectra(4, 4, inner=0)
