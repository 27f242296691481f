"""What Algorithm 1 returns: the stages, and at each stage Assumptions 4.2 and 4.3 as numbers with a verdict.

Symbols:
    Δ(i)    time until coordinate i becomes active   (8)
    c       ½ λ_min of 4 diag(s ⊙ u) ∇²_q L diag(s ⊙ u) on the support: L(ũ, s ⊙ ũ) - L(θ^k) ≥ c ‖ũ - u‖² near θ^k
    u, s    balanced weights, v = s ⊙ u, so |q| = u²
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankrise._doors import plot_stages
from rankrise._tables import table
from rankrise.theory._rosenbrock import Array, Index
from rankrise.theory._status import Status

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankrise.theory.diagonal._flow import Flow

_ROUNDING = 1e-12
_HIGH = 1e-6  # a final loss above this part of the first loss counts as high


@dataclass(frozen=True)
class Certificate:
    """The assumptions behind one stage, from θ^k to θ^{k+1}.

    Attributes:
        winner_gap: (Δ₂ - Δ₁) / Δ₁, first against second coordinate (4.2); 0 in a tie, inf if there is no second or
            Δ₁ = 0, at finite α.
        runner_up: The second coordinate, None if there is none.
        tied: The coordinates that tie for first; one if the winner is unique.
        minimum_constant: c at θ^{k+1} (4.3); inf if the support is empty, NaN if phase B was cut short.
        left: Coordinates that left the support in this stage.
        left_gradient: The smallest -sgn(q_i) g_i among the coordinates that left, with q_i from before they left; 0 if
            it is rounding, inf if none left. Assumption 4.2 needs it positive: the gradient then keeps them away.
        settled: Whether phase B reached its limit before the next activation; always true in the limit α → 0.
        tie_at: The first stage (counted from 1), up to this one, whose winners tied; from there on the stages depend on
            θ0. None if there was no tie.
        from_start: Whether these coordinates were above the threshold from the start, at finite α.
        has_limit: Whether phase B has a limit; if not, `status` of the stages says why.
    """

    winner_gap: float
    runner_up: int | None
    tied: tuple[int, ...]
    minimum_constant: float
    left: tuple[int, ...]
    left_gradient: float
    settled: bool
    tie_at: int | None = None
    from_start: bool = False
    has_limit: bool = True

    @property
    def unique(self) -> bool:
        """Whether this winner and all before it are unique, and a gradient keeps away coordinates that left (4.2)."""
        return len(self.tied) == 1 and self.tie_at is None and not self.from_start and self.left_gradient > 0

    @property
    def strict_minimum(self) -> bool:
        """Whether θ^{k+1} is a strict local minimum on its support (4.3)."""
        return self.minimum_constant > 0

    @property
    def holds(self) -> bool:
        """Whether 4.2 and 4.3 hold at this stage."""
        return self.unique and self.strict_minimum and self.settled and self.has_limit

    @property
    def verdict(self) -> str:
        """Say in one sentence what holds or what fails.

        >>> Certificate(0.5, 3, (1,), 0.2, (), float("inf"), True).verdict
        'Assumptions 4.2 and 4.3 hold: the winner leads by 50%, c = 0.2.'
        """
        if not self.has_limit:
            return "Phase B has no limit: the winner and its time stand, what follows is unknown."
        if self.from_start:
            return "Active from the start: α is too large for a first plateau."
        if len(self.tied) > 1:
            return f"Assumption 4.2 fails: coordinates {self.tied} tie, so the limit is not unique; it depends on θ0."
        if self.tie_at is not None:
            return f"Assumption 4.2 failed at stage {self.tie_at}, a tie: from there on the stages depend on θ0."
        if not self.settled:
            return "Phase B was cut short by the next activation: α is too large for separate stages here."
        if not self.unique:
            return f"Assumption 4.2 fails: coordinates {self.left} left the support and no gradient keeps them away."
        if not self.strict_minimum:
            return f"Assumption 4.3 fails: c = {self.minimum_constant:.3g} is not positive."
        return f"Assumptions 4.2 and 4.3 hold: the winner {self._lead}, c = {self.minimum_constant:.3g}."

    @property
    def _lead(self) -> str:
        if self.runner_up is None:
            return "leads alone"
        if not np.isfinite(self.winner_gap):
            return "was at the wall already"
        if self.winner_gap >= 1:
            return f"is far ahead: the runner-up would take {1 + self.winner_gap:.3g} times as long"
        if self.winner_gap < 1e-4:
            return f"leads by only {self.winner_gap:.1e} of its time"
        return f"leads by {100 * self.winner_gap:.2g}%"


@dataclass(frozen=True)
class Stages:
    """The result of Algorithm 1: K stages between K + 1 stationary points.

    Attributes:
        coordinates: The winner i_k of each stage, K integers; the first of the group where several tie.
        groups: All coordinates that activate in each stage, K tuples; longer than one only in a tie, or at time 0 where
            products of a run start above the threshold.
        signs: Sign of each winner's product, K times +1 or -1.
        times: T_1 ... T_K, rescaled, (K,).
        certificates: Assumptions 4.2 and 4.3, one record per stage.
        products: q^0 ... q^K, (K + 1, p); where phase B has no limit, the last row is where it was given up.
        losses: L(θ^0) ... L(θ^K), (K + 1,).
        supports: Support of each θ^k, K + 1 tuples.
        log_weights: b^0 ... b^K, (K + 1, p).
        log10_alpha: log10 α of the predicted run, None for the limit.
        threshold: |q| at which a coordinate counts as active; 0 in the limit.
        status: How the algorithm ended, with a remedy.
        num_gradients: Gradients computed.
        num_jacobian_columns: Hessian columns computed.
        weight_decay: λ of the penalty ½ λ ‖θ‖², 0 for the flow of the paper.
        stuck: Coordinates that feel no gradient at the end although the loss falls if they move together; the status is
            then SADDLE.
        idle: All coordinates that are zero at the end and feel no gradient there.
    """

    coordinates: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    signs: tuple[int, ...]
    times: Tensor
    certificates: tuple[Certificate, ...]
    products: Tensor
    losses: Tensor
    supports: tuple[tuple[int, ...], ...]
    log_weights: Tensor
    log10_alpha: float | None
    threshold: float
    status: Status
    num_gradients: int
    num_jacobian_columns: int
    weight_decay: float = 0.0
    stuck: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()

    @property
    def advice(self) -> str:
        """Say how the algorithm ended, which coordinates never moved, and what to do about it."""
        loss = float(self.losses[-1])
        if self.idle and self.status is Status.FINISHED and loss > _HIGH * float(self.losses[0]):
            return (
                f"The loss ends at {loss:.4g} while coordinates {self.idle} feel no gradient and never move: "
                "check that h uses them."
            )
        return self.status.at(loss, self.stuck)

    def __str__(self) -> str:
        """Return the stages as a table, and under it the verdicts that fail and how the algorithm ended."""
        rows = [
            {
                "stage": k + 1,
                "time": float(self.times[k]),
                "joins": " ".join(map(str, self.groups[k])),
                "sign": "+" if self.signs[k] > 0 else "-",
                "leaves": " ".join(map(str, certificate.left)),
                "loss": float(self.losses[k + 1]),
                "lead": certificate.winner_gap,
                "c": certificate.minimum_constant,
                "holds": certificate.holds,
            }
            for k, certificate in enumerate(self.certificates)
        ]
        failing = [f"stage {k + 1}: {c.verdict}" for k, c in enumerate(self.certificates) if not c.holds]
        ended = [] if self.advice == Status.FINISHED.remedy else [f"{self.status.value}: {self.advice}"]
        return "\n".join([table(rows) or "No stages.", *failing, *ended])

    def plot(self, flow: "Flow | None" = None) -> "Figure":
        """Draw loss and products of the stages, and those of a flow of the same network beneath them if one is given.

        Args:
            flow: A flow that `solve_flow` returned.

        Returns:
            A figure of matplotlib.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            ValueError: The flow is of another network.
        """
        return plot_stages(self, flow)

    def activation_times(self) -> Tensor:
        """Return the first time each coordinate activates, (p,); inf for those that never do.

        A product that settles below the threshold counts from the first stage that lifts it above.
        """
        times = torch.full((self.products.shape[1],), math.inf, dtype=torch.float64)
        for q, time in reversed(list(zip(self.products[1:], self.times.tolist(), strict=True))):
            times[q.abs() > self.threshold] = time
        return times


def minimum_constant(products: Array, hessian: Array) -> float:
    """Return c = ½ λ_min(4 diag(s ⊙ u) H diag(s ⊙ u)), with u = √|q| and s = sgn q.

    Args:
        products: q on the support, none of them zero.
        hessian: ∂²L/∂q² on the support.

    Returns:
        c; exactly 0 if the smallest eigenvalue is only rounding beside the largest.

    >>> minimum_constant(np.array([4.0]), np.array([[1.0]]))
    8.0
    """
    if len(products) == 0:
        return float("inf")
    su = np.sign(products) * np.sqrt(np.abs(products))
    eigenvalues = np.linalg.eigvalsh(4 * su[:, None] * hessian * su)
    rounding = _ROUNDING * float(np.abs(eigenvalues).max())
    return 0.5 * float(eigenvalues[0]) if abs(eigenvalues[0]) > rounding else 0.0


def winner_gap(delta: Array, tied: Index) -> tuple[float, int | None]:
    """Return (Δ₂ - Δ₁) / Δ₁ and the second coordinate; in a tie, 0 and the second coordinate of the group.

    >>> winner_gap(np.array([1.0, np.inf, 1.5]), np.array([0]))
    (0.5, 2)
    """
    if len(tied) > 1:
        return 0.0, int(tied[1])
    order = np.argsort(delta, kind="stable")
    if len(order) == 1 or not np.isfinite(delta[order[1]]):
        return float("inf"), None
    second, first = int(order[1]), float(delta[order[0]])
    return (float(delta[second]) - first) / first if first > 0 else float("inf"), second
