"""Gradient flow of an attention head with full matrices: singular values are learned one after another as well.

Symbols:
    W_K, W_Q, W_V, W_O   weights, each (d, r); θ(0) = α θ0
    A, B                 W_K W_Qᵀ and W_V W_Oᵀ, (d, d); h(X) = softmax(X A Xᵀ) X B
    L                    mean over samples of ½‖Y - h(X)‖²
    G_A, G_B             -∂L/∂A and -∂L/∂B; dW_K/dt = G_A W_Q, dW_Q/dt = G_Aᵀ W_K, dW_V/dt = G_B W_O, dW_O/dt = G_Bᵀ W_V
    C_KQ, C_VO           W_KᵀW_K - W_QᵀW_Q and W_VᵀW_V - W_OᵀW_O, constant along the flow
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankrise.theory._status import Status
from rankrise.theory._tasks import CHUNK_BYTES, ArrayLike, as_data

_SMALLEST_ALPHA = 1e-16


class HeadWeights(NamedTuple):
    """The four matrices of a head, each (d, r): head(X) = softmax(X key queryᵀ Xᵀ) X value outputᵀ."""

    key: Tensor
    query: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class MatrixFlow:
    """The gradient flow of a full-matrix head at the requested times.

    Attributes:
        times: Rescaled times t / log(1/α), (T,).
        kq_singular_values: Singular values of W_K W_Qᵀ, (T, min(d, r)), descending.
        vo_singular_values: Singular values of W_V W_Oᵀ, (T, min(d, r)), descending.
        losses: L, (T,).
        kq_drift: ‖C_KQ(t) - C_KQ(0)‖ / (‖W_K(t)‖² + ‖W_Q(t)‖²) in Frobenius norms, (T,); zero for the exact flow.
        vo_drift: The same for C_VO.
        weights: The matrices at the last of `times`.
        alpha: α.
        num_gradients: Gradients computed.
        num_steps: Steps accepted by the error control.
        status: How the flow ended, with a remedy; the arrays end where the integration stopped.
    """

    times: Tensor
    kq_singular_values: Tensor
    vo_singular_values: Tensor
    losses: Tensor
    kq_drift: Tensor
    vo_drift: Tensor
    weights: HeadWeights
    alpha: float
    num_gradients: int
    num_steps: int
    status: Status


def solve_matrix_flow(
    x: ArrayLike,
    y: ArrayLike,
    weights: Sequence[ArrayLike] | None = None,
    *,
    alpha: float,
    t_end: float,
    seed: int | None = None,
    head_dim: int | None = None,
    times: Sequence[float] | Tensor | None = None,
    rtol: float = 1e-8,
    max_steps: int = 20_000,
) -> MatrixFlow:
    """Integrate the gradient flow of softmax(X W_K W_Qᵀ Xᵀ) X W_V W_Oᵀ from α θ0 under mean squared error.

    dW_K/dt = G_A W_Q, dW_Q/dt = G_Aᵀ W_K, dW_V/dt = G_B W_O, dW_O/dt = G_Bᵀ W_V, with gradients in closed form. The
    method is Dormand and Prince's of order 8 in float64, absolute tolerance `rtol` α: the problem is mildly stiff at
    most, and an implicit method would factor a matrix of 4dr rows.

    Args:
        x: Tokens, (N, n, d).
        y: Targets, (N, n, d).
        weights: θ0 = (W_K, W_Q, W_V, W_O) before the factor α, each (d, r). Give either these or `seed`.
        alpha: Scale of the initialisation, from 1e-16 to below 1.
        t_end: Rescaled time t / log(1/α) at which to stop.
        seed: Draw θ0 with standard normal entries from a generator with this seed.
        head_dim: Dimension r, used with `seed`; d if not given.
        times: Rescaled times to report, increasing, within [0, t_end]; 201 evenly spaced ones if not given.
        rtol: Tolerance of a step, relative to each entry.
        max_steps: Largest number of steps; the status says so when it is reached.

    Returns:
        Singular values, loss and the drift of the conserved quantities at `times`, the last weights, and statistics.

    Raises:
        ValueError: If an argument breaks its rule; in particular below α = 1e-16.

    >>> from rankrise.theory import teacher_task
    >>> x, y, _ = teacher_task(samples=20, tokens=3, dim=2)
    >>> flow = solve_matrix_flow(x, y, alpha=1e-3, t_end=3.0, seed=0)
    >>> flow.status.value, flow.vo_singular_values.shape
    ('finished', torch.Size([201, 2]))
    >>> bool(flow.vo_drift.max() < 1e-7)
    True
    """
    from scipy.integrate import DOP853

    x, y, start = _checked_data(x, y, weights, seed, head_dim)
    grid = _checked_times(alpha, t_end, times, rtol)
    clock = -math.log(alpha)  # log(1/α)
    head = _Head(x, y, start.shape)

    solver: Any = DOP853(
        head.slope, 0.0, (alpha * start).flatten().numpy(), t_end * clock, rtol=rtol, atol=rtol * alpha
    )
    states, status = [alpha * start] * int((grid <= 0).sum()), Status.FINISHED
    num_steps = 0
    while len(states) < len(grid):
        if num_steps == max_steps:
            status = Status.MAX_STEPS
            break
        solver.step()
        if solver.status == "failed":
            status = Status.STALLED
            break
        num_steps += 1
        # The last step ends at t_end itself, which rounding may put an ulp before the last requested time.
        due = grid.tolist() if solver.status == "finished" else [t for t in grid.tolist() if t * clock <= solver.t]
        if len(due) > len(states):
            between = solver.dense_output()
            states += [
                torch.from_numpy(between(min(t * clock, solver.t))).reshape(start.shape) for t in due[len(states) :]
            ]
    # The start heads the list of states: the drift is measured from it, whether or not its time was asked for.
    path = torch.stack([alpha * start, *states])
    return _summarise(head, grid[: len(states)], path, alpha, int(solver.nfev), num_steps, status)


class _Head:
    """The slope of the flow, for a solver that works on flat numpy arrays."""

    def __init__(self, x: Tensor, y: Tensor, shape: torch.Size) -> None:
        self.shape = shape
        chunk = max(1, CHUNK_BYTES // (x[0].numel() * x.element_size()))
        self.num_samples = len(x)
        self.chunks = [(x[i : i + chunk], y[i : i + chunk]) for i in range(0, len(x), chunk)]

    def slope(self, _: float, theta: Any) -> Any:
        w_k, w_q, w_v, w_o = torch.from_numpy(theta).reshape(self.shape)
        _, g_a, g_b = self.loss_and_gradient(w_k @ w_q.T, w_v @ w_o.T)
        return torch.stack([g_a @ w_q, g_a.T @ w_k, g_b @ w_o, g_b.T @ w_v]).flatten().numpy()

    def loss_and_gradient(self, a: Tensor, b: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return L, G_A = -∂L/∂A and G_B = -∂L/∂B.

        Per sample, with S = softmax(X A Xᵀ), M = S X, R = Y - M B, E = R Bᵀ Xᵀ and P = S ⊙ (E - rowsum(S ⊙ E)):
        G_A = Xᵀ P X and G_B = Mᵀ R.
        """
        loss, g_a, g_b = 0.0, torch.zeros_like(a), torch.zeros_like(b)
        for x, y in self.chunks:
            s = torch.softmax(x @ a @ x.mT, dim=-1)  # (N, n, n)
            m = s @ x  # (N, n, d)
            r = y - m @ b
            e = r @ b.T @ x.mT  # (N, n, n)
            p = s * (e - (s * e).sum(-1, keepdim=True))
            loss += 0.5 * float(r.square().sum())
            g_a += x.flatten(0, 1).T @ (p @ x).flatten(0, 1)
            g_b += m.flatten(0, 1).T @ r.flatten(0, 1)
        return loss / self.num_samples, g_a / self.num_samples, g_b / self.num_samples


def _summarise(
    head: _Head, times: Tensor, path: Tensor, alpha: float, num_gradients: int, num_steps: int, status: Status
) -> MatrixFlow:
    w_k, w_q, w_v, w_o = path[1:].unbind(1)
    a, b = w_k @ w_q.mT, w_v @ w_o.mT
    rank = min(path.shape[-2:])
    return MatrixFlow(
        times=times,
        kq_singular_values=torch.linalg.svdvals(a)[:, :rank],
        vo_singular_values=torch.linalg.svdvals(b)[:, :rank],
        losses=torch.tensor([head.loss_and_gradient(*pair)[0] for pair in zip(a, b, strict=True)], dtype=a.dtype),
        kq_drift=_drift(path[:, 0], path[:, 1]),
        vo_drift=_drift(path[:, 2], path[:, 3]),
        weights=HeadWeights(*path[-1].clone()),
        alpha=alpha,
        num_gradients=num_gradients,
        num_steps=num_steps,
        status=status,
    )


def _drift(left: Tensor, right: Tensor) -> Tensor:
    """Return how far leftᵀ left - rightᵀ right has moved since the first entry, relative to its terms."""
    c = left.mT @ left - right.mT @ right
    size = left.square().sum(dim=(-2, -1)) + right.square().sum(dim=(-2, -1))
    drift: Tensor = torch.linalg.matrix_norm(c - c[0]) / size
    return drift[1:]


def _checked_data(
    x: ArrayLike, y: ArrayLike, weights: Sequence[ArrayLike] | None, seed: int | None, head_dim: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    x, y = as_data("x", x), as_data("y", y)
    if x.dim() != 3 or y.shape != x.shape or x.numel() == 0:
        raise ValueError(
            f"`x` must have shape (N, n, d) and `y` the same; got {tuple(x.shape)} and {tuple(y.shape)}: "
            "stack samples along the first axis, tokens along the second."
        )
    if (weights is None) == (seed is None):
        given = "neither" if weights is None else "both"
        raise ValueError(f"Exactly one of `weights` and `seed` must be given; got {given}: θ0 comes from one of them.")
    d = x.shape[2]
    if weights is None:
        assert seed is not None
        r = d if head_dim is None else head_dim
        if r < 1:
            raise ValueError(f"`head_dim` must be at least 1; got {r}: it is the number of columns of each matrix.")
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(4, d, r, generator=generator, dtype=torch.float64)
    else:
        matrices = [as_data("weights", weight) for weight in weights]
        shapes = [tuple(matrix.shape) for matrix in matrices]
        if len(shapes) != 4 or len(set(shapes)) != 1 or len(shapes[0]) != 2 or shapes[0][0] != d:
            raise ValueError(
                f"`weights` must be W_K, W_Q, W_V, W_O, all of one shape ({d}, r); got shapes {shapes}: "
                "put the token dimension first."
            )
        if head_dim is not None and head_dim != shapes[0][1]:
            raise ValueError(
                f"`head_dim` must be the columns of `weights`; got {head_dim} and {shapes[0][1]}: leave it out."
            )
        start = torch.stack([matrix.double().cpu() for matrix in matrices])
    for name, data in (("x", x), ("y", y), ("weights", start)):
        if not bool(data.isfinite().all()):
            raise ValueError(f"`{name}` must be finite; got NaN or infinity: drop or repair those entries.")
    return x.double().cpu(), y.double().cpu(), start


def _checked_times(alpha: float, t_end: float, times: Sequence[float] | Tensor | None, rtol: float) -> Tensor:
    if not 0 < alpha < 1:
        raise ValueError(f"`alpha` must be positive and below 1; got {alpha}: it is the scale of the initialisation.")
    if alpha < _SMALLEST_ALPHA:
        raise ValueError(
            f"`alpha` must be at least {_SMALLEST_ALPHA:g} for full matrices, because below it float64 rounding of the "
            f"learned directions exceeds those not yet learned and the last stages come at wrong times; got {alpha:g}: "
            "use a larger alpha, or `solve_flow` on a head with diagonal weights, which has no such limit."
        )
    if not 0 < t_end < math.inf:
        raise ValueError(f"`t_end` must be positive and finite; got {t_end}: it is a rescaled time t / log(1/α).")
    if not 1e-13 <= rtol < 1:
        raise ValueError(f"`rtol` must be from 1e-13 to below 1; got {rtol}: float64 cannot do better.")
    if times is None:
        return torch.linspace(0, t_end, 201, dtype=torch.float64)
    grid = torch.as_tensor(times, dtype=torch.float64)
    if grid.dim() != 1 or len(grid) == 0 or bool((grid.diff() <= 0).any()) or not 0 <= grid[0] <= grid[-1] <= t_end:
        raise ValueError(
            f"`times` must be increasing rescaled times within [0, t_end] = [0, {t_end}]; got {grid.tolist()}: "
            "sort them, or raise `t_end`."
        )
    return grid
