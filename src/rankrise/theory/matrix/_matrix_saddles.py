"""Saddles at which products feel no gradient outside their active directions, although the loss can fall.

Where h needs two products at once, as x M_1 M_2 does, the gradient is zero at products of zero and no direction ever
starts. The diagonal case has the same.

Symbols:
    idle        products with directions that wait, and without a gradient there
    P_U, P_V    projections off the ranges of the active A and B
"""

from collections.abc import Sequence

import numpy as np
import torch

from rankrise.theory._rosenbrock import Array
from rankrise.theory.matrix._active_flow import complement
from rankrise.theory.matrix._matrix_network import MatrixNetwork

_STEP = 1e-2  # how far the loss is probed, in largest entries of the products but at least of this absolute size
_NUM_PROBES = 8
_POWER_STEPS = 30
_LOWER = 1e-9  # the loss counts as lower by this part of itself
_NAMED = 1e-3  # products with this part of the largest gradient, where the loss is lower, are named


def find_stuck_products(net: MatrixNetwork, factors: Sequence[Array], idle: Sequence[bool]) -> tuple[int, ...]:
    """Return the idle products along which the loss falls although none of them feels a gradient; none at a minimum.

    Eight random directions with a seed of their own are turned towards the most negative curvature by steps of the
    power method, which need Hessian products only, and tried in both senses.

    >>> net = MatrixNetwork(lambda x, a, b: x @ a @ b, torch.eye(2), torch.eye(2), shapes=[(2, 2), (2, 2)])
    >>> find_stuck_products(net, [np.zeros((4, 0))] * 2, [True, True])
    (0, 1)
    """
    if not any(idle):
        return ()
    bases = [complement(z, shape) for z, shape in zip(factors, net.shapes, strict=True)]
    at = [torch.from_numpy(z[:d] @ z[d:].T) for z, (d, _) in zip(factors, net.shapes, strict=True)]
    generator = np.random.default_rng(0)
    way = [generator.standard_normal((_NUM_PROBES, *shape)) for shape in net.shapes]
    way = _of_unit_length(_outside(way, bases, idle))
    shift = 0.0
    for _ in range(_POWER_STEPS):
        try:
            moved = net.hessian_products(at, [torch.from_numpy(part) for part in way])
        except ValueError:  # h has no finite second derivative here; the probes need none
            break
        turned = _outside([part.cpu().numpy() for part in moved], bases, idle)
        shift = max(shift, float(_lengths(turned).max()))
        if shift == 0:
            break
        way = _of_unit_length([shift * old - new for old, new in zip(way, turned, strict=True)])
    loss = net.loss(at)
    step = _STEP * max(1.0, *(float(m.abs().max()) for m in at))
    for k in range(_NUM_PROBES):
        for sense in (step, -step):
            there = [m + sense * torch.from_numpy(part[k]) for m, part in zip(at, way, strict=True)]
            if net.loss(there) < loss - _LOWER * abs(loss):
                slopes = _outside([g.cpu().numpy()[None] for g in net.loss_and_gradients(there)[1]], bases, idle)
                sizes = [float(np.linalg.norm(slope)) for slope in slopes]
                return tuple(j for j, size in enumerate(sizes) if size > _NAMED * max(sizes))
    return ()


def _outside(way: Sequence[Array], bases: Sequence[tuple[Array, Array]], idle: Sequence[bool]) -> list[Array]:
    """Return the parts of directions outside the active ones of idle products."""
    return [
        (u @ u.T) @ part @ (v @ v.T) if free else np.zeros_like(part)
        for part, (u, v), free in zip(way, bases, idle, strict=True)
    ]


def _of_unit_length(way: Sequence[Array]) -> list[Array]:
    lengths = np.maximum(_lengths(way), np.finfo(float).tiny)[:, None, None]
    return [part / lengths for part in way]


def _lengths(way: Sequence[Array]) -> Array:
    """Return the length of each direction over all products."""
    squares: Array = sum((np.square(part).sum(axis=(1, 2)) for part in way), np.zeros(len(way[0])))
    lengths: Array = np.sqrt(squares)
    return lengths
