"""Addition modulo 31 learned by an MLP under full-batch Adam: the network in which slingshots are studied."""

import numpy as np
import torch
from torch import nn


class ModularMLP(nn.Module):
    def __init__(self, p=31, width=64):
        super().__init__()
        self.embed = nn.Embedding(p, width // 2)
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, p, bias=False)

    def forward(self, pairs):
        return self.head(self.hidden(self.embed(pairs).flatten(1)))


def table(p=31, *, seed=0, share=0.6):
    """A share of the addition table: pairs (n, 2) and sums (n,)."""
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p))
    chosen = torch.randperm(p * p, generator=torch.Generator().manual_seed(seed))[: int(share * p * p)]
    return pairs[chosen], pairs[chosen].sum(1) % p


def train(loss, *, seed=0, num_steps=5000, every=20, dtype=torch.float32, eps=1e-8, model=None, seen=None):
    """Return steps, losses and norms of the last layer, one every `every` steps."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ModularMLP().to(dtype) if model is None else model
    pairs, sums = table(seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3, betas=(0.9, 0.98), eps=eps)
    rows = []
    for step in range(num_steps):
        value = loss(model(pairs), sums)
        if step % every == 0:
            rows.append((step, value.item(), model.head.weight.detach().norm().item()))
            if seen is not None:
                seen(step)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return np.array(rows).T
