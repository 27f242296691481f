"""Instances that the tests of full matrices share, drawn by numpy so that their seeds are portable."""

import numpy as np
import torch

from rankrise import theory


def sensing(seed, d=4, columns=4, rank=None):
    """Gaussian measurements of a Gaussian product."""
    rng = np.random.default_rng(seed)
    rank = min(d, columns) if rank is None else rank
    x = rng.standard_normal((4 * d * columns, d, columns))
    m = rng.standard_normal((d, rank)) @ rng.standard_normal((columns, rank)).T / np.sqrt(rank)
    return theory.matrix_sensing(x, (x * m).sum((1, 2)))


def anisotropic_sensing(seed, d, samples):
    """Few, stretched measurements with random targets: last directions often turn."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, d, d)) @ (np.eye(d) + 1.5 * rng.standard_normal((d, d)))
    return theory.matrix_sensing(x, 3 * rng.standard_normal(samples))


def head_data(seed, d, samples, tokens):
    """Gaussian tokens and targets from a full teacher head."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, tokens, d))
    w_k, w_q, w_v, w_o = rng.standard_normal((4, d, d)) / d**0.25
    scores = x @ (w_k @ w_q.T) @ x.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return x, weights / weights.sum(-1, keepdims=True) @ x @ (w_v @ w_o.T)


def head(seed, d, samples, tokens):
    """A student head of a full teacher head."""
    return theory.matrix_head(*head_data(seed, d, samples, tokens))


def start(net, seed):
    """Gaussian factors before the factor α, two for each product."""
    rng = np.random.default_rng(1000 + seed)
    factors = []
    for rows, columns in net.shapes:
        z = rng.standard_normal((rows + columns, min(rows, columns)))
        factors += [torch.from_numpy(z[:rows]), torch.from_numpy(z[rows:])]
    return factors


def as_numbers(net):
    """A network with diagonal weights as one of 1 x 1 products."""
    return theory.MatrixNetwork(
        lambda x, *m: net.h(x, torch.cat([part.reshape(1) for part in m])),
        net._x,
        net._y,
        shapes=[(1, 1)] * net.num_weights,
    )
