"""The columns of one product that wait: carried through plateaus exactly, and through transitions by their maps.

Symbols:
    Z0          the start [A; B] of the product before the factor α
    H           [[0, G⊥], [G⊥ᵀ, 0]] on a plateau, constant: columns obey dz/dt = H z there
"""

import math

import numpy as np

from rankrise.theory._rosenbrock import Array
from rankrise.theory.matrix._active_flow import Step, swap
from rankrise.theory.matrix._last_direction import LastDirection
from rankrise.theory.matrix._propagators import GradedColumns, maps, off

_GROWTH = 8.0  # largest exponent of one step on a plateau
_ALIGNED = 1e-12  # columns this close to eigenvectors of H grow exactly exponentially
_LANDED = 1e-11
_MOST_ROUNDS = 1_000_000


class Waiting:
    """The columns of one product that wait."""

    def __init__(self, start: Array, log_alpha: float, d: int) -> None:
        self.columns = GradedColumns.of(start, log_alpha)
        self.last: LastDirection | None = None
        self.turned = False
        self.log_alpha, self.d = log_alpha, d
        signs = np.where(np.arange(len(start)) < d, 1.0, -1.0)
        self.conserved = start.T @ (signs[:, None] * start)
        self.square = len(start) == 2 * d == 2 * start.shape[1]

    @property
    def longest(self) -> float:
        """The logarithm of the longest column; -inf without columns."""
        return -math.inf if self.empty else float(self.columns.logs[0])

    @property
    def empty(self) -> bool:
        return len(self.columns.logs) == 0

    def outside(self, gradient: Array, active: Array) -> None:
        """Enter a plateau: keep what is off the active columns, and the gradient there."""
        projection = off(active, self.d)
        gradient = projection[: self.d, : self.d] @ gradient @ projection[self.d :, self.d :]
        self.active = active
        self.u, self.sigma, self.vt = np.linalg.svd(gradient, full_matrices=False)
        self.h = swap(gradient)
        if active.shape[1] and not self.empty:
            self.columns.apply(projection)
            self._place()

    def follow(self, active: Array) -> None:
        """Follow the last direction by volumes from now on, if there are as many columns as rows."""
        self.turned = True
        if self.last is None and self.square and not self.empty:
            self.active = active
            self.columns.apply(off(active, self.d))
            self.last = LastDirection.of(self.columns, self.active, self.conserved, self.log_alpha)

    def drop_first(self) -> None:
        self.columns.drop_first()
        if self.empty:
            self.last = None

    def time_to(self, log_length: float, sigma: float, earliest: float) -> float:
        """Advance until the longest column has a length, and return the time that takes, not below `earliest`."""
        total = 0.0
        for _ in range(_MOST_ROUNDS):
            z = self.columns.units[:, 0]
            rate = float(z @ self.h @ z)
            missing = log_length - float(self.columns.logs[0])
            if abs(missing) < _LANDED * max(1.0, abs(log_length)):
                break
            dt = max(missing / (rate if rate > 0.2 * sigma else sigma), earliest - total)
            if dt == 0:
                break
            if dt < 0 or not self._jump(dt):
                dt = math.copysign(min(abs(dt), _GROWTH / sigma), dt)
                self._apply(dt)
            total += dt
        return total

    def advance(self, dt: float) -> None:
        """Follow the plateau for a time."""
        size = float(self.sigma[0])
        if self.empty or size == 0:
            return
        while dt and not (dt > 0 and self._jump(dt)):
            part = math.copysign(min(abs(dt), _GROWTH / size), dt)
            self._apply(part)
            dt -= part

    def carry(self, step: Step, j: int) -> None:
        """Follow one step of phase B, and keep what is off its active columns."""
        if self.empty:
            return
        active = step.start[j]
        for matrix in maps(step, j):
            before = GradedColumns(self.columns.units, self.columns.logs, self.columns.rows)
            self.columns.apply(off(step.end[j], self.d) @ matrix)
            if self.last is not None:
                self.last.carry(matrix, before, active, self.columns, step.end[j])
        self.active = step.end[j]

    def _jump(self, dt: float) -> bool:
        """Add rate · dt to the logarithms if the columns are eigenvectors of H."""
        units = self.columns.units
        moved = self.h @ units
        rates = (units * moved).sum(axis=0)
        if float(np.abs(moved - rates * units).max()) > _ALIGNED * float(self.sigma[0]):
            return False
        self.columns.logs = self.columns.logs + rates * dt
        if self.last is not None:
            turn = 1.0 if self.last.log_w >= self.last.log_partner else -1.0
            self.last.log_w += turn * rates[-1] * dt
            self.last.log_partner -= turn * rates[-1] * dt
            self._place()
        return True

    def _apply(self, dt: float) -> None:
        """Multiply by exp(H dt)."""
        matrix = np.eye(len(self.h))
        grown, turned = np.cosh(self.sigma * dt) - 1, np.sinh(self.sigma * dt)
        d, u, vt = self.d, self.u, self.vt
        matrix[:d, :d] += (u * grown) @ u.T
        matrix[d:, d:] += (vt.T * grown) @ vt
        matrix[:d, d:] = (u * turned) @ vt
        matrix[d:, :d] = matrix[:d, d:].T
        before = GradedColumns(self.columns.units, self.columns.logs, self.columns.rows)
        self.columns.apply(matrix)
        if self.last is not None:
            self.last.carry(matrix, before, self.active, self.columns, self.active)

    def _place(self) -> None:
        if self.last is not None:
            self.last.place(self.columns, self.active)
