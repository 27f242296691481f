"""Saddles at which every further coordinate feels no gradient, although the loss can fall if several move together.

Algorithm 1 and the flow begin at products of zero. Where h needs two products at once, as tanh(x ⊙ q_1) · q_2 does, g
is zero there and no coordinate ever starts: the run ends at a high loss without a stage. The same happens to a part of
a network while the rest is learned.

Symbols:
    idle    the coordinates whose product and whose gradient are zero
    H       ∂²L/∂q² on the idle coordinates; an eigenvalue below zero is a way down
"""

import numpy as np
import torch

from rankrise.theory._rosenbrock import Array, Index
from rankrise.theory.diagonal._coordinates import to_tensor
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork

_STEP = 1e-2  # the loss is probed at this share of the largest product, and at least at this distance
_NUM_PROBES = 8
_NEGATIVE = 1e-9  # an eigenvalue counts as negative below minus this part of the largest one
_LOWER = 1e-10  # the loss counts as lower by this part of itself
_NAMED = 1e-3  # coordinates with at least this part of the direction's largest entry are named


def find_stuck(net: DiagonalNetwork, q: Array, idle: Index) -> tuple[int, ...]:
    """Return the idle coordinates along which the loss falls although none of them feels a gradient; none at a minimum.

    The direction is the eigenvector of the most negative eigenvalue of H. Where H has no negative eigenvalue, as for
    relu(x @ q), eight random directions with a fixed seed are tried forwards and backwards.

    >>> net = DiagonalNetwork(lambda x, q: q[0] * q[1] * x, torch.ones(1), torch.ones(1), num_weights=2)
    >>> find_stuck(net, np.zeros(2), np.arange(2))
    (0, 1)
    """
    if len(idle) == 0:
        return ()
    direction = _way_down(net, q, idle)
    if direction is None:
        direction = _probed_way_down(net, q, idle)
    if direction is None:
        return ()
    named = np.abs(direction) > _NAMED * np.abs(direction).max()
    return tuple(idle[named].tolist())


def _way_down(net: DiagonalNetwork, q: Array, idle: Index) -> Array | None:
    """Return the eigenvector of the most negative eigenvalue of H, None if there is no negative one."""
    try:
        hessian = net.hessian_columns(to_tensor(q), idle.tolist()).cpu().numpy()[idle]
    except ValueError:  # h has no finite second derivative here, which the probes do not need
        return None
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    if values[0] >= -_NEGATIVE * max(float(np.abs(values).max()), np.finfo(float).tiny):
        return None
    way: Array = vectors[:, 0]
    return way


def _probed_way_down(net: DiagonalNetwork, q: Array, idle: Index) -> Array | None:
    """Return the gradient on the idle coordinates at a probe where the loss is lower, None if there is none."""
    generator = torch.Generator().manual_seed(0)
    step, loss = _STEP * max(1.0, float(np.abs(q).max())), net.loss(to_tensor(q))
    for _ in range(_NUM_PROBES):
        way = torch.randn(len(idle), generator=generator, dtype=torch.float64)
        for sense in (1.0, -1.0):
            probe = to_tensor(q)
            probe[torch.from_numpy(idle)] += sense * step * way / way.norm()
            lower, gradient = net.loss_and_gradient(probe)
            if lower < loss - _LOWER * abs(loss):
                slope: Array = gradient.cpu().numpy()[idle]
                return slope if slope.any() else way.numpy()
    return None
