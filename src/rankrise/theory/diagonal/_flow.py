"""Gradient flow from θ(0) = α θ0 at any α: du/dt = v ⊙ g, dv/dt = u ⊙ g.

Symbols:
    q = u ⊙ v       products; g = -∂L/∂q
    w, ŵ            u + v and u - v, oriented so that both are positive; w ⊙ ŵ = u² - v² is conserved (Lemma 4.1)
    s               ∫ g dt, so log w = log w(0) + s, log ŵ = log ŵ(0) - s: the same computation at any α
    A               log(1/α); times are rescaled, t / A
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankrise._doors import plot_stages
from rankrise._tables import table
from rankrise.theory._alpha import log_inverse_alpha, resolve_log10_alpha
from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike, as_data
from rankrise.theory.diagonal._coordinates import Start, log_products, orient, to_tensor
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork
from rankrise.theory.diagonal._integrator import ENDLESS, Integrator, Piece, products_at
from rankrise.theory.diagonal._saddles import find_stuck
from rankrise.theory.diagonal._transition import GRADIENT_FLOOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A product below this part of rtol does not move g noticeably: its growth is followed, its effect on g is left out.
FELT = 1e-4
# A flow without an end in time:
_AT_REST = 1e-4  # it is at rest once every |g| is below this part of the largest |g| at its start
_AFTER_REST = 1.1  # it goes on to this multiple of the time at which it came to rest, so that a plot shows the plateau
_STRIDE = 1.25  # each of its steps ends before this multiple of the time at which the step begins
_HORIZON = 1e6  # it ends at this multiple of the time that the first activation takes at the gradient of the start
_ULPS = 1e-14  # a time may lie past the end by this much, which is rounding


@dataclass(frozen=True)
class Flow:
    """A solution of the gradient flow; one row per step, p columns per weight.

    Attributes:
        times: Rescaled times t / log(1/α), (n,), from 0.
        products: q = u ⊙ v, (n, p).
        losses: L, (n,).
        gradients: g = -∂L/∂q, (n, p).
        log_w: log w, (n, p), with w = |u + v| or |u - v|, whichever belongs to the orientation u > |v|.
        log_w_hat: log ŵ, (n, p); log w + log ŵ is constant in time.
        log10_alpha: log10 α of this run.
        num_gradients: Gradients of the loss computed.
        num_jacobian_columns: Columns of ∂²L/∂q² computed.
        num_steps: Steps tried.
        num_rejected: Steps that failed and were repeated.
        status: How the flow ended, with a remedy.
        stuck: Coordinates that feel no gradient at the end although the loss falls if they move together; the status is
            then SADDLE.
    """

    times: Tensor
    products: Tensor
    losses: Tensor
    gradients: Tensor
    log_w: Tensor
    log_w_hat: Tensor
    log10_alpha: float
    num_gradients: int
    num_jacobian_columns: int
    num_steps: int
    num_rejected: int
    status: Status
    _start: Start = field(repr=False)
    _pieces: tuple[Piece, ...] = field(repr=False)
    stuck: tuple[int, ...] = ()

    @property
    def advice(self) -> str:
        """Say how the flow ended, which coordinates are stuck, and what to do about it."""
        return self.status.at(float(self.losses[-1]), self.stuck)

    def __str__(self) -> str:
        """Return a table of the coordinates in the order in which they pass 1e-3, and say how the flow ended."""
        first = activation_times(self)
        rows = [
            {"coordinate": i, "time": float(first[i]), "product at the end": float(self.products[-1, i])}
            for i in first.argsort(stable=True).tolist()
            if first[i] < math.inf
        ]
        ended = f"{self.status.value} at {float(self.times[-1]):.6g}, loss {float(self.losses[-1]):.6g}"
        advice = "" if self.status is Status.FINISHED else f". {self.advice}"
        return "\n".join([table(rows) or "No product passes 1e-3.", f"α = 10^{self.log10_alpha:g}: {ended}{advice}"])

    def plot(self) -> "Figure":
        """Draw loss and products against rescaled time with matplotlib; `Stages.plot(flow)` draws stages and flow.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        return plot_stages(None, self)

    @property
    def u(self) -> Tensor:
        """Weights u in the caller's orientation, (n, p)."""
        return to_tensor(self._start.weights(self.log_w.numpy(), self.log_w_hat.numpy())[0])

    @property
    def v(self) -> Tensor:
        """Weights v in the caller's orientation, (n, p)."""
        return to_tensor(self._start.weights(self.log_w.numpy(), self.log_w_hat.numpy())[1])

    def at(self, times: ArrayLike) -> Tensor:
        """Return the products at any rescaled times within the run: dense output.

        Args:
            times: Rescaled times, (m,).

        Returns:
            q, (m, p).

        Raises:
            ValueError: If a time lies outside the run.
        """
        times = as_data("times", times)
        last = float(self.times[-1]) * (1 + _ULPS)
        if len(times) and not (float(times.min()) >= 0 and float(times.max()) <= last):
            raise ValueError(
                f"`times` must lie in [0, {float(self.times[-1]):.6g}], the run; got "
                f"[{float(times.min()):.6g}, {float(times.max()):.6g}]: solve with a larger `t_end`."
            )
        if not self._pieces:
            return self.products[:1].expand(len(times), -1)
        inverse = log_inverse_alpha(self.log10_alpha)
        return torch.from_numpy(products_at(self._pieces, times.detach().cpu().double().numpy() * inverse))


def solve_flow(
    net: DiagonalNetwork,
    u0: ArrayLike,
    v0: ArrayLike,
    *,
    alpha: float | None = None,
    log10_alpha: float | None = None,
    t_end: float | None = None,
    rtol: float = 1e-3,
    max_steps: int = 20_000,
    on_step: Callable[[float], None] | None = None,
) -> Flow:
    """Integrate the gradient flow from α θ0 to rescaled time t_end, or until nothing moves any more.

    In the coordinate s the flow is ds/dt = g(q(s)). Near a point g is almost linear in q, and q(s) is known exactly, so
    each step solves ds/dt = g_0 - H (q(s) - q_0) to full accuracy with a stiff method that costs no gradients, then
    checks and bends that model with one gradient. Columns of H are needed for active coordinates only. The cost
    therefore follows the number of stages, not log(1/α): α = 10^-1000000 costs no more than α = 1e-8.

    Args:
        net: The network.
        u0: u before the factor α, (p,).
        v0: v before the factor α, (p,), with |u0| ≠ |v0| in each coordinate.
        alpha: α, between 0 and 1; either this or log10_alpha.
        log10_alpha: log10 α, negative, of any size.
        t_end: Rescaled time at which to stop. If None, the flow goes on until every |g_i| is at most 1e-4 of the
            largest one at the start, and then for another tenth of that time.
        rtol: Tolerance of log w in one step: absolute for active coordinates, relative to a fiftieth of the distance
            to activity for the others. At 1e-3 activation times are usually right to 1e-4 to 1e-3; halve it to check.
        max_steps: Largest number of steps tried.
        on_step: Called with the rescaled time after each step, for progress.

    Returns:
        The flow; `status` says whether it reached t_end.

    Raises:
        ValueError: If an argument breaks its rule, or h is not finite on the way.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, 4.0]))
    >>> flow = solve_flow(net, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]), log10_alpha=-1000000, t_end=1.5)
    >>> flow.status.value, [round(q, 6) for q in flow.products[-1].tolist()]
    ('finished', [2.0, 4.0])
    >>> round(float(solve_flow(net, [1.0, 2.0], [0.5, 1.0], alpha=1e-32).times[-1]), 1)
    1.2
    """
    if t_end is not None and not (math.isfinite(t_end) and t_end > 0):
        raise ValueError(
            f"`t_end` must be positive and finite; got {t_end}: pass a rescaled time such as 2.5, or leave it out."
        )
    if not 1e-10 <= rtol < 1:
        raise ValueError(
            f"`rtol` must lie in [1e-10, 1); got {rtol}: 1e-3 gives activation times "
            "usually to 1e-4 to 1e-3; halve it to check."
        )
    log10_alpha = resolve_log10_alpha(alpha, log10_alpha)
    inverse = log_inverse_alpha(log10_alpha)
    start = orient(net, u0, v0)
    wall = 0.5 * math.log(4 * FELT * rtol)
    integrator = Integrator(net, start.log_w - inverse, start.log_w_hat - inverse, wall=wall, rtol=rtol)
    rows, pieces = [_row(integrator)], []
    status = Status.FINISHED
    scale = float(np.abs(integrator.gradient).max())
    stop = t_end * inverse if t_end is not None else inverse if scale == 0 else math.inf
    while integrator.t < stop:
        reach = stop if stop < math.inf else max(_STRIDE * integrator.t, inverse / scale)
        piece = integrator.step(reach, max_steps)
        if piece is None:
            status = Status.MAX_STEPS if integrator.num_steps >= max_steps else Status.STALLED
            break
        pieces.append(piece)
        rows.append(_row(integrator))
        if on_step is not None:
            on_step(integrator.t / inverse)
        if float(np.abs(integrator.products).max()) > ENDLESS:
            status = Status.UNBOUNDED
            break
        if stop == math.inf:
            if float(np.abs(integrator.gradient).max()) <= _AT_REST * scale:
                stop = _AFTER_REST * integrator.t
            elif integrator.t > _HORIZON * inverse / scale:
                status = Status.T_END
                break
    stuck = _find_stuck(net, integrator, scale) if status is Status.FINISHED else ()
    times, log_w, log_w_hat, losses, gradients = (np.array(column) for column in zip(*rows, strict=True))
    times = times / inverse
    if status is Status.FINISHED and t_end is not None:
        times[-1] = t_end  # exactly, without a rounding error
    return Flow(
        times=to_tensor(times),
        products=to_tensor(log_products(log_w, log_w_hat)),
        losses=to_tensor(losses),
        gradients=to_tensor(gradients),
        log_w=to_tensor(log_w),
        log_w_hat=to_tensor(log_w_hat),
        log10_alpha=float(log10_alpha),
        num_gradients=integrator.num_gradients,
        num_jacobian_columns=integrator.num_columns,
        num_steps=integrator.num_steps,
        num_rejected=integrator.num_rejected,
        status=Status.SADDLE if stuck else status,
        stuck=stuck,
        _start=start,
        _pieces=tuple(pieces),
    )


def _find_stuck(net: DiagonalNetwork, integrator: Integrator, scale: float) -> tuple[int, ...]:
    """Return the coordinates that are stuck at a saddle, if the flow is at rest and no waiting one feels a gradient."""
    idle = np.setdiff1d(np.arange(net.num_weights), integrator.active)
    pull = np.abs(integrator.gradient)
    if pull.max() > _AT_REST * scale or pull[idle].max(initial=0.0) > GRADIENT_FLOOR * scale:
        return ()
    q = np.where(np.isin(np.arange(net.num_weights), integrator.active), integrator.products, 0.0)
    return find_stuck(net, q, idle)


def _row(integrator: Integrator) -> tuple[float, Array, Array, float, Array]:
    return integrator.t, integrator.log_w, integrator.log_w_hat, integrator.loss, integrator.gradient


def activation_times(flow: Flow, threshold: float = 1e-3) -> Tensor:
    """Return the rescaled time at which each |u_i v_i| first passes the threshold.

    The crossing is found on the path inside a step, not between its ends: log w is a cubic in time there.

    Args:
        flow: A solution.
        threshold: |q_i| that a coordinate must pass.

    Returns:
        (p,); 0 for a coordinate above the threshold from the start, inf for one that never passes it.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, 4.0]))
    >>> flow = solve_flow(net, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0]), log10_alpha=-1000000, t_end=1.5)
    >>> [round(t, 5) for t in activation_times(flow).tolist()]
    [1.0, 0.5]
    """
    if not threshold > 0:
        raise ValueError(f"`threshold` must be positive; got {threshold}: the paper's plots suggest 1e-3.")
    times = np.where(flow.products[0].abs().numpy() > threshold, 0.0, np.inf)
    for piece in flow._pieces:
        s = piece.path.growths
        above = np.abs(log_products(piece.log_w + s, piece.log_w_hat - s)) > threshold
        for i in np.flatnonzero(above.any(axis=0) & np.isinf(times)):
            times[i] = _crossing(piece, int(i), int(np.argmax(above[:, i])), threshold)
    return to_tensor(times / log_inverse_alpha(flow.log10_alpha))


def _crossing(piece: Piece, i: int, node: int, threshold: float) -> float:
    """Return the time at which |q_i| passes the threshold between two nodes of a path, by bisection."""

    def is_above(s: Array) -> bool:
        return abs(float(log_products(piece.log_w[i] + s[i], piece.log_w_hat[i] - s[i]))) > threshold

    return piece.time + piece.path.first(is_above, node)
