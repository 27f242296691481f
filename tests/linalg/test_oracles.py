"""Principal angles between planted subspaces, down to angles far below the square root of ε."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.linalg.oracles import principal_angles


def orthonormal(d, k, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, k, generator=g, dtype=torch.float64)).Q


@given(st.lists(st.sampled_from([0.0, 1e-12, 1e-6, 0.3, 1.0, 1.5]), min_size=1, max_size=4), st.integers(0, 1000))
def test_planted_angles(angles, seed):
    angles = torch.tensor(sorted(angles), dtype=torch.float64)
    k = len(angles)
    basis = orthonormal(12, 2 * k, seed)
    first, outside = basis[:, :k], basis[:, k:]
    second = first * angles.cos() + outside * angles.sin()
    mix = torch.randn(k, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 4 * torch.eye(k)
    torch.testing.assert_close(principal_angles(first, second @ mix), angles, rtol=1e-6, atol=1e-14)


def test_different_dimensions_and_batches():
    plane, line = orthonormal(5, 2, 0), orthonormal(5, 2, 0)[:, :1]
    batch = torch.stack([plane, plane.flip(-1)])
    angles = principal_angles(batch, torch.stack([line, line]))
    assert angles.shape == (2, 1)
    assert (angles < 1e-15).all()
