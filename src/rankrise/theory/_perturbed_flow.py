"""A run that is pushed aside and left to itself: Assumptions 4.3 and 4.4 as the paper's figures test them, at finite α.

Symbols:
    (ũ, s ⊙ ũ)   balanced perturbation of active coordinates, ũ = u + noise with u = √|q|, s = sgn q
    c            w ⊙ ŵ, kept: noise on u and v apart would move it
    A            log(1/α); times are rescaled, t / A
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._flow import _FELT, Flow
from rankrise.theory._integrator import Integrator, Piece, log_products, products_at
from rankrise.theory._networks import DiagonalNetwork
from rankrise.theory._rosenbrock import Array
from rankrise.theory._start import log_inverse_alpha, to_tensor
from rankrise.theory._status import Status


@dataclass(frozen=True, eq=False)
class PerturbedFlow:
    """A flow from the moment it was perturbed, beside the flow that was not.

    Attributes:
        coordinates: Those that were perturbed.
        times: Rescaled times, (n,), from the perturbation on; close together at first, where the return happens.
        products: q of the flow without the perturbation, (n, p).
        perturbed: q of the flow with it, (n, p).
        status: How the perturbed flow ended.
    """

    coordinates: tuple[int, ...]
    times: Tensor
    products: Tensor
    perturbed: Tensor
    status: Status


def perturb_flow(
    net: DiagonalNetwork,
    flow: Flow,
    *,
    time: float,
    t_end: float,
    noise: float,
    threshold: float = 1e-5,
    seed: int = 0,
    num_points: int = 101,
    rtol: float = 1e-3,
    max_steps: int = 20_000,
) -> PerturbedFlow:
    """Add noise to the active coordinates of a flow at one time, and follow both flows.

    u_i ← √|q_i| + noise · N(0, 1), v_i ← sgn(q_i) u_i for every coordinate with |q_i| above the threshold; what is
    below goes on from where it was, so that the next stages come as they would have.

    Args:
        net: The network of `flow`.
        flow: A solution.
        time: Rescaled time of the perturbation, within the flow.
        t_end: Rescaled time to follow both flows to, within the flow.
        noise: Standard deviation; the paper uses 0.05 in the middle of a stage and 0.01 at its beginning.
        threshold: Of |q_i|.
        seed: Of the noise.
        num_points: Times to report.
        rtol: As for `solve_flow`.
        max_steps: As for `solve_flow`.

    Raises:
        ValueError: If an argument breaks its rule.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, 4.0]))
    >>> flow = theory.solve_flow(net, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]), log10_alpha=-32, t_end=0.9)
    >>> pushed = perturb_flow(net, flow, time=0.7, t_end=0.8, noise=0.05)
    >>> pushed.coordinates, bool((pushed.perturbed[0] - pushed.products[0]).abs().max() > 0.01)
    ((1,), True)
    >>> bool((pushed.perturbed[-1] - pushed.products[-1]).abs().max() < 1e-4)
    True
    """
    if not 0 <= time < t_end <= float(flow.times[-1]):
        raise ValueError(
            f"`time` and `t_end` must lie in order in the run, [0, {float(flow.times[-1]):.6g}]; "
            f"got {time} and {t_end}: solve the flow further, or perturb it earlier."
        )
    if not (0 < noise < math.inf and num_points >= 2):
        raise ValueError(
            f"`noise` must be positive and `num_points` at least 2; got {noise} and {num_points}: the paper uses 0.05."
        )
    inverse = log_inverse_alpha(flow.log10_alpha)
    log_w, log_w_hat = _logs_at(flow._pieces, time * inverse)
    q = log_products(log_w, log_w_hat)
    active = np.flatnonzero(np.abs(q) > threshold)
    shift = noise * np.random.default_rng(seed).standard_normal(len(active))
    moved = np.maximum((np.sqrt(np.abs(q[active])) + shift) ** 2, threshold**2)  # |q̃|; not quite zero
    log_c = (log_w + log_w_hat)[active]
    height = 0.5 * np.log(2 * moved + np.hypot(2 * moved, np.exp(log_c)))  # w² = 2|q| + √(4q² + c²)
    up = q[active] > 0
    log_w[active] = np.where(up, height, log_c - height)
    log_w_hat[active] = log_c - log_w[active]

    wall = 0.5 * math.log(4 * _FELT * rtol)
    integrator = Integrator(net, log_w, log_w_hat, wall=wall, rtol=rtol)
    pieces, status = [], Status.FINISHED
    while integrator.t < (t_end - time) * inverse:
        piece = integrator.step((t_end - time) * inverse, max_steps)
        if piece is None:
            status = Status.MAX_STEPS if integrator.num_steps >= max_steps else Status.STALLED
            break
        pieces.append(piece)
    since = (integrator.t / inverse) * np.linspace(0, 1, num_points) ** 3
    times = torch.from_numpy(np.minimum(time + since, t_end))
    perturbed = (
        products_at(pieces, since * inverse) if pieces else log_products(log_w, log_w_hat)[None].repeat(num_points, 0)
    )
    return PerturbedFlow(
        coordinates=tuple(active.tolist()),
        times=times,
        products=flow.at(times),
        perturbed=to_tensor(perturbed),
        status=status,
    )


def _logs_at(pieces: tuple[Piece, ...], t: float) -> tuple[Array, Array]:
    """Return log w and log ŵ at a time of the path."""
    piece = next((piece for piece in pieces if piece.end >= t), pieces[-1])
    s = piece.path.at(t - piece.time)
    return piece.log_w + s, piece.log_w_hat - s
