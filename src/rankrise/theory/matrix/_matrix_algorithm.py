"""Algorithm 1 for full matrices: the stages of incremental learning in the limit α → 0.

Symbols:
    Z_a         active columns [A; B] of each product; the others are infinitely small
    G⊥          P_U G P_V, the gradient outside the active directions; σ_1 ≥ σ_2 ≥ ... its singular values
    s_1 ≥ ...   exponents of the directions that wait: their size is α^(1 - s); they start at 0
    Δ_j         (1 - s_j1) / σ_j1, time until the first direction of product j joins   (8')
    λ           weight decay: every column shrinks as e^(-λt) beside the flow, so that a direction has the size
                α^(1 + λT - s), and Δ_j = (1 + λT - s_j1) / (σ_j1 - λ)
    sign        of det(M + G⊥): square products whose factors have at least d columns live in SO(d, d), where the
                smallest exponent carries a sign
"""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory.matrix._active_flow import ActiveFlow, Factors, Step, complement
from rankrise.theory.matrix._matrix_network import MatrixNetwork
from rankrise.theory.matrix._matrix_saddles import find_stuck_products
from rankrise.theory.matrix._matrix_stage_records import (
    MatrixCertificate,
    MatrixStages,
    Transition,
    leading_minors,
)
from rankrise.theory.matrix._propagators import transport

_EPSILON = 1e-3  # the winner starts phase B at this part of the column that is expected
_ZERO = 1e-9  # a singular value below this part of the largest at M = 0 counts as zero
_TIE = 1e-8


@dataclass(frozen=True)
class Outside:
    """The gradient of one product outside its active directions: U diag(σ) Vᵀ, and the sign of its last exponent."""

    u: Array  # (d, n)
    sigma: Array  # (n,), zero where it is only rounding
    v: Array  # (d', n)
    sign: int  # of det(M + G⊥) for a square product with all its columns, else 0

    @property
    def speeds(self) -> Array:
        """Return ds/dt of each exponent: σ_i, the last one with its sign."""
        if self.sign == 0 or len(self.sigma) == 0:
            return self.sigma
        return np.concatenate([self.sigma[:-1], self.sign * self.sigma[-1:]])

    @property
    def frame(self) -> Array:
        """Return the directions [u_i; v_i]/√2 along which columns grow, the last one with its sign."""
        v = self.v.copy()
        if self.sign:
            v[:, -1:] *= self.sign
        return np.concatenate([self.u, v]) / math.sqrt(2.0)

    def time_until_active(self, exponents: Array, wall: float, decay: float) -> float:
        """Return Δ = (wall - s_1) / (σ_1 - λ), infinite where σ_1 ≤ λ; with one signed exponent sign · s for s.

        The wall is 1 + λT. Equation (8').
        """
        if len(exponents) == 0 or self.sigma[0] <= decay * (1 + _ZERO):
            return math.inf
        first = self.sign * exponents[0] if self.sign and len(exponents) == 1 else exponents[0]
        return max(0.0, (wall - float(first)) / (float(self.sigma[0]) - decay))


def matrix_stages(
    net: MatrixNetwork,
    *,
    ranks: Sequence[int] | None = None,
    weight_decay: float = 0.0,
    t_end: float = math.inf,
    max_stages: int | None = None,
    rtol: float = 1e-6,
    max_steps: int = 2000,
    on_stage: Callable[[float], None] | None = None,
) -> MatrixStages:
    """Run Algorithm 1 for full matrices to its end, in the limit α → 0.

    From M = 0, s = 0 and T_0 = 0 each stage (A) finds the product j* = argmin Δ_j whose first direction joins, at
    T_{k+1} = T_k + Δ, and moves the exponents, s_i ← s_i + σ_i Δ: the i-th largest exponent with the i-th largest
    singular value, whatever the directions; and (B) follows the flow of the active columns from
    [Z_a, ε (u_1; v_1)] to its limit, with an implicit method and Newton's at the end. The rule is derived and tested,
    not proved; 1 × 1 products give back `incremental_stages`.

    With weight decay, the flow of L + ½ λ Σ ‖Z_j‖², every column is in addition multiplied by e^(-λt). A direction with
    σ_i ≤ λ never joins, each stationary point is one of L + λ Σ ‖M_j‖_*, the nuclear norm, and directions may leave.

    Args:
        net: The network.
        ranks: Number of columns r_j of the factors of each product; min(d_j, d'_j) if None.
        weight_decay: λ, the strength of ½ λ ‖θ‖². `losses` leave the penalty out, and there is no `predict`.
        t_end: Leave out stages after this rescaled time; the status says if there are any.
        max_stages: Stop after this many stages; four times the sum of ranks if None.
        rtol: Tolerance of a step of phase B, relative to the norm of each column.
        max_steps: Largest number of steps of one phase B.
        on_stage: Called with the rescaled time after each stage, for progress.

    Returns:
        The stages; `status` says whether the end was reached, or that the run is stuck at a saddle: then `stuck` names
        the products, and `advice` says what to do.

    Raises:
        ValueError: If an argument breaks its rule, or h is not finite on the way.

    >>> from rankrise import theory
    >>> x = torch.eye(4, dtype=torch.float64).reshape(4, 2, 2) * 2
    >>> stages = matrix_stages(theory.matrix_sensing(x, torch.tensor([4.0, 0.0, 0.0, 8.0])))
    >>> [round(t, 9) for t in stages.times.tolist()], stages.ranks
    ([0.25, 0.5], (0, 1))

    Reference: Boix-Adsera et al., "Transformers learn through gradual rank increase", NeurIPS 2023, Algorithm 1, which
    this extends from diagonal to full matrices.
    """
    if not isinstance(net, MatrixNetwork):
        raise ValueError(
            f"`net` must be a network of full matrices; got {type(net).__name__}: build one with `matrix_head` or "
            "`MatrixNetwork`, or call `incremental_stages` for diagonal weights."
        )
    allowed = _checked_ranks(net, ranks)
    if max_stages is not None and max_stages < 0:
        raise ValueError(f"`max_stages` must be zero or positive; got {max_stages}: pass None to run to the end.")
    if not t_end > 0:
        raise ValueError(f"`t_end` must be positive; got {t_end}: pass a rescaled time such as 2.5, or leave it out.")
    if not 1e-12 <= rtol < 1:
        raise ValueError(f"`rtol` must be from 1e-12 to below 1; got {rtol}: 1e-6 is usual.")
    if max_steps < 1:
        raise ValueError(f"`max_steps` must be at least 1; got {max_steps}: 2000 is usual.")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"`weight_decay` must be zero or positive; got {weight_decay}: it is the λ of ½ λ ‖θ‖².")
    run = _Run(net, allowed, float(weight_decay), rtol, max_steps, on_stage)
    return run.stages(t_end, 4 * sum(allowed) if max_stages is None else max_stages)


class _Run:
    """One run of Algorithm 1, with its records so far."""

    def __init__(
        self,
        net: MatrixNetwork,
        allowed: tuple[int, ...],
        decay: float,
        rtol: float,
        max_steps: int,
        on_stage: Callable[[float], None] | None,
    ) -> None:
        self.net, self.allowed, self.decay = net, allowed, decay
        self.rtol, self.max_steps, self.on_stage = rtol, max_steps, on_stage
        self.flow = ActiveFlow(net, decay)
        self.factors: Factors = tuple(np.zeros((sum(shape), 0)) for shape in net.shapes)
        self.exponents = [np.zeros(min(*shape, r)) for shape, r in zip(net.shapes, allowed, strict=True)]
        self.loss, self.gradients = self.flow.gradients(self.factors)
        self.scale = max(float(np.linalg.norm(g, 2)) for g in self.gradients)
        self.outside = self._outside()
        self.t = 0.0
        self.tie_at: int | None = None
        self.winners: list[tuple[float, int, int, Array, Array, float]] = []
        self.certificates: list[MatrixCertificate] = []
        self.transitions: list[Transition] = []
        self.points = [self._point()]

    def stages(self, t_end: float, max_stages: int) -> MatrixStages:
        status = Status.FINISHED
        while status is Status.FINISHED and np.isfinite(first := min(delta := self._delta())):
            if self.t + first > t_end:
                status = Status.T_END
            else:
                status = self._stage(delta) if len(self.winners) < max_stages else Status.MAX_STAGES
        stuck: tuple[int, ...] = ()
        if status is Status.FINISHED and not self.decay:
            idle = [len(s) > 0 and o.sigma[0] == 0 for o, s in zip(self.outside, self.exponents, strict=True)]
            stuck = find_stuck_products(self.net, self.factors, idle)
            status = Status.SADDLE if stuck else status
        times, matrices, ranks, u, v, sigmas = zip(*self.winners, strict=True) if self.winners else ((),) * 6
        factors, losses, gradients, exponents, spectra = zip(*self.points, strict=True)
        return MatrixStages(
            times=torch.tensor(times, dtype=torch.float64),
            matrices=matrices,
            ranks=ranks,
            left_vectors=tuple(map(torch.from_numpy, u)),
            right_vectors=tuple(map(torch.from_numpy, v)),
            sigmas=torch.tensor(sigmas, dtype=torch.float64),
            spectra=_tensors(spectra),
            exponents=_tensors(exponents),
            products=_tensors([self._products(point) for point in factors]),
            losses=torch.tensor(losses, dtype=torch.float64),
            certificates=tuple(self.certificates),
            factors=_tensors(factors),
            ranks_allowed=self.allowed,
            weight_decay=self.decay,
            status=status,
            num_gradients=self.flow.num_gradients,
            num_hessian_products=self.flow.num_hessian_products,
            stuck=stuck,
            _net=self.net,
            _gradients=gradients,
            _transitions=tuple(self.transitions),
        )

    @property
    def wall(self) -> float:
        """The exponent at which a direction joins."""
        return 1.0 + self.decay * self.t

    def _delta(self) -> list[float]:
        pairs = zip(self.outside, self.exponents, strict=True)
        return [o.time_until_active(s, self.wall, self.decay) for o, s in pairs]

    def _stage(self, delta: list[float]) -> Status:
        """Phases A and B of one stage."""
        order = np.argsort(delta, kind="stable")
        j, first = int(order[0]), delta[int(order[0])]
        runner_up = int(order[1]) if len(order) > 1 and np.isfinite(delta[order[1]]) else None
        lead = math.inf
        if runner_up is not None:
            lead = (delta[runner_up] - first) / first if first > 0 else (0.0 if delta[runner_up] == 0 else math.inf)
        if lead <= _TIE and self.tie_at is None:
            self.tie_at = len(self.winners) + 1
        moves = [o.speeds * first for o in self.outside]
        flips = [
            i
            for i, (o, s, move) in enumerate(zip(self.outside, self.exponents, moves, strict=True))
            if o.sign and len(s) and s[-1] * move[-1] < 0
        ]
        self.t += first
        self.exponents = [s + move for s, move in zip(self.exponents, moves, strict=True)]  # (9')
        before, winner = self.outside, self.outside[j]
        u, v, sigma = winner.u[:, 0], winner.v[:, 0], winner.sigma
        self.winners.append((self.t, j, self.factors[j].shape[1], u.copy(), v.copy(), float(sigma[0])))
        epsilon = self._epsilon(j, u, v, float(sigma[0]))
        start = list(self.factors)
        start[j] = np.column_stack([start[j], epsilon / math.sqrt(2.0) * np.concatenate([u, v])])
        self.exponents[j] = self.exponents[j][1:]  # (10'): it is 1, or 1 + λT
        end = self.flow.settle(tuple(start), scale=self.scale, rtol=self.rtol, max_steps=self.max_steps)
        self.factors, self.loss, self.gradients = end.factors, end.loss, end.gradients
        self.outside = self._outside()
        for i in end.left:  # the direction waits again, at the wall that it came from
            side = self._side(end.steps[-1].end[i], i) if len(self.exponents[i]) == 0 and self.outside[i].sign else 1.0
            self.exponents[i] = np.concatenate([[side * self.wall], self.exponents[i]])
        self.transitions.append(Transition(epsilon, end.steps))
        self.certificates.append(
            MatrixCertificate(
                lead=lead,
                runner_up=runner_up,
                sigma_ratio=float(sigma[0] / sigma[1]) if len(sigma) > 1 and sigma[1] > 0 else math.inf,
                minors=tuple(
                    _overlaps(i, before[i], self.outside[i], end.steps, won=i == j) for i in range(len(before))
                ),
                curvature=end.curvature,
                sign_flips=tuple(flips),
                left=end.left,
                duration=end.duration,
                has_limit=end.status is Status.FINISHED,
                tie_at=self.tie_at,
            )
        )
        self.points.append(self._point())
        if self.on_stage is not None:
            self.on_stage(self.t)
        return end.status

    def _side(self, factors: Array, j: int) -> float:
        """Return the sign of det M, which is the sign of the last exponent of a square product with all its columns."""
        d = self.net.shapes[j][0]
        return float(np.linalg.slogdet(factors[:d] @ factors[d:].T)[0])

    def _epsilon(self, j: int, u: Array, v: Array, sigma: float) -> float:
        """Return the norm of the winner's column at the start of phase B, small beside what it will reach."""
        curvature = self.flow.curvature_along(self.factors, j, np.outer(u, v))
        return _EPSILON * min(1.0, math.sqrt((sigma - self.decay) / curvature)) if curvature > 0 else _EPSILON

    def _products(self, factors: Factors) -> Factors:
        return tuple(f[:d] @ f[d:].T for f, (d, _) in zip(factors, self.net.shapes, strict=True))

    def _outside(self) -> tuple[Outside, ...]:
        return tuple(
            outside_gradient(g, f, shape, r, floor=_ZERO * self.scale)
            for g, f, shape, r in zip(self.gradients, self.factors, self.net.shapes, self.allowed, strict=True)
        )

    def _point(self) -> tuple[Factors, float, Factors, tuple[Array, ...], tuple[Array, ...]]:
        exponents, spectra = tuple(self.exponents), tuple(o.sigma for o in self.outside)
        return self.factors, self.loss, self.gradients, exponents, spectra


def outside_gradient(gradient: Array, factors: Array, shape: tuple[int, int], rank: int, *, floor: float) -> Outside:
    """Return the singular values and directions of G⊥, as many as directions wait.

    Args:
        gradient: G, (d, d').
        factors: The active columns, (d + d', r_a).
        shape: (d, d').
        rank: Number of columns that the factors have.
        floor: Singular values below this are rounding, and set to zero.
    """
    d, active = shape[0], factors.shape[1]
    left, right = complement(factors, shape)
    u, sigma, vt = np.linalg.svd(left.T @ gradient @ right)
    n = min(*shape, rank) - active
    sigma = np.where(sigma > floor, sigma, 0.0)[:n]
    sign = 0
    if shape[0] == shape[1] and rank >= d and n > 0:
        bases = [np.linalg.qr(part)[0] if active else np.zeros((d, 0)) for part in (factors[:d], factors[d:])]
        core = bases[0].T @ factors[:d] @ factors[d:].T @ bases[1]
        turns = [np.hstack([base, rest]) for base, rest in zip(bases, (left, right), strict=True)]
        signs = [np.linalg.slogdet(matrix)[0] for matrix in (core, u @ vt, *turns)]
        sign = int(np.prod(signs))
    return Outside(left @ u[:, :n], sigma, right @ vt[:n].T, sign)


def _overlaps(j: int, before: Outside, after: Outside, steps: Sequence[Step], *, won: bool) -> tuple[float, ...]:
    """Return the leading minors between the directions of product j that wait, before and after phase B.

    The last direction of a square product is left out: the others determine it, so that its overlap says nothing.
    """
    signed = 1 if before.sign else 0
    frame = before.frame[:, 1 if won else 0 : before.frame.shape[1] - signed]
    new = after.frame[:, : after.frame.shape[1] - signed]
    if frame.shape[1] == 0 or new.shape[1] != frame.shape[1]:
        return ()
    return leading_minors(new, transport(frame, steps, j))


def _tensors(points: Sequence[Sequence[Array]]) -> tuple[tuple[torch.Tensor, ...], ...]:
    return tuple(tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in point) for point in points)


def _checked_ranks(net: MatrixNetwork, ranks: Sequence[int] | None) -> tuple[int, ...]:
    if ranks is None:
        return tuple(min(shape) for shape in net.shapes)
    try:
        given = tuple(operator.index(r) for r in ranks)
    except TypeError:
        given = ()
    if len(given) != len(net.shapes) or min(given) < 1:
        raise ValueError(
            f"`ranks` must hold a positive number of columns for each of the {len(net.shapes)} products; got "
            f"{ranks!r}: leave it out for full rank."
        )
    return given
