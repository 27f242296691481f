"""Columns that are too small to matter, carried exactly: graded columns and the linear maps that move them.

Symbols:
    H           [[0, G], [Gᵀ, 0]]; a small column obeys dz/dt = H z
    z_c, ℓ_c    unit columns and the logarithms of their lengths: the columns are e^ℓ_c z_c, orthogonal and descending
    Ω           logarithm of the map of one step, by Magnus' expansion at two Gauss points (order 4): the map stays in
                the group SO(d, d') that conserves ZᵀJZ
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import expm

from rankrise.theory._rosenbrock import Array
from rankrise.theory.matrix._active_flow import Step, swap

_GROWTH = 4.0  # largest exponent by which a map may stretch before columns are made orthogonal again
_APART = 20.0  # columns whose lengths differ by more than e^20 are made orthogonal by changing the shorter one only
_COSINE = 1e-14
_SWEEPS = 30


@dataclass
class GradedColumns:
    """Columns e^ℓ_c z_c of one matrix, orthogonal, with descending lengths; (d + d', r).

    The columns may be rotated among themselves, Z → Z R, because the flow of small columns is linear and M does not
    change under such a rotation. Orthogonal columns keep their relative accuracy however much their lengths differ.

    Attributes:
        units: z_c, (d + d', r).
        logs: ℓ_c, (r,).
        rows: R, (r at the start, r): the columns are those of the start, carried along, times R.
    """

    units: Array
    logs: Array
    rows: Array

    @classmethod
    def of(cls, columns: Array, log_scale: float) -> "GradedColumns":
        """Return the columns of e^log_scale times a matrix."""
        count = columns.shape[1]
        graded = cls(columns.astype(float), np.full(count, log_scale), np.eye(count))
        graded.orthogonalise()
        return graded

    def apply(self, matrix: Array) -> None:
        """Multiply from the left."""
        self.units = matrix @ self.units
        self.orthogonalise()

    def orthogonalise(self) -> None:
        """Rotate the columns among themselves until they are orthogonal: one-sided Jacobi on graded columns."""
        for _ in range(_SWEEPS):
            self._normalise()
            if self.units.shape[1] < 2:
                return
            cosines = np.triu(np.abs(self.units.T @ self.units), 1)
            if cosines.max() < _COSINE:
                return
            if -np.diff(self.logs).max() > _APART:
                self.units = self._gram_schmidt()
                continue
            for p, q in zip(*np.nonzero(cosines > _COSINE), strict=True):
                self._rotate(int(p), int(q))

    def drop_first(self) -> None:
        """Forget the longest column."""
        self.units, self.logs, self.rows = self.units[:, 1:], self.logs[1:], self.rows[:, 1:]

    def _normalise(self) -> None:
        lengths = np.linalg.norm(self.units, axis=0)
        logs = self.logs + np.log(lengths)
        order = np.argsort(-logs, kind="stable")
        self.units, self.logs, self.rows = (self.units / lengths)[:, order], logs[order], self.rows[:, order]

    def _gram_schmidt(self) -> Array:
        q, r = np.linalg.qr(self.units)
        columns: Array = q * np.diag(r)
        return columns

    def _rotate(self, p: int, q: int) -> None:
        """Rotate columns p and q, which is not longer, so that they become orthogonal."""
        x, y = self.units[:, p], self.units[:, q]
        ratio = math.exp(min(0.0, self.logs[q] - self.logs[p]))
        overlap = float(x @ y)
        difference = ratio * ratio * float(y @ y) - float(x @ x)
        root = math.sqrt(difference * difference + 4 * ratio * ratio * overlap * overlap)
        slope = 2 * overlap / (difference + (root if difference > 0 else -root))  # tan of the angle, over the ratio
        cosine = 1 / math.sqrt(1 + (ratio * slope) ** 2)
        of_x, of_y = self.rows[:, p], self.rows[:, q]
        turned = cosine * (of_x - ratio * slope * of_y), cosine * (of_y + ratio * slope * of_x)
        self.rows[:, p], self.rows[:, q] = turned
        self.units[:, p], self.units[:, q] = cosine * (x - ratio * ratio * slope * y), cosine * (y + slope * x)


def maps(step: Step, j: int) -> Iterator[Array]:
    """Yield the maps that carry small columns of matrix j over one step, each stretching by e^4 at most."""
    h1, h2 = swap(step.first[j]), swap(step.second[j])
    h = step.duration
    omega = 0.5 * h * (h1 + h2) + (math.sqrt(3.0) / 12.0) * h * h * (h2 @ h1 - h1 @ h2)
    parts = max(1, math.ceil(float(np.linalg.norm(omega, 2)) / _GROWTH))
    matrix = expm(omega / parts)
    for _ in range(parts):
        yield matrix


def off(factors: Array, d: int) -> Array:
    """Return the projection off the ranges of A and B, (d + d', d + d'), of active columns [A; B]."""
    n = len(factors)
    projection = np.eye(n)
    if factors.shape[1]:
        a, b = np.linalg.qr(factors[:d])[0], np.linalg.qr(factors[d:])[0]
        projection[:d, :d] -= a @ a.T
        projection[d:, d:] -= b @ b.T
    return projection


def transport(frame: Array, steps: Sequence[Step], j: int) -> Array:
    """Carry small directions of matrix j over phase B, off the active ones.

    Args:
        frame: Directions, one per column.
        steps: The path of phase B.
        j: The matrix.

    Returns:
        An orthonormal basis whose first q columns span what became of the first q directions, for every q.
    """
    for step in steps:
        d = step.first[j].shape[0]
        for matrix in maps(step, j):
            frame = np.linalg.qr(matrix @ frame)[0]
        frame = np.linalg.qr(off(step.end[j], d) @ frame)[0]
    return frame
