"""Gradient descent on linear autoencoders: its gradients, planted ranks, predicted times."""

import pytest
import torch
from torch import nn

from rankrise.latent import escape_time, linear_autoencoder_flow


def planted(r, dim=32, noise=0.01):
    """A covariance with r strong directions over noise; without noise any linear code would have rank r at most."""
    values = torch.full((dim,), noise, dtype=torch.float64)
    values[:r] = torch.linspace(1, 0.5, r)
    q = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(r), dtype=torch.float64)).Q
    return q @ torch.diag(values) @ q.mT


def test_steps_are_those_of_autograd():
    """The same descent on torch's own layers, from the same start, whose last step is compared."""
    c = planted(2, dim=5)
    options = {"code_dim": 3, "depth": 2, "init": "orthogonal", "start": 0.3, "learning_rate": 0.1, "every": 1}
    flow = linear_autoencoder_flow(c, steps=20, **options)
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (3, 3), (3, 3), (5, 3)]
    factors = []
    for rows, columns in shapes:
        q = (
            torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns), generator=generator))
            if rows >= columns
            else torch.linalg.qr(torch.randn(rows, columns, generator=generator).mT)
        )
        factors.append(nn.Parameter((0.3**0.25 * (q.Q if rows >= columns else q.Q.mT)).double()))
    optimiser = torch.optim.SGD(factors, 0.1)
    for _ in range(20):
        m = factors[3] @ factors[2] @ factors[1] @ factors[0]
        error = torch.eye(5) - m
        loss = 0.5 * torch.trace(error @ c @ error.mT)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    m = (factors[3] @ factors[2] @ factors[1] @ factors[0]).detach()
    torch.testing.assert_close(flow.maps[-1], torch.linalg.svdvals(m)[:3], atol=1e-6, rtol=1e-6)
    assert flow.path.losses[-2].item() == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("r", [2, 8])
def test_planted_rank_is_learned_and_held_when_predicted(depth, r):
    flow = linear_autoencoder_flow(planted(r), code_dim=16, depth=depth, steps=400)
    learned = flow.num_learned
    wrong = (learned != r).nonzero()
    held = int(flow.path.steps[int(wrong[-1]) + 1])
    predicted = escape_time(depth + 2, 1e-2 * 16 / 32) / (flow.learning_rate * 0.5)
    assert learned[-1] == r
    assert 1 <= held / predicted <= 3


def test_the_small_start_makes_it_greedy_and_not_the_depth():
    """Without a sub-network a small start finds the rank too; the usual start of layers learns the noise at once."""
    options = {"code_dim": 16, "depth": 0, "steps": 800, "learning_rate": 0.1}
    small = linear_autoencoder_flow(planted(4), init="normal", **options)
    usual = linear_autoencoder_flow(planted(4), init="default", **options)
    assert small.num_learned[-1] == 4
    assert usual.num_learned[-1] > 8


def test_start_that_cannot_be_left_in_time_is_told():
    with pytest.warns(UserWarning, match=r"strongest mode is expected to be learned after \d+ steps; there are 100"):
        linear_autoencoder_flow(planted(2), code_dim=16, depth=4, start=1e-4, steps=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code_dim": 33}, "`code_dim` must be in 1 to 32"),
        ({"init": "identity"}, "`init` must be one of aligned, orthogonal, normal, default; got 'identity'"),
        ({"covariance": torch.ones(2, 3)}, r"`covariance` must be \(d, d\); got \(2, 3\)"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(ValueError, match=message):
        linear_autoencoder_flow(**({"covariance": planted(2), "code_dim": 4, "depth": 1, "steps": 9} | change))
