"""Plain optimisers on networks with diagonal weights: what people run, and not the gradient flow.

Symbols:
    θ = (u, v)   weights; q = u ⊙ v; θ(0) = α θ0
    g            -∂L/∂q, so that -∂L/∂u = v ⊙ g and -∂L/∂v = u ⊙ g
    η, λ         learning rate and weight decay, the gradient of ½ λ ‖θ‖² added to that of L
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise._arguments import did_you_mean
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike, as_data
from rankrise.theory.diagonal._coordinates import resolve_log10_alpha
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork

_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "gd": torch.optim.SGD,
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
}
_SMALLEST_LOG10_ALPHA = -300.0
_DIVERGED = 1e100  # a product as large as this has diverged; float64 still holds its square


@dataclass(frozen=True, eq=False)
class Descent:
    """A run of gradient descent, stochastic gradient descent or Adam; none of them is the gradient flow.

    Attributes:
        optimiser: "gd", "sgd" or "adam".
        learning_rate: η.
        log10_alpha: log10 of α.
        steps: Steps taken when each row was recorded, (T,), from 0.
        times: η steps / log(1/α), (T,), to be laid beside the rescaled time of the flow; None for Adam, whose step size
            does not follow the gradient, so that no such time exists.
        products: q, (T, p).
        losses: L(q) on all samples, without weight decay, (T,).
        u: Last u, (p,).
        v: Last v, (p,).
        status: How the run ended, with a remedy; the arrays end where the run stopped.
    """

    optimiser: str
    learning_rate: float
    log10_alpha: float
    steps: Tensor
    times: Tensor | None
    products: Tensor
    losses: Tensor
    u: Tensor
    v: Tensor
    status: Status


def descend(
    net: DiagonalNetwork,
    u0: ArrayLike,
    v0: ArrayLike,
    *,
    alpha: float | None = None,
    log10_alpha: float | None = None,
    learning_rate: float,
    num_steps: int,
    optimiser: str = "gd",
    every: int = 1,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    seed: int = 0,
) -> Descent:
    """Run a plain optimiser on θ = (u, v) from α θ0.

    "gd": θ ← θ - η (∂L/∂θ + λ θ). "sgd": the same with L over `batch_size` samples, drawn without replacement within an
    epoch. "adam": torch's, with its default β and ε. Weight decay acts on θ: it makes u² - v² shrink, so that neither
    the conservation law nor Algorithm 1 applies; for a penalty they allow, build the network with `l2`.

    Args:
        net: The network.
        u0: θ0, before the factor α, (p,).
        v0: θ0, before the factor α, (p,).
        alpha: The scale α of the initialisation, from 1e-300 to below 1; either this or log10_alpha.
        log10_alpha: log10 α, from -300 to below 0.
        learning_rate: η.
        num_steps: Number of steps to take.
        optimiser: "gd", "sgd" or "adam".
        every: Record after this many steps; the start and the last step are always recorded.
        weight_decay: λ.
        batch_size: Number of samples in a step of "sgd"; the last batch of an epoch may be smaller.
        seed: Seed of the order of the samples in "sgd".

    Returns:
        The recorded path, the last weights, and a status.

    Raises:
        ValueError: If an argument breaks its rule.

    >>> from rankrise.theory import linear
    >>> net = linear(torch.eye(2), torch.tensor([2.0, 4.0]))
    >>> run = descend(net, torch.ones(2), torch.zeros(2), log10_alpha=-3, learning_rate=0.1, num_steps=400)
    >>> [round(q, 4) for q in run.products[-1].tolist()], run.status.value
    ([2.0, 4.0], 'finished')
    """
    u0, v0, log10_alpha = as_data("u0", u0), as_data("v0", v0), resolve_log10_alpha(alpha, log10_alpha)
    _check(net, u0, v0, log10_alpha, learning_rate, num_steps, optimiser, every, weight_decay, batch_size)
    gradients = _gradients(net, batch_size if optimiser == "sgd" else None, seed)
    theta = (10.0**log10_alpha * torch.stack([u0.double(), v0.double()]).to(net.device)).requires_grad_()
    torch_optimiser = _OPTIMISERS[optimiser]([theta], lr=learning_rate, weight_decay=weight_decay)

    steps, products, losses, status = [], [], [], Status.FINISHED
    for step in range(num_steps + 1):
        u, v = theta.detach()
        q = u * v
        if not bool((q.abs() < _DIVERGED).all()):
            status = Status.DIVERGED
            break
        if step % every == 0 or step == num_steps:
            steps.append(step)
            products.append(q)
            losses.append(net.loss(q))
        if step < num_steps:
            g = next(gradients)(q)
            theta.grad = -torch.stack([v * g, u * g])
            torch_optimiser.step()
    times = learning_rate * torch.tensor(steps, dtype=torch.float64) / (-log10_alpha * math.log(10))
    return Descent(
        optimiser=optimiser,
        learning_rate=learning_rate,
        log10_alpha=log10_alpha,
        steps=torch.tensor(steps),
        times=None if optimiser == "adam" else times,
        products=torch.stack(products),
        losses=torch.tensor(losses, dtype=torch.float64),
        u=theta.detach()[0].clone(),
        v=theta.detach()[1].clone(),
        status=status,
    )


def _gradients(net: DiagonalNetwork, batch_size: int | None, seed: int) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield, step by step, the function g to follow: of all samples, or of the next batch."""
    if batch_size is None:
        while True:
            yield net.gradient
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(net.num_samples, generator=generator).to(net.device)
        for start in range(0, net.num_samples, batch_size):
            yield functools.partial(net.batch_gradient, index=order[start : start + batch_size])


def _check(
    net: DiagonalNetwork,
    u0: Tensor,
    v0: Tensor,
    log10_alpha: float,
    learning_rate: float,
    num_steps: int,
    optimiser: str,
    every: int,
    weight_decay: float,
    batch_size: int | None,
) -> None:
    p = net.num_weights
    if u0.shape != (p,) or v0.shape != (p,):
        raise ValueError(
            f"`u0` and `v0` must have shape ({p},), one entry a weight; got {tuple(u0.shape)} and {tuple(v0.shape)}: "
            "draw them with `gaussian_start(net.num_weights)`."
        )
    if not _SMALLEST_LOG10_ALPHA <= log10_alpha < 0:
        raise ValueError(
            f"`log10_alpha` must be from {_SMALLEST_LOG10_ALPHA:g} to below 0 for an optimiser, which holds (u, v) in "
            f"float64; got {log10_alpha}: use `solve_flow`, which works at any α."
        )
    if optimiser not in _OPTIMISERS:
        hint = did_you_mean(optimiser, _OPTIMISERS) or "Choose one of them."
        raise ValueError(f"`optimiser` must be one of {', '.join(map(repr, _OPTIMISERS))}; got {optimiser!r}. {hint}")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"`learning_rate` must be positive and finite; got {learning_rate}: try 0.01.")
    if num_steps < 0 or every < 1:
        raise ValueError(
            f"`num_steps` must be at least 0 and `every` at least 1; got {num_steps} and {every}: count whole steps."
        )
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"`weight_decay` must be zero or positive; got {weight_decay}: it is the λ of ½ λ ‖θ‖².")
    if (optimiser == "sgd") != (batch_size is not None):
        raise ValueError(
            f"`batch_size` must be given for 'sgd' and only there; got {batch_size} for {optimiser!r}: "
            "use 'gd' for all samples at each step."
        )
    if batch_size is not None and not 1 <= batch_size <= net.num_samples:
        raise ValueError(f"`batch_size` must be from 1 to N = {net.num_samples}; got {batch_size}: pick one between.")
