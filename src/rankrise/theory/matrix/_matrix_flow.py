"""Gradient flow of networks with full matrices at any α: singular values are learned one after another as well.

Symbols:
    A_j, B_j    factors of the products M_j = A_j B_jᵀ, (d_j, r_j) and (d'_j, r_j); θ(0) = α θ0
    G_j         -∂L/∂M_j: dA_j/dt = G_j B_j, dB_j/dt = G_jᵀ A_j
    C_j         A_jᵀA_j - B_jᵀB_j, constant along the flow
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._alpha import log10_alpha_of_matrices
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike
from rankrise.theory.matrix._flow_record import Crossings, MatrixFlow, spectrum
from rankrise.theory.matrix._graded_flow import GradedFlow
from rankrise.theory.matrix._matrix_algorithm import matrix_stages
from rankrise.theory.matrix._matrix_network import MatrixNetwork
from rankrise.theory.matrix._matrix_stage_records import check_independent, checked_start, num_columns

_PLAIN_LOG10_ALPHA = -16.0


def solve_matrix_flow(
    net: MatrixNetwork,
    start: Sequence[ArrayLike],
    *,
    alpha: float | None = None,
    log10_alpha: float | None = None,
    t_end: float | None = None,
    times: Sequence[float] | Tensor | None = None,
    threshold: float = 1e-3,
    rtol: float = 1e-9,
    max_steps: int = 100_000,
    method: str = "graded",
) -> MatrixFlow:
    """Integrate the gradient flow dA_j/dt = G_j B_j, dB_j/dt = G_jᵀ A_j from α θ0, at any α.

    Columns are held as units and logarithms of lengths, and rotated among themselves so that they stay orthogonal: the
    flow does not see the rotation, and a column keeps its relative accuracy however small it is. Transitions are
    integrated by Dormand and Prince's method of order 8; once the long columns rest, Newton's method finds the
    stationary point, and the plateau is crossed at once, because the short columns grow exactly exponentially there. So
    10^-1000000 costs about as much as 1e-64. A last direction of a square product that turns back is followed by
    volumes; where that is not possible the status is SIGN_FLIP.

    Args:
        net: The network.
        start: The factors before the factor α, two for each product: A_1, B_1, A_2, B_2, ..., each (d, r).
        alpha: α, between 0 and 1; either this or log10_alpha.
        log10_alpha: log10 α, negative.
        t_end: Rescaled time t / log(1/α) at which to stop. If None, the last of `times`; without them 1.2 times the
            last stage of the limit, which `matrix_stages` finds first.
        times: Rescaled times to report, increasing, within [0, t_end]; 201 evenly spaced ones if not given.
        threshold: Singular value at which a direction counts as active, at least 1e-12.
        rtol: Tolerance of a step.
        max_steps: Largest number of steps; the status says so when it is reached.
        method: "graded", or "plain" for Dormand and Prince's method on the factors themselves, in float64 with absolute
            tolerance `rtol` α. It is a check, and refuses α below 1e-16, where rounding of the learned directions
            exceeds those not yet learned.

    Returns:
        Singular values, loss and the drift of the conserved quantities at `times`, stage times, the last factors, and
        statistics.

    Raises:
        ValueError: If an argument breaks its rule, or h is not finite on the way.

    >>> from rankrise import theory
    >>> net = theory.matrix_sensing(2 * torch.eye(4).reshape(4, 2, 2), [4.0, 0.0, 0.0, 8.0])
    >>> start = torch.tensor([[1.0, 0.5], [-0.5, 1.0]]), torch.tensor([[0.3, 0.2], [0.1, 0.9]])
    >>> flow = solve_matrix_flow(net, start, log10_alpha=-1000, t_end=0.75)
    >>> flow.status.value, [round(t, 3) for t in flow.stage_times.tolist()]
    ('finished', [0.25, 0.499])
    """
    log10_alpha = log10_alpha_of_matrices(alpha, log10_alpha)
    if method not in ("graded", "plain"):
        raise ValueError(f'`method` must be "graded" or "plain"; got {method!r}: "graded" is right for every α.')
    if method == "plain" and log10_alpha < _PLAIN_LOG10_ALPHA:
        raise ValueError(
            f"`log10_alpha` must be at least {_PLAIN_LOG10_ALPHA:g} for the plain method, because below it float64 "
            "rounding of the learned directions exceeds those not yet learned; "
            f'got {log10_alpha:g}: use method="graded".'
        )
    if not 1e-12 <= threshold < math.inf:
        raise ValueError(f"`threshold` must be at least 1e-12; got {threshold}: 1e-3 is usual.")
    if max_steps < 1:
        raise ValueError(f"`max_steps` must be at least 1; got {max_steps}: 100000 is usual.")
    ranks = num_columns(start, len(net.shapes))
    starts = checked_start(start, net.shapes, ranks)
    if method == "graded":
        check_independent(starts)
    if t_end is None:
        t_end = _default_end(net, ranks) if times is None else float(torch.as_tensor(times, dtype=torch.float64).max())
    grid = _checked_times(t_end, times, rtol)
    solve = _solve_graded if method == "graded" else _solve_plain
    return solve(net, starts, log10_alpha, t_end, grid, threshold, rtol, max_steps)


def _solve_graded(
    net: MatrixNetwork,
    starts: Sequence[Any],
    log10_alpha: float,
    t_end: float,
    grid: Tensor,
    threshold: float,
    rtol: float,
    max_steps: int,
) -> MatrixFlow:
    clock = -log10_alpha * math.log(10.0)
    run = GradedFlow(
        net,
        starts,
        log_alpha=-clock,
        end=t_end * clock,
        due=[t * clock for t in grid.tolist()],
        threshold=threshold,
        rtol=rtol,
        max_steps=max_steps,
    )
    status = run.run()
    reached = len(run.records)
    logs = [torch.from_numpy(np.array([record[0][j] for record in run.records])) for j in range(len(starts))]
    factors = [(c.units * np.exp(c.logs)) @ c.rows.T for c in run.recorded]
    stage_times, matrices, ranks = run.crossings.sorted(clock)
    return MatrixFlow(
        times=grid[:reached],
        singular_values=tuple(log.exp() for log in logs),
        log10_singular_values=tuple(log / math.log(10.0) for log in logs),
        losses=torch.tensor([record[2] for record in run.records], dtype=torch.float64),
        drifts=tuple(
            torch.tensor([record[1][j] for record in run.records], dtype=torch.float64) for j in range(len(starts))
        ),
        factors=_split(factors, net),
        stage_times=torch.tensor(stage_times, dtype=torch.float64),
        matrices=matrices,
        ranks=ranks,
        turned=tuple(sorted(run.turned)),
        log10_alpha=log10_alpha,
        num_gradients=run.flow.num_gradients,
        num_hessian_products=run.flow.num_hessian_products,
        num_steps=run.num_steps,
        status=status,
    )


def _solve_plain(
    net: MatrixNetwork,
    starts: Sequence[Any],
    log10_alpha: float,
    t_end: float,
    grid: Tensor,
    threshold: float,
    rtol: float,
    max_steps: int,
) -> MatrixFlow:
    """Dormand and Prince's method on the factors themselves."""
    from scipy.integrate import DOP853

    alpha, clock = 10.0**log10_alpha, -math.log(10.0**log10_alpha)
    shapes = [part.shape for z, (d, _) in zip(starts, net.shapes, strict=True) for part in (z[:d], z[d:])]
    splits = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    first = alpha * np.concatenate([z.ravel() for z in starts])

    def factors_of(theta: Any) -> list[Tensor]:
        parts = zip(np.split(theta, splits), shapes, strict=True)
        return [torch.from_numpy(part).reshape(shape) for part, shape in parts]

    def slope(_: float, theta: Any) -> Any:
        factors = factors_of(theta)
        pairs = list(zip(factors[::2], factors[1::2], strict=True))
        gradients = net.loss_and_gradients([a @ b.T for a, b in pairs])[1]
        slopes = [part for (a, b), g in zip(pairs, gradients, strict=True) for part in (g @ b, g.T @ a)]
        return torch.cat([part.flatten() for part in slopes]).numpy()

    solver: Any = DOP853(slope, 0.0, first, t_end * clock, rtol=rtol, atol=rtol * alpha)
    states, status = [first] * int((grid <= 0).sum()), Status.FINISHED
    crossings, num_steps = Crossings(len(starts), threshold), 0

    def spectra(theta: Any) -> list[Any]:
        factors = factors_of(theta)
        stacked = [np.concatenate([a.numpy(), b.numpy()]) for a, b in zip(factors[::2], factors[1::2], strict=True)]
        return [spectrum(z, d) for z, (d, _) in zip(stacked, net.shapes, strict=True)]

    while len(states) < len(grid) or solver.status == "running":
        if num_steps == max_steps:
            status = Status.MAX_STEPS
            break
        solver.step()
        if solver.status == "failed":
            status = Status.STALLED
            break
        num_steps += 1
        between: list[Any] = []  # the interpolant costs three gradients: only where it is asked for

        def at(t: float, between: list[Any] = between) -> Any:
            between[:] = between or [solver.dense_output()]
            return between[0](t)

        def near(t: float, at: Any = at) -> list[Any]:
            return spectra(solver.y if t == solver.t else at(t))

        crossings.step(solver.t_old, solver.t, near)
        # The last step ends at t_end itself, which rounding may put an ulp before the last requested time.
        due = grid.tolist() if solver.status == "finished" else [t for t in grid.tolist() if t * clock <= solver.t]
        states += [at(min(t * clock, solver.t)) for t in due[len(states) :]]
    path = [torch.stack(parts) for parts in zip(*(factors_of(state) for state in [first, *states]), strict=True)]
    pairs = list(zip(path[::2], path[1::2], strict=True))
    products = [a[1:] @ b[1:].mT for a, b in pairs]
    values = tuple(torch.linalg.svdvals(m)[:, : a.shape[-1]] for m, (a, _) in zip(products, pairs, strict=True))
    stage_times, matrices, ranks = crossings.sorted(clock)
    return MatrixFlow(
        times=grid[: len(states)],
        singular_values=values,
        log10_singular_values=tuple(value.log10() for value in values),
        losses=torch.tensor(
            [net.loss_and_gradients(point)[0] for point in zip(*products, strict=True)], dtype=torch.float64
        ),
        drifts=tuple(_drift(a, b) for a, b in pairs),
        factors=tuple(part[-1].clone() for part in path),
        stage_times=torch.tensor(stage_times, dtype=torch.float64),
        matrices=matrices,
        ranks=ranks,
        turned=(),
        log10_alpha=log10_alpha,
        num_gradients=int(solver.nfev),
        num_hessian_products=0,
        num_steps=num_steps,
        status=status,
    )


def _drift(left: Tensor, right: Tensor) -> Tensor:
    """Return how far leftᵀ left - rightᵀ right has moved since the first entry, relative to its terms."""
    c = left.mT @ left - right.mT @ right
    size = left.square().sum(dim=(-2, -1)) + right.square().sum(dim=(-2, -1))
    drift: Tensor = torch.linalg.matrix_norm(c - c[0]) / size
    return drift[1:]


def _split(factors: Sequence[Any], net: MatrixNetwork) -> tuple[Tensor, ...]:
    pairs = [(z[:d], z[d:]) for z, (d, _) in zip(factors, net.shapes, strict=True)]
    return tuple(torch.from_numpy(np.ascontiguousarray(part)) for pair in pairs for part in pair)


def _default_end(net: MatrixNetwork, ranks: Sequence[int]) -> float:
    """Return a time beyond the last stage of the limit; 1 if it has none."""
    stages = matrix_stages(net, ranks=ranks, rtol=1e-4)
    return 1.2 * float(stages.times[-1]) if len(stages.times) else 1.0


def _checked_times(t_end: float, times: Sequence[float] | Tensor | None, rtol: float) -> Tensor:
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
