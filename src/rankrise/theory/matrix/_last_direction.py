"""The last direction of a square product, which can turn: its two sizes are carried as numbers, not as a column.

Symbols:
    k, Jk       [u; v]/√2 and [u; -v]/√2 of the last direction; its column is z = w k + ŵ Jk
    C           Z0ᵀ J Z0, conserved: zᵀJz = 2 w ŵ = α² ρᵀ C ρ, with z = Z ρ
    F           [U; V]/√2 with U, V in O(d): all directions along which columns grow, the last one in its last column;
                the sign of det U det V tells k from Jk
    E           the map of a step; det(F'ᵀ E F) is how it stretches the volume spanned by F

A column in float64 forgets ŵ once ŵ/w falls below rounding, and when the gradient then drives w down, only rounding is
left to grow. The volumes in the two families of F have no such cancellation: w grows by
det(F'ᵀ E F) / det(F'_<ᵀ E F_<), with F_< the frame without the last direction, and ŵ by the same with Jk for k. What
this neglects is of the size of the square of the ratio of the last two columns.
"""

import math
from dataclasses import dataclass

import numpy as np

from rankrise.theory._rosenbrock import Array
from rankrise.theory.matrix._propagators import GradedColumns

_APART = 8.0  # the last two columns must differ by e^8 for the volumes to be accurate


@dataclass
class LastDirection:
    """log w and log ŵ of the last direction of a square product.

    Attributes:
        log_w: log w.
        log_partner: log ŵ.
        family: det U det V of the frame whose last direction is k.
        reliable: Whether the last two columns were far enough apart all the time.
    """

    log_w: float
    log_partner: float
    family: float
    reliable: bool

    @classmethod
    def of(cls, columns: GradedColumns, active: Array, conserved: Array, log_alpha: float) -> "LastDirection":
        """Read w off the last column, which has not turned yet, and ŵ off the conserved quantity.

        Args:
            columns: The columns that wait.
            active: The active columns [A; B].
            conserved: C.
            log_alpha: log α.
        """
        u, v = _frame(columns, active, 1.0)
        z, d = columns.units[:, -1], len(u)
        family = math.copysign(1.0, float(np.linalg.det(u) * np.linalg.det(v)))
        of_a, of_b = float(u[:, -1] @ z[:d]), float(v[:, -1] @ z[d:])
        if of_a * of_b < 0:
            family = -family
        log_w = float(columns.logs[-1]) + math.log((abs(of_a) + abs(of_b)) / math.sqrt(2.0))
        rho = columns.rows[:, -1]
        constant = abs(float(rho @ conserved @ rho)) / 2 + 1e-300  # zero for a start with AᵀA = BᵀB: ŵ is zero
        return cls(log_w, 2 * log_alpha + math.log(constant) - log_w, family, _apart(columns))

    def carry(
        self, matrix: Array, before: GradedColumns, active: Array, after: GradedColumns, active_after: Array
    ) -> None:
        """Follow the map of a step, and put the right column in the place of the last one of `after`."""
        grown = []
        for family in (self.family, -self.family):
            first, last = (_stacked(*_frame(*pair, family)) for pair in ((before, active), (after, active_after)))
            volumes = last.T @ matrix @ first
            grown.append(np.linalg.slogdet(volumes)[1] - np.linalg.slogdet(volumes[:-1, :-1])[1])
        self.log_w, self.log_partner = self.log_w + grown[0], self.log_partner + grown[1]
        self.place(after, active_after)

    def place(self, columns: GradedColumns, active: Array) -> None:
        """Put w k + ŵ Jk in the place of the last column."""
        u, v = (part[:, -1] for part in _frame(columns, active, self.family))
        top = max(self.log_w, self.log_partner)
        w, partner = math.exp(self.log_w - top), math.exp(self.log_partner - top)
        z = np.concatenate([(w + partner) * u, (w - partner) * v])
        columns.units[:, -1] = z / np.linalg.norm(z)
        columns.logs[-1] = top + math.log(float(np.linalg.norm(z)) / math.sqrt(2.0))
        self.reliable = self.reliable and _apart(columns)


def _apart(columns: GradedColumns) -> bool:
    return len(columns.logs) < 2 or bool(columns.logs[-2] - columns.logs[-1] > _APART)


def _frame(columns: GradedColumns, active: Array, family: float) -> tuple[Array, Array]:
    """Return U and V in O(d): active directions, then those of all columns but the last, then what is left."""
    d = len(active) // 2
    halves = []
    for part in (slice(0, d), slice(d, 2 * d)):
        fixed = _polar(active[part])
        moving = columns.units[part, :-1]
        moving = _polar(moving - fixed @ (fixed.T @ moving))
        most = np.hstack([fixed, moving])
        rest = np.linalg.qr(most, mode="complete")[0][:, most.shape[1] :]
        halves.append(np.hstack([most, rest]))
    u, v = halves
    if np.linalg.det(u) * np.linalg.det(v) * family < 0:
        v[:, -1] *= -1
    return u, v


def _polar(matrix: Array) -> Array:
    if matrix.shape[1] == 0:
        return matrix
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    turn: Array = u @ vt
    return turn


def _stacked(u: Array, v: Array) -> Array:
    return np.concatenate([u, v]) / math.sqrt(2.0)
