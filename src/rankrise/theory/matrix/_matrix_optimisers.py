"""Plain optimisers on networks with full matrices: what people run, and not the gradient flow.

Symbols:
    A_j, B_j    factors of the products M_j = A_j B_jᵀ; θ(0) = α θ0
    G_j         -∂L/∂M_j, so that -∂L/∂A_j = G_j B_j and -∂L/∂B_j = G_jᵀ A_j
    η, λ        learning rate and weight decay, the gradient of ½ λ ‖θ‖² added to that of L
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.theory._alpha import resolve_log10_alpha
from rankrise.theory._optimisers import DIVERGED, batches, check_descent, make_optimiser
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike
from rankrise.theory.matrix._matrix_network import MatrixNetwork
from rankrise.theory.matrix._matrix_stage_records import checked_start, num_columns


@dataclass(frozen=True, eq=False)
class MatrixDescent:
    """A run of gradient descent, stochastic gradient descent or Adam on full matrices; none of them is the flow.

    Attributes:
        optimiser: "gd", "sgd" or "adam".
        learning_rate: η.
        log10_alpha: log10 of α.
        steps: Steps taken when each row was recorded, (T,), from 0.
        times: η steps / log(1/α), (T,), to be laid beside the rescaled time of the flow; None for Adam, whose step size
            does not follow the gradient, so that no such time exists.
        singular_values: Singular values of each product, descending, one (T, min(d, d', r)) per product.
        losses: L on all samples, without weight decay, (T,).
        factors: The last A_1, B_1, A_2, B_2, ...
        status: How the run ended, with a remedy; the arrays end where the run stopped.
    """

    optimiser: str
    learning_rate: float
    log10_alpha: float
    steps: Tensor
    times: Tensor | None
    singular_values: tuple[Tensor, ...]
    losses: Tensor
    factors: tuple[Tensor, ...]
    status: Status


def matrix_descend(
    net: MatrixNetwork,
    start: Sequence[ArrayLike],
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
) -> MatrixDescent:
    """Run a plain optimiser on factors of full matrices from α θ0, as `descend` does on diagonal weights.

    Args:
        net: The network.
        start: The factors before the factor α, two for each product: A_1, B_1, A_2, B_2, ..., each (d, r).
        alpha: α, between 0 and 1; either this or log10_alpha.
        log10_alpha: log10 α, from -300 to below 0.
        learning_rate: η.
        num_steps: Number of steps to take.
        optimiser: "gd", "sgd" or "adam".
        every: Record after this many steps; the start and the last step are always recorded.
        weight_decay: λ.
        batch_size: Number of samples in a step of "sgd"; the last batch of an epoch may be smaller.
        betas: β₁ and β₂ of "adam".
        eps: ε of "adam". Where gradients are far below it, Adam is descent with momentum at the rate η/ε.
        seed: Seed of the order of the samples in "sgd".

    Raises:
        ValueError: If an argument breaks its rule.

    >>> from rankrise import theory
    >>> net = theory.matrix_sensing(2 * torch.eye(4).reshape(4, 2, 2), [4.0, 0.0, 0.0, 8.0])
    >>> run = matrix_descend(net, [torch.eye(2)] * 2, log10_alpha=-3, learning_rate=0.05, num_steps=400)
    >>> [round(s, 4) for s in run.singular_values[0][-1].tolist()], run.status.value
    ([4.0, 2.0], 'finished')
    """
    log10_alpha = resolve_log10_alpha(alpha, log10_alpha)
    check_descent(
        net.num_samples, log10_alpha, learning_rate, num_steps, optimiser, every, weight_decay, batch_size, betas, eps
    )
    stacked = checked_start(start, net.shapes, num_columns(start, len(net.shapes)))
    theta = [
        (10.0**log10_alpha * torch.from_numpy(part)).to(net.device).requires_grad_()
        for z, (d, _) in zip(stacked, net.shapes, strict=True)
        for part in (z[:d], z[d:])
    ]
    torch_optimiser = make_optimiser(
        optimiser, theta, learning_rate=learning_rate, weight_decay=weight_decay, betas=betas, eps=eps
    )
    order = batches(net.num_samples, batch_size, seed)
    steps, spectra, losses, status = [], [], [], Status.FINISHED
    for step in range(num_steps + 1):
        pairs = [(a.detach(), b.detach()) for a, b in zip(theta[::2], theta[1::2], strict=True)]
        products = [a @ b.T for a, b in pairs]
        if not all(bool((m.abs() < DIVERGED).all()) for m in products):
            status = Status.DIVERGED
            break
        if step % every == 0 or step == num_steps:
            steps.append(step)
            spectra.append(
                [torch.linalg.svdvals(m)[: a.shape[1]].cpu() for m, (a, _) in zip(products, pairs, strict=True)]
            )
            losses.append(net.loss(products))
        if step < num_steps:
            index = next(order)
            gradients = (
                net.loss_and_gradients(products)[1]
                if index is None
                else net.batch_gradients(products, index.to(net.device))
            )
            for j, ((a, b), g) in enumerate(zip(pairs, gradients, strict=True)):
                theta[2 * j].grad, theta[2 * j + 1].grad = -(g @ b), -(g.T @ a)
            torch_optimiser.step()
    times = learning_rate * torch.tensor(steps, dtype=torch.float64) / (-log10_alpha * math.log(10))
    return MatrixDescent(
        optimiser=optimiser,
        learning_rate=learning_rate,
        log10_alpha=log10_alpha,
        steps=torch.tensor(steps),
        times=None if optimiser == "adam" else times,
        singular_values=tuple(torch.stack(path) for path in zip(*spectra, strict=True)),
        losses=torch.tensor(losses, dtype=torch.float64),
        factors=tuple(part.detach().cpu().clone() for part in theta),
        status=status,
    )
