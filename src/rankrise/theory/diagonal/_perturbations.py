"""Assumptions 4.3 and 4.4 by experiment: perturb a point or a run in a balanced way, and follow the flow to its end.

Symbols:
    θ^k = (u, s ⊙ u)    stationary point of stage k, balanced, |q| = u²
    (ũ, s ⊙ ũ)          its balanced perturbation, ũ = u + noise with u = √|q|, s = sgn q; independent noise on u and v
                        would move the conserved u² - v²
    c                   w ⊙ ŵ, which the perturbation of a run keeps
    A                   log(1/α); times are rescaled, t / A
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._alpha import log_inverse_alpha
from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory.diagonal._coordinates import height_of, log_products, to_tensor
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork
from rankrise.theory.diagonal._flow import FELT, Flow
from rankrise.theory.diagonal._integrator import Integrator, Piece, products_at
from rankrise.theory.diagonal._stage_records import Stages
from rankrise.theory.diagonal._transition import settle_on_support

_SAME = 1e-6  # ends are the same if they agree to this part of the largest product


@dataclass(frozen=True)
class PerturbationTest:
    """An ensemble of perturbed runs against the one they should reach.

    Attributes:
        noise: Standard deviation of the perturbation of u.
        distances: max_i |q_i - q*_i| at the end of each run, (trials,); inf for a run without a limit;
            empty if the support is empty, because there is then nothing to perturb.
        scale: max_i |q*_i|, by which the distances are judged.
    """

    noise: float
    distances: Tensor
    scale: float

    @property
    def fraction(self) -> float:
        """The part of the ensemble that reached the same end; NaN if there was nothing to perturb."""
        return float((self.distances <= _SAME * self.scale).double().mean())

    @property
    def holds(self) -> bool:
        """Whether all runs reached the same end; false if there was nothing to perturb, because that shows nothing."""
        return self.tested and self.fraction == 1.0

    @property
    def tested(self) -> bool:
        """Whether there was anything to perturb."""
        return len(self.distances) > 0

    def __str__(self) -> str:
        """Return the verdict."""
        return self.verdict

    @property
    def verdict(self) -> str:
        """Say in one sentence what the test showed.

        >>> PerturbationTest(0.05, torch.zeros(0), 0.0).verdict
        'Nothing was tested: the support is empty, so there is nothing to perturb. Test a later stationary point.'
        """
        if not self.tested:
            return (
                "Nothing was tested: the support is empty, so there is nothing to perturb. "
                "Test a later stationary point."
            )
        reached = round(self.fraction * len(self.distances))
        return f"{reached} of {len(self.distances)} perturbed runs reached the same end."


def perturb_minimum(
    net: DiagonalNetwork, stages: Stages, k: int, *, noise: float = 0.05, trials: int = 8, seed: int = 0
) -> PerturbationTest:
    """Test 4.3 at θ^k: noise on its support only, then the flow; a strict minimum takes it back.

    Args:
        net: The network.
        stages: The stages of the network in the limit.
        k: Which stationary point, 0 to K.
        noise: Standard deviation of the noise on u; the paper uses 0.05.
        trials: Size of the ensemble.
        seed: Seed of the noise.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, -4.0]))
    >>> perturb_minimum(net, theory.incremental_stages(net), 1).holds
    True
    """
    _check(stages, k, len(stages.products) - 1, noise, trials)
    q = stages.products[k].numpy()
    return _test(net, q, q, noise, trials, seed)


def perturb_transition(
    net: DiagonalNetwork, stages: Stages, k: int, *, noise: float = 0.01, trials: int = 8, seed: int = 0
) -> PerturbationTest:
    """Test 4.4 for stage k: noise at the start of phase B, on supp θ^k and i_k; the end θ^{k+1} must not change.

    Args:
        net: The network.
        stages: The stages of the network in the limit.
        k: Which stage, 0 to K - 1.
        noise: Standard deviation of the noise on u; the paper uses 0.01.
        trials: Size of the ensemble.
        seed: Seed of the noise.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, -4.0]))
    >>> perturb_transition(net, theory.incremental_stages(net), 0).holds
    True
    """
    _check(stages, k, len(stages.coordinates) - 1, noise, trials)
    start = stages.products[k].numpy().copy()
    group = list(stages.groups[k])
    gradient = net.gradient(stages.products[k]).cpu().numpy()
    start[group] = np.sign(gradient[group]) * noise**2
    return _test(net, start, stages.products[k + 1].numpy(), noise, trials, seed)


def _test(net: DiagonalNetwork, start: Array, end: Array, noise: float, trials: int, seed: int) -> PerturbationTest:
    generator = np.random.default_rng(seed)
    slope = float(net.gradient(torch.zeros(net.num_weights)).abs().max())
    support = np.flatnonzero(start)
    distances = np.zeros(trials if len(support) else 0)
    for trial in range(len(distances)):
        u = np.sqrt(np.abs(start[support])) + noise * generator.standard_normal(len(support))
        q = np.zeros_like(start)
        q[support] = np.sign(start[support]) * u**2
        reached = settle_on_support(net, q, scale=slope)
        distances[trial] = np.abs(reached.products - end).max() if reached.status is Status.FINISHED else np.inf
    return PerturbationTest(noise, to_tensor(distances), float(np.abs(end).max()))


def _check(stages: Stages, k: int, last: int, noise: float, trials: int) -> None:
    if stages.log10_alpha is not None:
        raise ValueError(
            f"`stages` must be those of the limit; got a run at log10_alpha = {stages.log10_alpha}: "
            "pass incremental_stages(net)."
        )
    if not 0 <= k <= last:
        raise ValueError(f"`k` must lie in 0 to {last}; got {k}: count stages from 0.")
    if not (noise > 0 and trials >= 1):
        raise ValueError(
            f"`noise` and `trials` must be positive; got {noise} and {trials}: the paper uses 0.05 or 0.01."
        )


@dataclass(frozen=True, eq=False)
class PerturbedFlow:
    """A flow from the moment it was perturbed, beside the flow that was not.

    Attributes:
        coordinates: The coordinates that were perturbed.
        times: Rescaled times, (n,), from the perturbation on; close together at first, where the return happens.
        products: q of the flow without the perturbation, (n, p).
        perturbed: q of the flow with the perturbation, (n, p).
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

    u_i ← √|q_i| + noise · N(0, 1), v_i ← sgn(q_i) u_i for every coordinate with |q_i| above the threshold. Coordinates
    below it go on from where they were, so that the next stages come as they would have.

    Args:
        net: The network of `flow`.
        flow: A solution.
        time: Rescaled time of the perturbation, within the flow.
        t_end: Rescaled time to follow both flows to, within the flow.
        noise: Standard deviation; the paper uses 0.05 in the middle of a stage and 0.01 at its beginning.
        threshold: |q_i| above which a coordinate is active.
        seed: Seed of the noise.
        num_points: Number of times to report.
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
    height = height_of(moved, log_c)
    up = q[active] > 0
    log_w[active] = np.where(up, height, log_c - height)
    log_w_hat[active] = log_c - log_w[active]

    wall = 0.5 * math.log(4 * FELT * rtol)
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
