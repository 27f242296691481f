"""The stack of linear layers: how it starts, and that it is one layer."""

import pytest
import torch

from rankrise.latent import LinearSubnetwork


@pytest.mark.parametrize("init", ["orthogonal", "normal", "default"])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_collapsed_layer_computes_the_same(init, depth):
    network = LinearSubnetwork(6, depth, init=init).double()
    codes = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = network.collapse().to(torch.float64)
    torch.testing.assert_close(layer(codes), network(codes))
    assert layer.bias is None
    assert sum(p.numel() for p in network.parameters()) == 36 * depth


def test_every_mode_starts_at_the_product_of_gains():
    network = LinearSubnetwork(5, 3, gain=0.4)
    torch.testing.assert_close(torch.linalg.svdvals(network.product()), torch.full((5,), 0.4**3))
    wide = torch.linalg.svdvals(LinearSubnetwork(200, 1, gain=0.4, init="normal").product())
    assert wide.square().mean().item() == pytest.approx(0.16, rel=0.05)


def test_seed_alone_decides_and_the_callers_random_numbers_stay():
    before = torch.get_rng_state()
    one, same, other = (LinearSubnetwork(4, 2, seed=seed).product() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_it_trains():
    network = LinearSubnetwork(3, 2)
    network(torch.ones(1, 3)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_refusals():
    with pytest.raises(
        ValueError, match=r"`dim` must be at least 1, `depth` at least 0, `gain` positive; got 0, 1, 0.5"
    ):
        LinearSubnetwork(0, 1)
    with pytest.raises(ValueError, match="`init` must be one of orthogonal, normal, default; got 'xavier'"):
        LinearSubnetwork(2, 1, init="xavier")
