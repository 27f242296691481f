"""Assumptions 4.3 and 4.4 by experiment: perturb in a balanced way, follow the flow, see where it ends.

Symbols:
    θ^k = (u, s ⊙ u)    stationary point of stage k, balanced, |q| = u²
    (ũ, s ⊙ ũ)          its balanced perturbation, ũ = u + noise on the support; noise on u and v apart
                        would move u² - v²
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._networks import DiagonalNetwork
from rankrise.theory._rosenbrock import Array
from rankrise.theory._stages import Stages
from rankrise.theory._start import to_tensor
from rankrise.theory._status import Status
from rankrise.theory._transition import settle

_SAME = 1e-6  # of the largest product: ends that agree to this are the same


@dataclass(frozen=True)
class PerturbationTest:
    """An ensemble of perturbed runs against the one they should reach.

    Attributes:
        noise: Standard deviation of the perturbation of u.
        distances: max_i |q_i - q*_i| at the end of each run, (trials,); inf for a run without a limit;
            empty if the support is, so that there was nothing to perturb.
        scale: max_i |q*_i|, to judge them by.
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
        """Whether all runs reached the same end; vacuously true if there was nothing to perturb."""
        return not self.tested or self.fraction == 1.0

    @property
    def tested(self) -> bool:
        """Whether there was anything to perturb."""
        return len(self.distances) > 0


def perturb_minimum(
    net: DiagonalNetwork, stages: Stages, k: int, *, noise: float = 0.05, trials: int = 8, seed: int = 0
) -> PerturbationTest:
    """Test 4.3 at θ^k: noise on its support only, then the flow; a strict minimum takes it back.

    Args:
        net: The network.
        stages: Its stages in the limit.
        k: Which stationary point, 0 to K.
        noise: Standard deviation of the noise on u; the paper uses 0.05.
        trials: Size of the ensemble.
        seed: Of the noise.

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
        stages: Its stages in the limit.
        k: Which stage, 0 to K - 1.
        noise: Standard deviation of the noise on u; the paper uses 0.01.
        trials: Size of the ensemble.
        seed: Of the noise.

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
        reached = settle(net, q, scale=slope)
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
