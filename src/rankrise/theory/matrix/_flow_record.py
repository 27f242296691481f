"""What a flow of full matrices leaves behind: spectra at the requested times, and when each direction joined.

Symbols:
    Z           [A; B] of one product, or graded columns e^ℓ_c z_c of it; M = A Bᵀ
    R           rotation of the columns since the start: Z = Φ α Z0 R, so that Z Rᵀ are the factors
    C           Z0ᵀ J Z0: ZᵀJZ = α² Rᵀ C R along the exact flow
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rankrise._tables import table
from rankrise.theory._rosenbrock import Array
from rankrise.theory._status import Status
from rankrise.theory.matrix._propagators import GradedColumns

_BLOCK = 6.0  # columns whose lengths differ by less than e^6 are taken together in an SVD
_BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class MatrixFlow:
    """The gradient flow of a network with full matrices at the requested times.

    Attributes:
        times: Rescaled times t / log(1/α), (T,).
        singular_values: Singular values of each product M_j, descending, one (T, min(d, d', r)) per product.
        log10_singular_values: log10 of the same, which does not underflow.
        losses: L, (T,).
        drifts: ‖ZᵀJZ - α² Rᵀ C R‖ / ‖Z‖² of each product, one (T,) per product; zero for the exact flow.
        factors: A_1, B_1, A_2, B_2, ... at the last of `times`.
        stage_times: Rescaled times at which singular values first passed the threshold, (K,), increasing.
        matrices: The product of each of them, K integers.
        ranks: The index of the singular value within its product, K integers from 0.
        turned: The products whose last direction turned back and was followed by volumes.
        log10_alpha: log10 α.
        num_gradients: Gradients computed.
        num_hessian_products: Products with the Hessian computed, to settle on plateaus.
        num_steps: Steps accepted by the error control.
        status: How the flow ended, with a remedy; the arrays end where the integration stopped.
    """

    times: Tensor
    singular_values: tuple[Tensor, ...]
    log10_singular_values: tuple[Tensor, ...]
    losses: Tensor
    drifts: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]
    stage_times: Tensor
    matrices: tuple[int, ...]
    ranks: tuple[int, ...]
    turned: tuple[int, ...]
    log10_alpha: float
    num_gradients: int
    num_hessian_products: int
    num_steps: int
    status: Status

    def __str__(self) -> str:
        """Return the stage times as a table, one line each, and how the flow ended."""
        stages = zip(self.stage_times.tolist(), self.matrices, self.ranks, strict=True)
        rows = [{"stage": k + 1, "time": t, "matrix": j, "rank": m + 1} for k, (t, j, m) in enumerate(stages)]
        ended = f"{self.status.value}: {self.status.remedy} The loss is {float(self.losses[-1]):.4g}."
        return "\n".join([table(rows) or "No stages.", ended])


class Crossings:
    """When each singular value first passes a threshold, found step by step."""

    def __init__(self, count: int, threshold: float) -> None:
        self.threshold = threshold
        self.passed = [0] * count
        self.found: list[tuple[float, int, int]] = []  # (time, matrix, rank)

    def step(self, start: float, end: float, spectra: Callable[[float], Sequence[Array]]) -> None:
        """Look for passages between two times.

        Args:
            start: Time at which the step starts.
            end: Time at which it ends.
            spectra: The singular values of all products, descending, at a time between them.
        """
        for j, values in enumerate(spectra(end)):
            while self.passed[j] < int((values > self.threshold).sum()):
                low, high = start, end
                for _ in range(_BISECTIONS):
                    middle = 0.5 * (low + high)
                    above = spectra(middle)[j][self.passed[j]] > self.threshold
                    low, high = (low, middle) if above else (middle, high)
                self.found.append((high, j, self.passed[j]))
                self.passed[j] += 1

    def sorted(self, clock: float) -> tuple[list[float], tuple[int, ...], tuple[int, ...]]:
        """Return rescaled times, matrices and ranks, in order."""
        found = sorted(self.found)
        return [t / clock for t, _, _ in found], tuple(j for _, j, _ in found), tuple(m for _, _, m in found)


def spectrum(factors: Array, d: int) -> Array:
    """Return the singular values of A Bᵀ, as many as Z = [A; B] has columns."""
    values: Array = np.asarray(np.linalg.svd(factors[:d] @ factors[d:].T, compute_uv=False), dtype=np.float64)
    return values[: factors.shape[1]]


def log_spectrum(columns: GradedColumns, d: int) -> Array:
    """Return the logarithms of the singular values of A Bᵀ of graded columns, min(d, d', r) of them.

    Groups of columns that differ much in length do not see each other: their A and their B are orthogonal.

    >>> units = np.eye(4)[:, :2] + np.eye(4)[:, 2:]
    >>> log_spectrum(GradedColumns(units, np.array([0.0, -1e5]), np.eye(2)), 2).tolist()
    [0.0, -200000.0]
    """
    count = min(d, len(columns.units) - d, len(columns.logs))
    ends = [i for i in range(1, count) if columns.logs[i - 1] - columns.logs[i] > _BLOCK]
    parts = []
    for low, high in zip([0, *ends], [*ends, len(columns.logs)], strict=True):
        scaled = columns.units[:, low:high] * np.exp(columns.logs[low:high] - columns.logs[low])
        values = spectrum(scaled, d)[: count - low]
        with np.errstate(divide="ignore"):
            parts.append(np.log(values) + 2 * columns.logs[low])
    return np.concatenate(parts)


def drift(columns: GradedColumns, d: int, conserved: Array, log_alpha: float) -> float:
    """Return ‖ZᵀJZ - α² Rᵀ C R‖ / ‖Z‖², relative to the longest column."""
    top = float(columns.logs[0])
    z = columns.units * np.exp(columns.logs - top)
    now = z[:d].T @ z[:d] - z[d:].T @ z[d:]
    scale = math.exp(2 * (log_alpha - top)) if log_alpha - top < 300 else math.inf
    return float(np.linalg.norm(now - scale * columns.rows.T @ conserved @ columns.rows) / np.square(z).sum())
