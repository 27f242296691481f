"""What Algorithm 1 for matrices returns: the stages, and at each stage what the rule assumes, as numbers.

Symbols:
    σ_i     singular values of G⊥ = P_U G P_V, the gradient outside the active directions, descending
    s_i     exponents (rapidities over log(1/α)) of the directions of a product that wait, descending
    minors  for each matrix and q: |det(E'_qᵀ Q_q)| with E'_q the top-q directions [u; v]/√2 after phase B and Q_q an
            orthonormal basis of what phase B makes of the top-q directions before: 0 where the rule fails, 1 at best;
            without the last direction of a square product, which is what the others leave
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._alpha import log10_alpha_of_matrices
from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory._tasks import ArrayLike, as_data
from rankrise.theory.matrix._active_flow import Factors, Step
from rankrise.theory.matrix._matrix_network import MatrixNetwork
from rankrise.theory.matrix._matrix_prediction import LimitStage, MatrixPrediction, predict_times

_TIE = 1e-8
_SMALL_MINOR = 1e-6  # an overlap below this counts as vanishing


@dataclass(frozen=True)
class MatrixCertificate:
    """What the rule assumes at one stage, measured.

    Attributes:
        lead: (Δ₂ - Δ₁) / Δ₁ of the winner over the best other matrix; 0 in a tie, inf if no other grows.
        runner_up: The other matrix, None if there is none.
        sigma_ratio: σ_1 / σ_2 of the winner's matrix; inf if there is no second direction.
        minors: Leading minors of the overlaps across phase B, one tuple per matrix.
        curvature: λ_min of the Hessian on the active columns modulo gauge, at the new stationary point; NaN if phase B
            has no limit.
        sign_flips: The square products whose last exponent was driven back towards zero on the plateau before.
        left: The product of each direction that left in phase B: the last one of a square product, or with weight
            decay any one.
        duration: Length of phase B, in time that is not rescaled, until the flow rests.
        has_limit: Whether phase B has a limit; if not, `status` of the stages says why.
        tie_at: The first stage (counted from 1), up to this one, whose winner tied; None if there was no tie.
    """

    lead: float
    runner_up: int | None
    sigma_ratio: float
    minors: tuple[tuple[float, ...], ...]
    curvature: float
    sign_flips: tuple[int, ...]
    left: tuple[int, ...]
    duration: float
    has_limit: bool = True
    tie_at: int | None = None

    @property
    def smallest_minor(self) -> float:
        """The smallest leading minor of all matrices; 1 if no direction waits."""
        return min((minor for of_matrix in self.minors for minor in of_matrix), default=1.0)

    @property
    def strict_minimum(self) -> bool:
        """Whether the new stationary point is a strict minimum on the active columns modulo gauge."""
        return self.curvature > 0

    @property
    def tied(self) -> bool:
        """Whether another direction joins at the same time, or did before: the stages then depend on the start."""
        return self.tie_at is not None or self.sigma_ratio <= 1 + _TIE

    @property
    def generic(self) -> bool:
        """Whether winner and overlaps are as the rule assumes: no tie, no vanishing minor."""
        return not self.tied and self.smallest_minor > _SMALL_MINOR

    @property
    def holds(self) -> bool:
        """Whether everything that the rule assumes holds at this stage."""
        return self.has_limit and self.generic and self.strict_minimum

    @property
    def verdict(self) -> str:
        """Say in one sentence what holds or what fails.

        >>> MatrixCertificate(0.5, 1, 3.0, ((0.9,),), 0.2, (), (), 40.0).verdict
        'The assumptions hold: the winner leads by a factor of 1.5, σ₁/σ₂ = 3, smallest minor 0.9, curvature 0.2.'
        """
        if not self.has_limit:
            return "Phase B has no limit: the winner and its time stand, what follows is unknown."
        if self.tie_at is not None:
            return f"The winner of stage {self.tie_at} tied: from there on the stages depend on the start."
        if self.sigma_ratio <= 1 + _TIE:
            return "The two largest singular values are equal: the direction that joins depends on the start."
        if self.smallest_minor <= _SMALL_MINOR:
            return f"A leading minor of the overlaps is {self.smallest_minor:.2g}: the order of exponents may be wrong."
        if not self.strict_minimum:
            return f"The stationary point is no strict minimum modulo gauge: its curvature is {self.curvature:.2g}."
        lead = "leads alone" if math.isinf(self.lead) else f"leads by a factor of {1 + self.lead:.3g}"
        ratio = "" if math.isinf(self.sigma_ratio) else f" σ₁/σ₂ = {self.sigma_ratio:.3g},"
        return (
            f"The assumptions hold: the winner {lead},{ratio} smallest minor {self.smallest_minor:.2g}, "
            f"curvature {self.curvature:.2g}."
        )


@dataclass(frozen=True)
class Transition:
    """What the form at finite α needs of a stage: the start of phase B and its path."""

    epsilon: float
    steps: tuple[Step, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class MatrixStages:
    """The result of Algorithm 1 for matrices: K stages between K + 1 stationary points.

    Attributes:
        times: T_1 ... T_K, rescaled by log(1/α), (K,).
        matrices: The product j of the direction that joins in each stage, K integers.
        ranks: How many directions of that product were active before, K integers from 0.
        left_vectors: u of the direction that joins, K vectors (d_j,).
        right_vectors: v, K vectors (d'_j,); the product grows along u vᵀ.
        sigmas: σ_1 that drove the winner, (K,).
        spectra: K + 1 tuples: the singular values of G⊥ of each product at every stationary point.
        exponents: K + 1 tuples: the exponents of the directions of each product that wait, after each stage.
        products: K + 1 tuples of the products M_j at every stationary point.
        losses: L at every stationary point, (K + 1,).
        certificates: What the rule assumes, one record per stage.
        factors: K + 1 tuples of the active columns [A_j; B_j], balanced.
        ranks_allowed: Number of columns r_j of each factor.
        weight_decay: λ of the penalty ½ λ ‖θ‖², 0 for the flow of the paper.
        status: How the algorithm ended, with a remedy.
        num_gradients: Gradients computed.
        num_hessian_products: Products with the Hessian computed.
        stuck: Products that feel no gradient at the end although the loss falls if they move; the status is then
            SADDLE.
    """

    times: Tensor
    matrices: tuple[int, ...]
    ranks: tuple[int, ...]
    left_vectors: tuple[Tensor, ...]
    right_vectors: tuple[Tensor, ...]
    sigmas: Tensor
    spectra: tuple[tuple[Tensor, ...], ...]
    exponents: tuple[tuple[Tensor, ...], ...]
    products: tuple[tuple[Tensor, ...], ...]
    losses: Tensor
    certificates: tuple[MatrixCertificate, ...]
    factors: tuple[tuple[Tensor, ...], ...]
    ranks_allowed: tuple[int, ...]
    weight_decay: float
    status: Status
    num_gradients: int
    num_hessian_products: int
    stuck: tuple[int, ...]
    _net: MatrixNetwork = field(repr=False)
    _gradients: tuple[Factors, ...] = field(repr=False)
    _transitions: tuple[Transition, ...] = field(repr=False)

    @property
    def advice(self) -> str:
        """Say how the algorithm ended, which products never started, and what to do about it."""
        return self.status.at(float(self.losses[-1]), self.stuck, what="products")

    def singular_values(self, k: int) -> tuple[Tensor, ...]:
        """Return the singular values of each product at stationary point k, min(d, d') numbers each."""
        return tuple(torch.linalg.svdvals(m) for m in self.products[k])

    def predict(
        self,
        start: Sequence[ArrayLike],
        *,
        alpha: float | None = None,
        log10_alpha: float | None = None,
        threshold: float = 1e-3,
    ) -> MatrixPrediction:
        """Predict the stage times of the run that starts at α times given factors, without a new gradient.

        The columns of the start are carried through the plateaus and transitions of the limit. The error is
        exponentially small in log(1/α) as long as transitions do not overlap; where they do, the time and all later
        ones are flagged. The stages themselves, and so their order, are those of the limit.

        Args:
            start: The factors before the factor α, two for each product: A_1, B_1, A_2, B_2, ..., each (d, r).
            alpha: α, between 0 and 1; either this or log10_alpha.
            log10_alpha: log10 α, negative.
            threshold: Singular value at which a direction counts as active.

        Raises:
            ValueError: If the factors do not fit the network, or an argument breaks its rule.

        >>> from rankrise import theory
        >>> net = theory.matrix_sensing(2 * torch.eye(4).reshape(4, 2, 2), [4.0, 0.0, 0.0, 8.0])
        >>> start = torch.tensor([[1.0, 0.5], [-0.5, 1.0]]), torch.tensor([[0.3, 0.2], [0.1, 0.9]])
        >>> prediction = theory.matrix_stages(net).predict(start, log10_alpha=-1000)
        >>> [round(t, 3) for t in prediction.times.tolist()], prediction.flagged
        ([0.25, 0.499], (False, False))
        """
        log10_alpha = log10_alpha_of_matrices(alpha, log10_alpha)
        if not 0 < threshold < math.inf:
            raise ValueError(f"`threshold` must be positive; got {threshold}: 1e-3 is usual.")
        if self.weight_decay:
            raise ValueError(
                f"`predict` needs stages without weight decay; got weight_decay={self.weight_decay}: with it the limit "
                "is all that there is."
            )
        starts = checked_start(start, self._net.shapes, self.ranks_allowed)
        check_independent(starts)
        waits = torch.diff(self.times, prepend=torch.zeros(1, dtype=torch.float64)).tolist()
        stages = [
            LimitStage(
                matrix=self.matrices[k],
                rank=self.ranks[k],
                sigma=float(self.sigmas[k]),
                wait=waits[k],
                factors=tuple(z.numpy() for z in self.factors[k]),
                gradients=self._gradients[k],
                turning=self.certificates[k].sign_flips,
                left=self.certificates[k].left,
                tied=self.certificates[k].tied,
                epsilon=self._transitions[k].epsilon,
                steps=self._transitions[k].steps,
            )
            for k in range(len(waits))
        ]
        rows = [shape[0] for shape in self._net.shapes]
        return predict_times(stages, starts, rows, log10_alpha=log10_alpha, threshold=threshold)

    def __str__(self) -> str:
        """Return the stages as a table, one line each."""
        rows = [["stage", "time", "matrix", "rank", "loss after", "lead", "σ₁/σ₂", "minor", "curvature", "notes"]]
        for k, c in enumerate(self.certificates):
            notes = [f"the last direction of {j} turns" for j in c.sign_flips] + [f"one of {j} left" for j in c.left]
            numbers = (self.losses[k + 1].item(), c.lead, c.sigma_ratio, c.smallest_minor, c.curvature)
            head = (str(k + 1), f"{self.times[k]:.6g}", str(self.matrices[k]), str(self.ranks[k] + 1))
            rows.append([*head, *(f"{number:.3g}" for number in numbers), "; ".join(notes)])
        failing = [f"stage {k + 1}: {c.verdict}" for k, c in enumerate(self.certificates) if not c.holds]
        return "\n".join([_table(rows) if self.certificates else "No stages.", *failing, self._ended])

    @property
    def _ended(self) -> str:
        return f"{self.status.value}: {self.advice}"


def checked_start(
    start: Sequence[ArrayLike], shapes: Sequence[tuple[int, int]], ranks: Sequence[int]
) -> tuple[Array, ...]:
    """Return [A_j; B_j] of factors A_1, B_1, A_2, B_2, ... that fit the network."""
    factors = [as_data("start", factor).double().cpu().numpy() for factor in _in_order(start)]
    expected = [(rows, r) for shape, r in zip(shapes, ranks, strict=True) for rows in shape]
    got = [factor.shape for factor in factors]
    if got != expected:
        raise ValueError(
            f"`start` must hold two factors for each product, of shapes {expected}; got {got}: "
            "put A_1, B_1, A_2, B_2, ... in this order, or pass `ranks` to `matrix_stages`."
        )
    if not all(np.isfinite(factor).all() for factor in factors):
        raise ValueError("`start` must be finite; got NaN or infinity: drop or repair those entries.")
    return tuple(np.concatenate(pair) for pair in zip(factors[::2], factors[1::2], strict=True))


def check_independent(starts: Sequence[Array]) -> None:
    """Refuse [A; B] whose columns are dependent: some rotation of them has a column of zero, without a logarithm."""
    for j, z in enumerate(starts):
        if (rank := int(np.linalg.matrix_rank(z))) < z.shape[1]:
            raise ValueError(
                "The columns of [A; B] in `start` must be linearly independent, because a direction that starts at "
                f"zero never joins; got {z.shape[1]} columns of rank {rank} in product {j}: draw them at random, or "
                "leave columns out."
            )


def _in_order(start: object) -> list[ArrayLike]:
    """Return the factors if they are several."""
    if isinstance(start, (list, tuple)) or (isinstance(start, (Tensor, np.ndarray)) and start.ndim > 0):
        return list(start)
    raise ValueError(
        f"`start` must hold two factors for each product; got {type(start).__name__}: pass [A_1, B_1, A_2, B_2, ...]."
    )


def num_columns(start: Sequence[ArrayLike], count: int) -> list[int]:
    """Return the number of columns of each product; checked later against the shapes."""
    shapes = [as_data("start", factor).shape for factor in _in_order(start)]
    columns = [int(shape[-1]) if len(shape) == 2 and shape[-1] else 1 for shape in shapes[::2]]
    return (columns + [1] * count)[:count]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def leading_minors(after: Array, transported: Array) -> tuple[float, ...]:
    """Return |det(E'_qᵀ Q_q)| for q = 1, 2, ...

    Args:
        after: E', the directions after phase B, one per column, in order.
        transported: Q, orthonormal; its first q columns span what phase B made of the first q directions before.

    >>> leading_minors(np.eye(2), np.eye(2)[:, ::-1])
    (0.0, 1.0)
    """
    overlaps = after.T @ transported
    return tuple(abs(float(np.linalg.det(overlaps[:q, :q]))) for q in range(1, min(overlaps.shape) + 1))
