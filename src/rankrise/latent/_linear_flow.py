"""Gradient descent on a linear autoencoder with a linear sub-network, on the covariance of the data.

Legend: M = D W_L … W_1 E with E (k, d), W (k, k), D (d, k): N = L + 2 factors; C (d, d) the covariance; the loss is
½ tr((I − M) C (I − M)ᵀ). Everything is in float64.
"""

import itertools
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rankrise.latent._rank_path import LatentPath
from rankrise.latent._rates import balanced_learning_rate, escape_time
from rankrise.latent._subnetwork import initial_factor

Start = Literal["aligned", "orthogonal", "normal", "default"]


@dataclass(frozen=True)
class LinearFlow:
    """What gradient descent did.

    Attributes:
        path: Spectra of the code, the singular values of W C^(1/2).
        maps: Singular values of M at the same steps, (T, k); those above ½ are learned.
        learning_rate: That was used.
    """

    path: LatentPath
    maps: Tensor
    learning_rate: float

    @property
    def num_learned(self) -> Tensor:
        """How many singular values of M are above ½, (T,)."""
        return (self.maps > 0.5).sum(1)


def linear_autoencoder_flow(
    covariance: Tensor,
    *,
    code_dim: int,
    depth: int,
    steps: int,
    start: float = 1e-2,
    init: Start = "aligned",
    learning_rate: float | None = None,
    every: int = 5,
    seed: int = 0,
) -> LinearFlow:
    """Train a linear autoencoder of N = `depth` + 2 factors by full-batch gradient descent.

    Every factor starts as s₀^(1/N) times a random (semi-)orthogonal matrix, so that each mode of M starts at s₀ or
    below. "aligned" starts the decoder at the transpose of all else, so that M₀ is s₀ times a projector and the factors
    are balanced: then `escape_time` predicts when a mode is learned. Directions of noise are learned too, later by the
    ratio of the eigenvalues.

    Args:
        covariance: C.
        code_dim: k.
        depth: L.
        steps: How many steps.
        start: s₀.
        init: Besides "aligned" and "orthogonal", "normal" has Gaussian factors of that size and "default" those of
            torch.nn.Linear, whatever s₀ is.
        learning_rate: By default that of `balanced_learning_rate`.
        every: Steps between two entries of the path.
        seed: Of the factors.

    Raises:
        ValueError: An argument is out of range.

    Warns:
        UserWarning: The strongest mode is not expected to be learned within the steps.

    >>> flow = linear_autoencoder_flow(torch.diag(torch.tensor([1.0, 0.8, 0.01, 0.01])), code_dim=3, depth=1, steps=300)
    >>> flow.num_learned[-1].item(), flow.path.ranks()[-1].item()
    (2, 2)
    """
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ValueError(f"`covariance` must be (d, d); got {tuple(covariance.shape)}.")
    if init not in get_args(Start):
        raise ValueError(f"`init` must be one of {', '.join(get_args(Start))}; got {init!r}.")
    dim, num_factors = len(covariance), depth + 2
    if not 1 <= code_dim <= dim or depth < 0 or steps < 1 or every < 1:
        raise ValueError(
            f"`code_dim` must be in 1 to {dim}, `depth` at least 0, `steps` and `every` at least 1; "
            f"got {code_dim}, {depth}, {steps} and {every}."
        )
    c = covariance.double()
    values, vectors = torch.linalg.eigh(c)
    largest = float(values[-1])
    rate = balanced_learning_rate(num_factors, start, largest=largest) if learning_rate is None else learning_rate
    expected = escape_time(num_factors, start * code_dim / dim) / (rate * largest)
    if init != "default" and expected > steps:
        warnings.warn(
            f"The strongest mode is expected to be learned after {expected:.0f} steps; there are {steps}. Take "
            "more, or a larger start.",
            stacklevel=2,
        )
    root = vectors @ torch.diag(values.clamp_min(0).sqrt())
    factors = _first_factors(dim, code_dim, depth, start ** (1 / num_factors), init, seed)
    eye = torch.eye(dim, dtype=torch.float64)
    at, losses, spectra, maps = [], [], [], []
    for step in range(steps + 1):
        before = list(itertools.accumulate(factors, lambda product, f: f @ product))  # F_j … F_1
        error = before[-1] - eye
        if step % every == 0 or step == steps:
            at.append(step)
            losses.append(0.5 * torch.trace(error @ c @ error.mT))
            spectra.append(torch.linalg.svdvals(before[-2] @ root))
            maps.append(torch.linalg.svdvals(before[-1])[:code_dim])
        behind = error @ c  # Sᵀ ∂L/∂M, S the factors after this one
        for j in reversed(range(num_factors)):
            gradient = behind @ before[j - 1].mT if j else behind
            behind = factors[j].mT @ behind
            factors[j] = factors[j] - rate * gradient
    steps_at = torch.tensor(at)
    path = LatentPath(steps_at, rate * steps_at, torch.stack(losses), torch.stack(spectra))
    return LinearFlow(path, torch.stack(maps), rate)


def _first_factors(dim: int, code_dim: int, depth: int, gain: float, init: Start, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(code_dim, dim), *[(code_dim, code_dim)] * depth, (dim, code_dim)]
    kind = "orthogonal" if init == "aligned" else init
    factors = [initial_factor(*shape, gain=gain, init=kind, generator=generator).double() for shape in shapes]
    if init == "aligned":
        encoder = list(itertools.accumulate(factors[:-1], lambda product, f: f @ product))[-1]
        factors[-1] = encoder.mT * (gain / gain ** (depth + 1))
    return factors
