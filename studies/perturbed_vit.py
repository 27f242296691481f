"""Does a ViT return when its heads are pushed in mid-training inside what they have learned, as the toy does?

    OMP_NUM_THREADS=1 python studies/perturbed_vit.py --seeds 0 1 2

The network of `vit-digits` at scale small, Adam at a constant 1e-3, batches of 64, 200 steps. After 100 steps the
products W_Qᵀ W_K and W_O W_V of every head are moved by a fifth of their change: inside the span of the two leading
singular directions of that change ("learned"), or in two random directions orthogonal to it ("other"). The pushed copy
and the one that was not pushed then see the same batches with the same moments of Adam. Every row of the table is the
distance of the products of the two, over that at the push, root mean square over heads: inside the pushed directions
and in all directions; and the test losses of both. The table is in docs/log/gauges.md.
"""

import argparse
import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.experiments import find_experiment
from rankrise.lab.models import build_model

PUSH, END = 100, 200
SIZE, RANK = 0.2, 2  # of the push: a share of the change, and how many directions
AFTER = (0, 5, 20, 50, 100)  # steps after the push at which the copies are compared


class Direction(NamedTuple):
    """The directions in which the products of a circuit were pushed, (heads, d, k) each."""

    left: Tensor
    right: Tensor


def factors(model: nn.Module) -> Iterator[tuple[nn.Parameter, slice, Tensor, Tensor]]:
    """For each circuit of each layer: the weight to push, its rows or columns, and both factors by head.

    The product of a head is `first.mT @ second` with both (heads, r, d).
    """
    for block in model.blocks:
        attention = block.attn
        shape = (attention.num_heads, attention.head_dim, -1)
        q, k, v = attention.qkv.weight.detach().chunk(3)
        o = attention.proj.weight.detach().T
        yield attention.qkv.weight, slice(0, len(q)), q.reshape(shape), k.reshape(shape)
        yield attention.proj.weight, slice(None), o.reshape(shape), v.reshape(shape)


def products(model: nn.Module) -> list[Tensor]:
    """The products of every circuit of every layer, each (heads, d, d)."""
    return [first.mT @ second for _, _, first, second in factors(model)]


def push(model: nn.Module, start: list[Tensor], *, learned: bool, seed: int) -> list[Direction]:
    """Move the products by changing their first factor; returns the directions of the push."""
    generator = torch.Generator().manual_seed(seed)
    directions = []
    for (weight, rows, first, second), before in zip(list(factors(model)), start, strict=True):
        change = first.mT @ second - before
        u, _, vt = torch.linalg.svd(change)
        pick = slice(0, RANK) if learned else slice(RANK, None)
        mix = torch.randn(len(u), u[..., pick].shape[-1], RANK, generator=generator)
        left, right = torch.linalg.qr(u[..., pick] @ mix)[0], torch.linalg.qr(vt.mT[..., pick] @ mix)[0]
        wanted = left @ torch.randn(len(u), RANK, RANK, generator=generator) @ right.mT
        moved = torch.linalg.pinv(second).mT @ wanted.mT  # the change of the first factor that moves the product there
        size = torch.linalg.matrix_norm(moved.mT @ second, keepdim=True)
        moved = moved * SIZE * torch.linalg.matrix_norm(change, keepdim=True) / size
        with torch.no_grad():
            of_weight = weight.T if rows == slice(None) else weight[rows]
            of_weight += moved.reshape(-1, moved.shape[-1])
        directions.append(Direction(left, right))
    return directions


def distances(pushed: nn.Module, plain: nn.Module, directions: list[Direction]) -> tuple[float, float]:
    """Root mean squares over heads of the distance of the products, inside the pushed directions and in all."""
    inside, everywhere = [], []
    for a, b, (left, right) in zip(products(pushed), products(plain), directions, strict=True):
        inside.append(torch.linalg.matrix_norm(left.mT @ (a - b) @ right))
        everywhere.append(torch.linalg.matrix_norm(a - b))
    return torch.cat(inside).square().mean().sqrt().item(), torch.cat(everywhere).square().mean().sqrt().item()


def run(seed: int, learned: bool) -> Iterator[str]:
    """Train to the push and on with two copies; the rows of the table."""
    data = load_dataset(DataConfig("digits"), root=None)
    tests, classes = next(iter(data.test_batches(batch_size=data.num_test)))
    plain = build_model(find_experiment("vit-digits").small.model, seed=seed)
    start = products(plain)
    optimisers = [torch.optim.Adam(plain.parameters(), 1e-3)]
    models = [plain]
    step, first = 0, (1.0, 1.0)
    directions: list[Direction] = []
    for epoch in range(100):
        for images, labels in data.train_batches(batch_size=64, seed=seed, epoch=epoch):
            if step == PUSH:
                pushed = copy.deepcopy(plain)
                directions = push(pushed, start, learned=learned, seed=seed)
                models.append(pushed)
                optimisers.append(torch.optim.Adam(pushed.parameters(), 1e-3))
                optimisers[1].load_state_dict(copy.deepcopy(optimisers[0].state_dict()))
                first = distances(pushed, plain, directions)
            if step - PUSH in AFTER:
                inside, everywhere = distances(models[1], plain, directions)
                with torch.no_grad():
                    losses = [nn.functional.cross_entropy(model(tests), classes).item() for model in models]
                name = "learned" if learned else "other"
                yield (
                    f"| {seed} | {name} | {step - PUSH} | {inside / first[0]:.3f} | {everywhere / first[1]:.3f} | "
                    f"{losses[0]:.3f} | {losses[1]:.3f} |"
                )
            if step == END:
                return
            for model, optimiser in zip(models, optimisers, strict=True):
                nn.functional.cross_entropy(model(images), labels).backward()
                optimiser.step()
                optimiser.zero_grad()
            step += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    columns = ("seed", "directions", "steps after", "distance inside", "distance", "loss", "loss of the pushed")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for seed in parser.parse_args().seeds:
        for learned in (True, False):
            for line in run(seed, learned):
                print(line, flush=True)
