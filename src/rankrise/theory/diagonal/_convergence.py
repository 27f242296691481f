"""Stage times against α: the flow, the limit of Algorithm 1 and its finite-α form, side by side.

Symbols:
    T_k         time at which coordinate i_k activates in the limit
    A           log(1/α), natural; Theorem 4.5 says activation times converge to T_k as 1/A → 0
    order       r in max_k |time - T_k| ≈ C A^-r, by least squares of logarithms
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise._tables import table
from rankrise.theory._alpha import log_inverse_alpha, resolve_log10_alpha
from rankrise.theory._tasks import ArrayLike
from rankrise.theory.diagonal._algorithm import incremental_stages
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork
from rankrise.theory.diagonal._flow import activation_times, solve_flow
from rankrise.theory.diagonal._stage_records import Stages


@dataclass(frozen=True)
class StageTimes:
    """Activation times for a list of α, one row per α, one column per coordinate of the limit, in its order.

    Attributes:
        log10_alphas: The n values of log10 α.
        coordinates: The m coordinates, in the order in which they first activate in the limit.
        limit: T_k, (m,).
        measured: Activation times of the flow, (n, m); inf where a coordinate did not activate by t_end.
        predicted: Activation times of the finite-α form, (n, m).
        num_gradients: Gradients of each flow.
        num_jacobian_columns: Hessian columns of each flow.
    """

    log10_alphas: tuple[float, ...]
    coordinates: tuple[int, ...]
    limit: Tensor
    measured: Tensor
    predicted: Tensor
    num_gradients: tuple[int, ...]
    num_jacobian_columns: tuple[int, ...]

    def __str__(self) -> str:
        """Return a row per α and coordinate: times of the limit, of the flow, and of the finite-α form where it ran."""
        rows = [
            {
                "coordinate": i,
                "log10 α": value,
                "limit": float(self.limit[column]),
                "flow": float(self.measured[row, column]),
                "predicted": float(self.predicted[row, column]),
            }
            for column, i in enumerate(self.coordinates)
            for row, value in enumerate(self.log10_alphas)
        ]
        return table(rows) or "No coordinate activates by t_end."

    @property
    def distances(self) -> Tensor:
        """Distance of each α from the limit, (n,): max_k |time - T_k| over what activated by t_end; NaN for nothing."""
        if not self.coordinates:
            return torch.full((len(self.log10_alphas),), torch.nan, dtype=torch.float64)
        gaps = (self.measured - self.limit).abs()
        furthest = torch.where(gaps.isfinite(), gaps, -torch.inf).amax(dim=1)
        return torch.where(furthest >= 0, furthest, torch.nan)

    @property
    def num_activated(self) -> tuple[int, ...]:
        """How many of the coordinates activated by t_end, at each α."""
        return tuple(self.measured.isfinite().sum(dim=1).tolist())

    @property
    def prediction_errors(self) -> Tensor:
        """Largest relative error of the prediction at each α, (n,), over times that both give; NaN for none."""
        if not self.coordinates:
            return torch.full((len(self.log10_alphas),), torch.nan, dtype=torch.float64)
        errors = (self.predicted / self.measured - 1).abs()
        usable = self.predicted.isfinite() & self.measured.isfinite() & (self.measured > 0)
        return torch.where(usable, errors, 0.0).amax(dim=1)

    @property
    def in_order(self) -> tuple[bool, ...]:
        """Whether, at each α, the coordinates activate in the order of the limit."""
        return tuple(bool((row.diff() >= 0).all() and row.isfinite().all()) for row in self.measured)

    @property
    def order(self) -> float:
        """Fitted order r of convergence in 1/log(1/α); NaN with fewer than two α at a finite, positive distance."""
        inverse = torch.tensor([log_inverse_alpha(value) for value in self.log10_alphas], dtype=torch.float64)
        complete = torch.tensor(self.num_activated) == len(self.coordinates)
        usable = complete & self.distances.isfinite() & (self.distances > 0)
        if int(usable.sum()) < 2:
            return float("nan")
        x, y = inverse[usable].log(), self.distances[usable].log()
        x, y = x - x.mean(), y - y.mean()
        return -float((x @ y) / (x @ x))


def stage_times(
    net: DiagonalNetwork,
    u0: ArrayLike,
    v0: ArrayLike,
    *,
    alphas: Sequence[float] | None = None,
    log10_alphas: Sequence[float] | None = None,
    t_end: float | None = None,
    threshold: float = 1e-3,
    rtol: float = 1e-3,
    stages: Stages | None = None,
    predict: bool = True,
    on_alpha: Callable[[float], None] | None = None,
) -> StageTimes:
    """Solve the flow and predict its stages for each α, and set both against the limit.

    Args:
        net: The network.
        u0: As for `solve_flow`.
        v0: As for `solve_flow`.
        alphas: Values of α, between 0 and 1; either this or log10_alphas.
        log10_alphas: Values of log10 α, all negative, of any size.
        t_end: Rescaled time; the table has the coordinates that activate before it in the limit. If None, 1.5 times
            the last stage of the limit.
        threshold: |q_i| that a coordinate must pass.
        rtol: As for `solve_flow`.
        stages: The limit, if already known.
        predict: Whether to run the finite-α form too, which costs about as much as the limit for each α. If False,
            `predicted` is NaN.
        on_alpha: Called with each log10 α when it is done, for progress.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, -4.0]))
    >>> u0, v0 = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0])
    >>> table = stage_times(net, u0, v0, log10_alphas=[-8, -64, -1024], t_end=1.2)
    >>> table.coordinates, table.in_order, round(table.order, 2)
    ((1, 0), (True, True, True), 1.0)
    """
    if alphas is not None and log10_alphas is None:
        log10_alphas = [resolve_log10_alpha(float(value), None) for value in alphas]
    elif alphas is not None or log10_alphas is None:
        raise ValueError(
            f"`alphas` or `log10_alphas` must be given, and not both; got {alphas} and {log10_alphas}: "
            "pass for instance alphas=[1e-8, 1e-32]."
        )
    if len(log10_alphas) == 0:
        raise ValueError("`log10_alphas` must hold at least one value; got none: pass for instance [-8, -32].")
    if stages is None:
        stages = incremental_stages(net, t_end=math.inf if t_end is None else t_end)
    if t_end is None:
        t_end = 1.5 * float(stages.times[-1]) if len(stages.times) else 1.0
    first = stages.activation_times()
    coordinates = [i for i in torch.argsort(first, stable=True).tolist() if first[i] <= t_end]
    measured, predicted, gradients, columns = [], [], [], []
    for log10_alpha in log10_alphas:
        flow = solve_flow(net, u0, v0, log10_alpha=log10_alpha, t_end=t_end, rtol=rtol)
        measured.append(activation_times(flow, threshold)[coordinates])
        predicted.append(torch.full_like(measured[-1], torch.nan))
        if predict:
            run = incremental_stages(net, u0, v0, log10_alpha=log10_alpha, threshold=threshold, t_end=t_end)
            predicted[-1] = run.activation_times()[coordinates]
        gradients.append(flow.num_gradients)
        columns.append(flow.num_jacobian_columns)
        if on_alpha is not None:
            on_alpha(log10_alpha)
    return StageTimes(
        log10_alphas=tuple(float(value) for value in log10_alphas),
        coordinates=tuple(coordinates),
        limit=first[coordinates],
        measured=torch.stack(measured),
        predicted=torch.stack(predicted),
        num_gradients=tuple(gradients),
        num_jacobian_columns=tuple(columns),
    )
