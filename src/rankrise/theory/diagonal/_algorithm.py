"""Algorithm 1: the stages of incremental learning, in the limit α → 0 or for the very run of a given θ0 and α.

Symbols:
    θ^k, q^k    stationary point of stage k and its products
    b           log-scale weights, the limit of log_α w; starts at 1
    T_k         rescaled time of the k-th activation
    Δ_k(i)      time until coordinate i becomes active at gradient g(θ^k)   (8)
    A           log(1/α); the limit is the case A = 1 of the same code, with log w = -b and the wall at 0
    wall        log w (then v = +u) or log ŵ (then v = -u) at which a coordinate activates
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rankrise.theory._alpha import log_inverse_alpha, resolve_log10_alpha
from rankrise.theory._rosenbrock import Array, Index
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike
from rankrise.theory.diagonal._coordinates import balanced_logs, height_of, log_products, orient, to_tensor
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork
from rankrise.theory.diagonal._integrator import products_at
from rankrise.theory.diagonal._saddles import find_stuck
from rankrise.theory.diagonal._stage_records import Certificate, Stages, minimum_constant, winner_gap
from rankrise.theory.diagonal._transition import (
    GRADIENT_FLOOR,
    Transition,
    first_passage,
    settle,
    settle_on_support,
)

_EPSILON = 1e-6  # the winner starts phase B in the limit at this part of its expected product |g|/‖H‖
_NEGLIGIBLE = 1e-6  # |q| that a coordinate must have to stay in a phase B that was cut short
_TIE = 1e-8  # coordinates tie whose times until active agree to this relative accuracy
_SETTLED = 1e-3  # a phase B that was cut short counts as settled this close to its limit, in largest products


def time_until_active(
    log_w: Array, log_w_hat: Array, gradient: Array, wall: Array | float, weight_decay: float = 0.0
) -> Array:
    """Return Δ(i): how long until log w (g > 0) or log ŵ (g < 0) reaches the wall; inf where |g| ≤ λ. Equation (8).

    With log w = -b, log ŵ = b - 2, λ = 0 and the wall at 0 this is (b_i - 1 + sgn g_i) / g_i.

    >>> time_until_active(-np.ones(3), -np.ones(3), np.array([2.0, -4.0, 0.0]), 0.0).tolist()
    [0.5, 0.25, inf]
    """
    height = np.where(gradient > 0, log_w, log_w_hat)
    with np.errstate(divide="ignore", invalid="ignore"):
        delta = np.maximum(wall - height, 0.0) / (np.abs(gradient) - weight_decay)
    return np.where(np.abs(gradient) <= weight_decay, np.inf, delta)


def incremental_stages(
    net: DiagonalNetwork,
    u0: ArrayLike | None = None,
    v0: ArrayLike | None = None,
    *,
    alpha: float | None = None,
    log10_alpha: float | None = None,
    threshold: float = 1e-3,
    weight_decay: float = 0.0,
    t_end: float = math.inf,
    max_stages: int | None = None,
    on_stage: Callable[[float], None] | None = None,
) -> Stages:
    """Run Algorithm 1 to its end.

    Without θ0 this is the limit α → 0: from θ^0 = 0, b^0 = 1, T_0 = 0, each stage (A) finds the winner
    i_k = argmin Δ_k and the time T_{k+1} = T_k + Δ_k(i_k) (8, 9), moves b^{k+1} = b^k - g(θ^k) Δ_k(i_k) (10), and (B)
    follows the flow from θ^k + ε (e_i, sgn(g_i) e_i) on the support and the winner to its limit θ^{k+1} (11).
    With θ0 and α it predicts the activation times of that very run: log w starts at its own value, the walls stand
    where |q| = ¼ |w² - ŵ²| is the threshold, and the growth ∫ g dt during phase B counts for the coordinates that wait.
    Products above the threshold from the start are active at time 0. Products of coordinates that wait are taken as
    zero, which is inaccurate for α as large as 0.1.

    Weight decay is the flow of L + ½ λ ‖θ‖². Under it u² - v² shrinks: d log w/dt = g - λ and d log ŵ/dt = -g - λ, so
    that two exponents are carried, and a coordinate with |g_i| ≤ λ never joins. On a support with signs s the penalty
    is λ s · q, so that each θ^k is a minimum of the loss with an ℓ1 penalty.

    Coordinates whose times agree to 1e-8 tie and activate as a group. In the limit they start equal, and coordinates
    that a symmetry exchanges stay equal. The certificates of this and all later stages then say that the limit is not
    unique. A gradient below 1e-9 of the largest at θ = 0 counts as zero.

    Args:
        net: The network.
        u0: u before the factor α; with v0 and α, for the finite-α form.
        v0: v before the factor α.
        alpha: α, between 0 and 1; either this or log10_alpha.
        log10_alpha: log10 α, negative, of any size.
        threshold: |q| at which a coordinate counts as active; finite-α form only.
        weight_decay: λ, the strength of the penalty ½ λ ‖θ‖²; for the limit α → 0 only. `losses` leave the penalty out.
        t_end: Leave out stages after this rescaled time; the status says if there are any.
        max_stages: Stop after this many stages; 4p if None.
        on_stage: Called with the rescaled time after each stage, for progress.

    Returns:
        The stages. `status` says whether the end was reached or the run is stuck at a saddle; in that case `stuck`
        names the coordinates, and `advice` says what to do.

    Raises:
        ValueError: If an argument breaks its rule, or h is not finite on the way.

    >>> from rankrise import theory
    >>> net = theory.linear(torch.eye(2), torch.tensor([2.0, -4.0]))
    >>> stages = incremental_stages(net)
    >>> stages.coordinates, stages.signs, stages.times.tolist()
    ((1, 0), (-1, 1), [0.5, 1.0])

    Reference: Boix-Adsera et al., "Transformers learn through gradual rank increase", NeurIPS 2023, Algorithm 1.
    """
    p = net.num_weights
    log10_alpha = None if alpha is None and log10_alpha is None else resolve_log10_alpha(alpha, log10_alpha)
    given = [name for name, value in (("u0", u0), ("v0", v0), ("log10_alpha", log10_alpha)) if value is not None]
    if max_stages is not None and max_stages < 0:
        raise ValueError(f"`max_stages` must be zero or positive; got {max_stages}: pass None to run to the end.")
    if not t_end > 0:
        raise ValueError(f"`t_end` must be positive; got {t_end}: pass a rescaled time such as 2.5, or leave it out.")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"`weight_decay` must be zero or positive; got {weight_decay}: it is the λ of ½ λ ‖θ‖².")
    if weight_decay > 0 and log10_alpha is not None:
        raise ValueError(
            f"`weight_decay` must be zero for the finite-α form; got {weight_decay}: "
            "leave u0, v0 and α out for the limit."
        )
    if not 0 < threshold < 1:
        raise ValueError(f"`threshold` must lie in (0, 1); got {threshold}: 1e-3 is usual.")
    if u0 is None and v0 is None and log10_alpha is None:
        clock = _Clock(1.0, -np.ones(p), -np.ones(p), threshold=0.0, weight_decay=float(weight_decay))
    elif u0 is not None and v0 is not None and log10_alpha is not None:
        inverse, start = log_inverse_alpha(log10_alpha), orient(net, u0, v0)
        clock = _Clock(inverse, start.log_w - inverse, start.log_w_hat - inverse, threshold=threshold)
    else:
        raise ValueError(
            f"`u0`, `v0` and α (`alpha` or `log10_alpha`) must be given together; got only {', '.join(given)}: "
            "pass all three for the finite-α form, none for the limit."
        )
    return _Run(net, clock, log10_alpha, t_end, 4 * p if max_stages is None else max_stages, on_stage).stages()


@dataclass
class _Clock:
    """The slow variables: time and the logarithmic weights of the coordinates that wait."""

    A: float
    log_w: Array
    log_w_hat: Array
    threshold: float
    weight_decay: float = 0.0
    t: float = 0.0

    def __post_init__(self) -> None:
        self.log_c = self.log_w + self.log_w_hat
        p = len(self.log_c)
        self.wall = np.zeros(p) if self.limit else height_of(np.full(p, self.threshold), self.log_c)

    @property
    def limit(self) -> bool:
        """Whether α → 0."""
        return self.threshold == 0.0

    def advance(self, growth: Array, duration: float) -> None:
        decayed = self.weight_decay * duration
        self.log_w, self.log_w_hat = self.log_w + growth - decayed, self.log_w_hat - growth - decayed
        self.log_c = self.log_c - 2 * decayed
        self.t += duration

    def place(self, index: Index, products: Array) -> None:
        """Put coordinates where their products are; in the limit, on the wall."""
        height = self.wall[index] if self.limit else height_of(products, self.log_c[index])
        up = products > 0
        self.log_w[index] = np.where(up, height, self.log_c[index] - height)
        self.log_w_hat[index] = self.log_c[index] - self.log_w[index]

    def logs(self, q: Array) -> tuple[Array, Array]:
        """Return log w and log ŵ, with -inf for coordinates that wait (q = 0); balanced in the limit."""
        if self.limit:
            return balanced_logs(q)
        return np.where(q != 0, self.log_w, -np.inf), np.where(q != 0, self.log_w_hat, -np.inf)


class _Run:
    """One run of Algorithm 1, with its records so far."""

    def __init__(
        self,
        net: DiagonalNetwork,
        clock: _Clock,
        log10_alpha: float | None,
        t_end: float,
        max_stages: int,
        on_stage: Callable[[float], None] | None,
    ) -> None:
        self.net, self.clock, self.log10_alpha = net, clock, log10_alpha
        self.t_end, self.max_stages, self.on_stage = t_end, max_stages, on_stage
        self.q = np.zeros(net.num_weights)
        self.loss, gradient = net.loss_and_gradient(torch.from_numpy(self.q))
        self.gradient: Array = gradient.cpu().numpy()
        self.scale = float(np.abs(self.gradient).max())
        self.num_gradients, self.num_columns = 1, 0
        self.tie_at: int | None = None
        self.classes: list[Index] = []
        self.known = np.full((net.num_weights, net.num_weights), np.nan)  # ∂²L/∂q² at the last stationary point
        self.winners: list[tuple[tuple[int, ...], int, float, Certificate]] = []
        self.points: list[tuple[Array, float, Array]] = []
        self._record()

    def stages(self) -> Stages:
        status = self._start()
        while status is Status.FINISHED and np.isfinite(first := (delta := self._delta()).min()):
            if self.clock.t + first > self.t_end * self.clock.A:
                status = Status.T_END
            else:
                status = self._stage(delta) if len(self.winners) < self.max_stages else Status.MAX_STAGES
        idle: Index = np.zeros(0, dtype=np.intp)
        stuck: tuple[int, ...] = ()
        if status is Status.FINISHED:
            idle = np.flatnonzero((self.q == 0) & (np.abs(self.gradient) <= GRADIENT_FLOOR * self.scale))
            stuck = find_stuck(self.net, self.q, idle) if self.clock.weight_decay == 0 else ()
            status = Status.SADDLE if stuck else status
        groups, signs, times, certificates = zip(*self.winners, strict=True) if self.winners else ((), (), (), ())
        products, losses, log_weights = zip(*self.points, strict=True)
        return Stages(
            coordinates=tuple(group[0] for group in groups),
            groups=groups,
            signs=signs,
            times=to_tensor(np.array(times)),
            certificates=certificates,
            products=to_tensor(np.array(products)),
            losses=to_tensor(np.array(losses)),
            supports=tuple(tuple(np.flatnonzero(q).tolist()) for q in products),
            log_weights=to_tensor(np.array(log_weights)),
            log10_alpha=self.log10_alpha,
            threshold=self.clock.threshold,
            status=status,
            num_gradients=self.num_gradients,
            num_jacobian_columns=self.num_columns,
            weight_decay=self.clock.weight_decay,
            stuck=stuck,
            idle=tuple(idle.tolist()),
        )

    def _delta(self) -> Array:
        """Return Δ_k; it is infinite on the support, where the gradient is only rounding."""
        gradient = np.where(np.abs(self.gradient) > GRADIENT_FLOOR * self.scale, self.gradient, 0.0)
        decay = self.clock.weight_decay
        gradient = np.where(np.abs(gradient) - decay > GRADIENT_FLOOR * self.scale, gradient, 0.0)
        delta = time_until_active(self.clock.log_w, self.clock.log_w_hat, gradient, self.clock.wall, decay)
        return np.where(self.q != 0, np.inf, delta)

    def _start(self) -> Status:
        """Follow phase B at time 0 for the products of a run that are above the threshold from the start."""
        q = np.zeros_like(self.q) if self.clock.limit else log_products(self.clock.log_w, self.clock.log_w_hat)
        above = np.flatnonzero(np.abs(q) > self.clock.threshold)
        if len(above) == 0 or self.max_stages == 0:
            return Status.FINISHED
        start = np.zeros_like(q)
        start[above] = q[above]
        return self._phase_b(start, above, lead=(math.inf, None), from_start=True)

    def _stage(self, delta: Array) -> Status:
        """Phases A and B of one stage."""
        first = float(delta.min())
        group = np.flatnonzero(delta <= first * (1 + _TIE))
        self.clock.advance(self.gradient * first, first)  # (9), (10)
        start = self.q.copy()
        start[group] = self._size_at_start(group) * np.sign(self.gradient[group])
        self.clock.place(group, start[group])
        if len(group) > 1:
            self.tie_at = len(self.winners) + 1 if self.tie_at is None else self.tie_at
            self.classes.append(group)
        return self._phase_b(start, group, lead=winner_gap(delta, group))

    def _phase_b(
        self, start: Array, group: Index, *, lead: tuple[float, int | None], from_start: bool = False
    ) -> Status:
        """Follow the flow from `start` to its limit and record the stage."""
        time = self.clock.t / self.clock.A
        end = self._settle(start)  # (11)
        self.num_gradients += end.num_gradients
        self.num_columns += end.num_columns
        has_limit = end.status is Status.FINISHED
        settled = self._adopt(start, end)
        left = np.flatnonzero((start != 0) & (self.q == 0))
        away = self.clock.weight_decay - np.sign(start[left]) * self.gradient[left]
        certificate = Certificate(
            winner_gap=lead[0],
            runner_up=lead[1],
            tied=tuple(group[:1].tolist() if from_start else group.tolist()),
            minimum_constant=minimum_constant(end.products[end.support], end.hessian)
            if settled and has_limit
            else math.nan,
            left=tuple(left.tolist()),
            left_gradient=float(np.where(np.abs(away) > GRADIENT_FLOOR * self.scale, away, 0.0).min(initial=np.inf)),
            settled=settled,
            tie_at=self.tie_at,
            from_start=from_start,
            has_limit=has_limit,
        )
        self.winners.append((tuple(group.tolist()), int(np.sign(start[group[0]])), time, certificate))
        self._record()
        if self.on_stage is not None:
            self.on_stage(time)
        return end.status

    def _settle(self, start: Array) -> Transition:
        """Follow the balanced flow; in the limit, tied coordinates that are still equal move as one."""
        equal = [group for group in self.classes if start[group].all() and np.ptp(np.abs(start[group])) == 0]
        saddles = self.tie_at is not None
        if self.clock.limit:
            end = settle_on_support(
                self.net,
                start,
                scale=self.scale,
                saddles=saddles,
                classes=equal,
                known=self.known,
                l1=self.clock.weight_decay,
            )
            self.known = np.full_like(self.known, np.nan)
            if end.status is Status.FINISHED:
                self.known[np.ix_(end.support, end.support)] = end.hessian
            return end
        return settle(self.net, start, logs=self.clock.logs(start), scale=self.scale, saddles=saddles)

    def _size_at_start(self, group: Index) -> float:
        """Return |q| from which winners start phase B: the threshold, or in the limit far below where they rest."""
        if not self.clock.limit:
            return self.clock.threshold
        column = self.net.hessian_columns(torch.from_numpy(self.q), group[:1].tolist())
        self.num_columns += 1
        curvature = float(column.abs().max())
        return _EPSILON * float(np.abs(self.gradient[group[0]])) / curvature if curvature > 0 else _EPSILON

    def _adopt(self, start: Array, end: Transition) -> bool:
        """Take over the end of phase B, at finite α only up to the next activation. Return whether it settled."""
        clock = self.clock
        self.q, self.loss, self.gradient = end.products, end.loss, end.gradient
        if clock.limit or end.status is not Status.FINISHED:
            return True
        moving = start != 0
        idle = np.where(moving, -np.inf, clock.log_w), np.where(moving, -np.inf, clock.log_w_hat)
        passage = first_passage(end.pieces, *idle, clock.wall)
        growth = sum((piece.path.growths[-1] for piece in end.pieces), np.zeros_like(start))
        duration, growth = passage if passage is not None else (end.pieces[-1].end, growth)
        clock.advance(growth, duration)
        settled = True
        if passage is not None:
            q = np.where(moving, products_at(end.pieces, np.array([duration]))[0], 0.0)
            settled = bool(np.abs(q - end.products).max() <= _SETTLED * np.abs(end.products).max())
            if not settled:
                self.q = np.where(np.abs(q) > _NEGLIGIBLE, q, 0.0)
                self.loss, gradient = self.net.loss_and_gradient(torch.from_numpy(self.q))
                self.gradient = gradient.cpu().numpy()
                self.num_gradients += 1
        support = np.flatnonzero(self.q)
        clock.place(support, self.q[support])
        return settled

    def _record(self) -> None:
        self.points.append((self.q, self.loss, -self.clock.log_w / self.clock.A))
