"""Quantities are chosen by name or made by the user; the overlap agrees with principal angles."""

import math

import pytest
import torch
from tests.linalg.oracles import principal_angles

from rankrise.tracking import Quantity, subspace_overlap
from rankrise.tracking._quantities import QUANTITIES, choose


def test_all_by_default_and_each_has_its_name():
    assert [q.name for q in choose(None)] == list(QUANTITIES)


def test_own_quantity():
    mine = Quantity("mine", "ranks", lambda change: change.frobenius_norm)
    assert choose(["spectrum", mine])[1] is mine


def test_errors():
    with pytest.raises(ValueError, match=r"must be one of stable_rank, .*; got 'spectra'\. Did you mean 'spectrum'"):
        choose(["spectra"])
    with pytest.raises(ValueError, match="a name of its own"):
        choose(["spectrum", "spectrum"])


def test_overlap_is_the_mean_squared_cosine_of_principal_angles():
    g = torch.Generator().manual_seed(0)
    f, h = (torch.linalg.qr(torch.randn(5, 9, 4, generator=g, dtype=torch.float64)).Q for _ in range(2))
    ones = torch.ones(5, 4)
    found = subspace_overlap(f, h, sigma=ones, sigma2=ones)
    for j in range(1, 5):
        angles = principal_angles(f[..., :j], h[..., :j])
        torch.testing.assert_close(found[..., j - 1], angles.cos().square().mean(-1))


def test_overlap_is_not_a_number_where_there_is_no_direction():
    f = torch.eye(3)
    found = subspace_overlap(f, f, sigma=torch.tensor([1.0, 0.5, 1e-9]), sigma2=torch.ones(3))
    assert found[:2].tolist() == [1.0, 1.0]
    assert math.isnan(found[2])
    assert subspace_overlap(f, f, sigma=torch.zeros(3), sigma2=torch.ones(3)).isnan().all()


def test_overlap_of_different_numbers_of_directions():
    f = torch.eye(3)
    assert subspace_overlap(f, f[:, :2], sigma=torch.ones(3), sigma2=torch.ones(2)).tolist() == [1.0, 1.0]
