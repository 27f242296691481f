"""The lazy regime: when a network trained by gradient flow stays close to its linearisation.

Legend: a model h(w) with outputs in R^n, trained on `R(α h(w)) = ½‖α h(w) − y‖²` by `dw/dt = −α⁻² ∇_w R(α h(w))` up to
the time T; R₀ the loss at the start, L a Lipschitz constant of the Jacobian Dh, κ = (T/α) L √R₀.

The linearised model h̄(w) = h(w₀) + Dh(w₀)(w − w₀) is trained in the same way, and κ controls the distance between the
two. The constants of the bound are written from memory of a published theorem, and not quoted from its text; they agree
with every check that the tests make. The tight family is derived here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from rankrise.theory._rosenbrock import Array
from rankrise.theory._tasks import ArrayLike

TIGHT_CONSTANT = 4 * math.exp(-2)  # limit of the tight family's error over κ √R₀ for κ → 0
_RTOL, _ATOL = 1e-10, 1e-13


@dataclass(frozen=True)
class LazyFlow:
    """A model and its linearisation under the same gradient flow, at K times.

    Attributes:
        times: (K,)
        outputs: α h(w(t)), (K, n)
        linear_outputs: α h̄(w̄(t)), (K, n)
        losses: R(α h(w(t))), (K,)
        moved: ‖w(t) − w₀‖, (K,)
        weights: w(t), (K, p)
    """

    times: Array
    outputs: Array
    linear_outputs: Array
    losses: Array
    moved: Array
    weights: Tensor

    @property
    def errors(self) -> Array:
        """‖α h(w(t)) − α h̄(w̄(t))‖, (K,)."""
        return np.asarray(np.linalg.norm(self.outputs - self.linear_outputs, axis=1))


@dataclass(frozen=True)
class LazyModel:
    """A model h(w) with its start w₀ and its targets y."""

    h: Callable[[Tensor], Tensor]
    start: Tensor
    targets: Tensor


def tight_model(end: float, lipschitz: float, initial_loss: float) -> LazyModel:
    """Make the scalar model whose error is of the order of the bound, for every T, L and R₀.

    The model is `h(w) = w / √T + L w² / 2` from w₀ = 0, with the target y = √(2 R₀). To first order in κ its error at
    time T is 4e⁻² κ √R₀ = 0.541 κ √R₀: the weight of the linear model is w(t) = α √T y (1 − e^{−t/T}) / α², and the
    effect of the square term on the output, integrated up to T, is this number.

    Args:
        end: T, the time up to which the model is trained.
        lipschitz: L.
        initial_loss: R₀.

    >>> model = tight_model(10.0, 1.0, 0.5)
    >>> flow = lazy_flow(model.h, model.start, model.targets, alpha=1e4, times=[10.0])
    >>> kappa_ = kappa(1e4, 10.0, lipschitz=1.0, initial_loss=0.5)
    >>> bool(abs(flow.errors[0] / (kappa_ * 0.5**0.5) / TIGHT_CONSTANT - 1) < 0.01)
    True
    """
    _check_positive(end=end, lipschitz=lipschitz, initial_loss=initial_loss)
    slope = end**-0.5
    return LazyModel(
        lambda w: slope * w + lipschitz * w**2 / 2,
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([(2 * initial_loss) ** 0.5], dtype=torch.float64),
    )


def kappa(alpha: float, end: float, *, lipschitz: float, initial_loss: float) -> float:
    """Return `κ = (T / α) L √R₀`, which has no unit. Lazy training needs κ ≪ 1, so that α has to grow like T.

    >>> kappa(100.0, 10.0, lipschitz=2.0, initial_loss=4.0)
    0.4
    """
    _check_positive(alpha=alpha, end=end, lipschitz=lipschitz, initial_loss=initial_loss)
    return end / alpha * lipschitz * math.sqrt(initial_loss)


def linearisation_bound(kappa: float, initial_loss: float) -> float:
    """`min(6 κ √R₀, √(8 R₀))`: the most that the outputs of the two models can differ.

    The bound holds for T ≤ α² ρ² / R₀ if Dh is L-Lipschitz on the ball of radius ρ about w₀. The constant 6 is written
    from memory; the largest difference in the tests is a tenth of the bound.

    >>> linearisation_bound(0.01, 1.0)
    0.06
    """
    return min(6 * kappa * math.sqrt(initial_loss), math.sqrt(8 * initial_loss))


def lazy_flow(
    h: Callable[[Tensor], Tensor], start: Tensor, targets: Tensor, *, alpha: float, times: ArrayLike
) -> LazyFlow:
    """Train a model and its linearisation by the same gradient flow.

    Both are integrated by an explicit method of order 8 with relative tolerance 1e-10.

    Args:
        h: Takes the weights (p,), and returns the outputs (n,); it must be differentiable and work in float64.
        start: w₀, (p,).
        targets: y, (n,).
        alpha: The factor on the outputs; a larger factor makes the model lazier.
        times: Increasing, from 0 or later.

    Raises:
        ValueError: A shape or a number is out of its range, or the flow cannot be integrated.
    """
    _check_positive(alpha=alpha)
    t, w0, y = np.asarray(times, dtype=float).reshape(-1), start.detach().double(), targets.detach().double()
    if not len(t) or t[0] < 0 or (np.diff(t) <= 0).any() or not np.isfinite(t).all():
        raise ValueError(f"`times` must increase from 0 or later; got {t.tolist()}.")
    h0, j0 = h(w0).detach(), torch.func.jacrev(h)(w0).detach()
    if h0.shape != y.shape or h0.ndim != 1:
        raise ValueError(
            f"`targets` must have the shape of the outputs, (n,); got {tuple(y.shape)}, {tuple(h0.shape)}."
        )

    def velocity(time: float, w: Array) -> Array:
        weights = torch.from_numpy(w)
        outputs, pull = torch.func.vjp(h, weights)  # type: ignore[misc]
        return np.asarray(-pull(alpha * outputs - y)[0].detach().numpy() / alpha)

    solution = solve_ivp(velocity, (0.0, t[-1]), w0.numpy(), "DOP853", t, rtol=_RTOL, atol=_ATOL * float(alpha**-1))
    if not solution.success:
        raise ValueError(f"The flow must be smooth enough to be integrated; the solver says: {solution.message}")
    path = torch.from_numpy(solution.y.T)
    outputs = alpha * torch.stack([h(w).detach() for w in path])
    # The residual of the linear model is exp(−t J₀ J₀ᵀ) (α h₀ − y).
    eigen, basis = torch.linalg.eigh(j0 @ j0.mT)
    decay = torch.exp(-torch.from_numpy(t)[:, None] * eigen)
    linear = y + (decay * (basis.mT @ (alpha * h0 - y))) @ basis.mT
    losses = 0.5 * (outputs - y).square().sum(1)
    moved = (path - w0).norm(dim=1)
    return LazyFlow(t, outputs.numpy(), linear.numpy(), losses.numpy(), moved.numpy(), path)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{name}` must be positive; got {value}.")
