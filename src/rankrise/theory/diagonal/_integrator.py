"""Steps of the gradient flow: the local model is followed as far as one more gradient confirms it.

Symbols:
    A step      solve the local model (predictor), measure g at its end, bend the model so that it passes through that
                value, solve again (corrector); their difference is the error.
    H           columns of ∂²L/∂q², measured once when a coordinate becomes active, then carried along by Broyden's
                rank-one update and measured again when a step fails far from where they were measured, or when old
    wall        log w or log ŵ above which a coordinate counts as active; below it its product is taken as zero
    radius      largest ‖q - q_0‖ for which the model is trusted; time needs no step size of its own, so a plateau of
                any length is one step
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rankrise.theory._rosenbrock import Array, Index
from rankrise.theory.diagonal._coordinates import log_products
from rankrise.theory.diagonal._diagonal_network import Landscape
from rankrise.theory.diagonal._local_model import LocalModel, Path, solve_model, tolerance_scale

_FIRST_RADIUS = 0.1  # largest ‖q - q_0‖ of the first step; later steps adapt it
_SMALLEST_RADIUS = 1e-12  # a share of the size of the products; a model that fails below this radius never holds
_MODEL_TOLERANCE = 0.1  # tolerance of the local model, as a part of that of the flow
_NEGLIGIBLE = 0.01  # a correction smaller than this part of the tolerance is not worth a gradient
_FAR = 5.0  # columns are measured again once the products have moved by this many times the failed step
_OLD = 20  # columns are measured again after this many steps plus one per active coordinate in any case
ENDLESS = 1e100  # a product as large as this, whose square float64 still holds, grows without bound
_HYSTERESIS = 2.0  # an active coordinate is dropped this far below the wall


@dataclass(frozen=True)
class Piece:
    """One accepted step: where it started and the path it took."""

    time: float
    log_w: Array
    log_w_hat: Array
    path: Path

    @property
    def end(self) -> float:
        """Time at the end of the step."""
        return self.time + float(self.path.times[-1])


def products_at(pieces: Sequence[Piece], times: Array) -> Array:
    """Return q at times on a path, (len(times), p)."""
    ends = np.array([piece.end for piece in pieces])
    rows = []
    for t, n in zip(times.tolist(), np.searchsorted(ends, times).tolist(), strict=True):
        piece = pieces[min(n, len(pieces) - 1)]
        s = piece.path.at(t - piece.time)
        rows.append(log_products(piece.log_w + s, piece.log_w_hat - s))
    return np.array(rows).reshape(len(times), len(pieces[0].log_w))


class Integrator:
    """The gradient flow in logarithmic coordinates, one accepted step at a time.

    Args:
        net: The network.
        log_w: log w at the start, α included; -inf for a coordinate held at zero.
        log_w_hat: log ŵ likewise.
        wall: Value of log w and log ŵ above which a coordinate is active.
        rtol: Tolerance of s, relative to `tolerance_scale`.
        hessian: ∂²L/∂q² at the start, (p, p), if it is known already.

    Attributes:
        t: Time, not rescaled.
        loss: L at the products of the active coordinates.
        gradient: g at these products.
        hessian: The latest estimate of ∂²L/∂q², (p, p); only its columns `active` are close to the true ones.
    """

    def __init__(
        self,
        net: Landscape,
        log_w: Array,
        log_w_hat: Array,
        *,
        wall: float,
        rtol: float,
        hessian: Array | None = None,
    ) -> None:
        self.t = 0.0
        self.log_w, self.log_w_hat = log_w, log_w_hat
        self.num_gradients = self.num_columns = self.num_steps = self.num_rejected = 0
        self._net, self._wall, self._rtol = net, wall, rtol
        self._known = np.full(len(log_w), hessian is not None)
        self.hessian = np.zeros((len(log_w), len(log_w))) if hessian is None else hessian.copy()
        self._before = np.zeros_like(log_w)
        self._radius, self._travel, self._age, self._h = _FIRST_RADIUS, 0.0, 0, 1.0
        self.active = self._find_active()
        self.loss, self.gradient = self._measure(log_w, log_w_hat)

    @property
    def products(self) -> Array:
        """Products q of all coordinates."""
        return log_products(self.log_w, self.log_w_hat)

    def step(self, t_end: float, max_steps: int) -> Piece | None:
        """Take one step within the tolerance, at most to t_end; None if no step was short enough or steps ran out."""
        self.active = self._find_active()
        smallest = _SMALLEST_RADIUS * (1.0 + float(np.abs(self.products).max()))
        while self._radius > smallest and self.num_steps < max_steps:
            self.num_steps += 1
            piece = self._attempt(t_end - self.t)
            if piece is not None:
                return piece
            self.num_rejected += 1
        return None

    def _attempt(self, duration: float) -> Piece | None:
        model = self._model()
        predicted = self._solve(model, duration)
        if len(predicted.times) == 1:
            self._radius = 0.0
            return None
        s = predicted.growths[-1]
        loss, gradient = self._measure(self.log_w + s, self.log_w_hat - s)
        moved = float(np.linalg.norm(model.displacement(s)))
        corrected = self._solve(model.bent(s, gradient, self._before), float(predicted.times[-1]))
        error = self._error(predicted, corrected)
        if not error <= 1.0:
            self._radius = moved * max(0.1, 0.8 * error**-0.5)
            if self._travel > _FAR * moved:
                self._measure_columns()
            return None
        path = predicted
        if error > _NEGLIGIBLE:
            path, s = corrected, corrected.growths[-1]
            loss, gradient = self._measure(self.log_w + s, self.log_w_hat - s)
        self._learn(model, s, gradient)
        self._travel += moved
        if moved > 0.5 * self._radius:
            self._radius = moved * min(3.0, max(0.3, 0.9 * max(error, 1e-6) ** (-1 / 3)))
        piece = Piece(self.t, self.log_w, self.log_w_hat, path)
        self.t, self.log_w, self.log_w_hat = piece.end, self.log_w + s, self.log_w_hat - s
        self.loss, self.gradient, self._h = loss, gradient, float(path.times[-1] - path.times[-2])
        self._age += 1
        if self._age > _OLD + len(self.active) and error > _NEGLIGIBLE:
            self._measure_columns()
        return piece

    def _model(self) -> LocalModel:
        """Return the local model at this point; columns of newly active coordinates are measured."""
        now = np.zeros_like(self._known)
        now[self.active] = True
        new = np.flatnonzero(now & ~self._known)
        if len(new):
            self.hessian[:, new] = self._columns(new)
        self._known = now
        k = len(self.active)
        columns, straight = self.hessian[:, self.active], (np.zeros_like(self.log_w), np.zeros(k), 0.0)
        return LocalModel(self.log_w, self.log_w_hat, self.gradient, self.active, columns, *straight)

    def _measure_columns(self) -> None:
        """Measure all columns again at this point."""
        self.hessian[:, self.active] = self._columns(self.active)
        self._before = np.zeros_like(self.log_w)
        self._travel, self._age = 0.0, 0

    def _solve(self, model: LocalModel, duration: float) -> Path:
        tolerance = _MODEL_TOLERANCE * self._rtol
        return solve_model(
            model, duration=duration, radius=self._radius, wall=self._wall, tolerance=tolerance, h=self._h
        )

    def _error(self, predicted: Path, corrected: Path) -> float:
        """Return the size of the correction in units of the tolerance."""
        if len(corrected.times) == 1:
            return np.inf
        s = corrected.growths[-1]
        scale = np.maximum(
            tolerance_scale(self.log_w, self.log_w_hat), tolerance_scale(self.log_w + s, self.log_w_hat - s)
        )
        return float(np.max(np.abs(s - predicted.at(float(corrected.times[-1]))) / scale)) / self._rtol

    def _learn(self, model: LocalModel, s: Array, gradient: Array) -> None:
        """Update the columns by Broyden's rule, so that they explain the gradient at both ends of the step."""
        moved = model.displacement(s)
        length = float(moved @ moved)
        self._before = np.zeros_like(self.log_w)
        self._before[self.active] = moved
        if length > model.smallest_length:
            self.hessian[:, self.active] -= np.outer(gradient - model.slope(s), moved) / length

    def _find_active(self) -> Index:
        height = np.maximum(self.log_w, self.log_w_hat)
        return np.flatnonzero((height >= self._wall) | (self._known & (height > self._wall - _HYSTERESIS)))

    def _masked(self, log_w: Array, log_w_hat: Array) -> torch.Tensor:
        q = np.zeros_like(log_w)
        q[self.active] = log_products(log_w[self.active], log_w_hat[self.active])
        return torch.from_numpy(q)

    def _measure(self, log_w: Array, log_w_hat: Array) -> tuple[float, Array]:
        self.num_gradients += 1
        loss, gradient = self._net.loss_and_gradient(self._masked(log_w, log_w_hat))
        return loss, gradient.cpu().numpy()

    def _columns(self, index: Index) -> Array:
        self.num_columns += len(index)
        columns = self._net.hessian_columns(self._masked(self.log_w, self.log_w_hat), index.tolist())
        array: Array = columns.cpu().numpy()
        return array
