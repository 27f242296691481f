"""Plain optimisers on networks with diagonal weights: what people run, and not the gradient flow.

Symbols:
    θ = (u, v)   weights; q = u ⊙ v; θ(0) = α θ0
    g            -∂L/∂q, so that -∂L/∂u = v ⊙ g and -∂L/∂v = u ⊙ g
    η, λ         learning rate and weight decay, the gradient of ½ λ ‖θ‖² added to that of L
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.theory._alpha import resolve_log10_alpha
from rankrise.theory._optimisers import DIVERGED, batches, check_descent, make_optimiser
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike, as_data
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork


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
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    seed: int = 0,
) -> Descent:
    """Run a plain optimiser on θ = (u, v) from α θ0.

    "gd": θ ← θ - η (∂L/∂θ + λ θ). "sgd": the same with L over `batch_size` samples, drawn without replacement within an
    epoch. "adam": torch's. Weight decay acts on θ and makes u² - v² shrink; the limit under it is
    `incremental_stages(net, weight_decay=λ)`. For a penalty on q, which keeps u² - v², build the network with `l2`.

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
        betas: β₁ and β₂ of "adam".
        eps: ε of "adam". Where gradients are far below ε, Adam is descent with momentum at the rate η/ε.
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
    p, n = net.num_weights, net.num_samples
    if u0.shape != (p,) or v0.shape != (p,):
        raise ValueError(
            f"`u0` and `v0` must have shape ({p},), one entry a weight; got {tuple(u0.shape)} and {tuple(v0.shape)}: "
            "draw them with `gaussian_start(net.num_weights)`."
        )
    check_descent(n, log10_alpha, learning_rate, num_steps, optimiser, every, weight_decay, batch_size, betas, eps)
    order = batches(n, batch_size, seed)
    theta = (10.0**log10_alpha * torch.stack([u0.double(), v0.double()]).to(net.device)).requires_grad_()
    torch_optimiser = make_optimiser(
        optimiser, [theta], learning_rate=learning_rate, weight_decay=weight_decay, betas=betas, eps=eps
    )

    steps, products, losses, status = [], [], [], Status.FINISHED
    for step in range(num_steps + 1):
        u, v = theta.detach()
        q = u * v
        if not bool((q.abs() < DIVERGED).all()):
            status = Status.DIVERGED
            break
        if step % every == 0 or step == num_steps:
            steps.append(step)
            products.append(q)
            losses.append(net.loss(q))
        if step < num_steps:
            index = next(order)
            g = net.gradient(q) if index is None else net.batch_gradient(q, index=index.to(net.device))
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
