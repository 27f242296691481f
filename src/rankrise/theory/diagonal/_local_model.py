"""The local model of the flow: g linear in the products, the exponential growth of the weights kept exactly.

Symbols:
    s           growth ∫ g dt since the model was made; log w = log w_0 + s, log ŵ = log ŵ_0 - s
    q(s)        ¼ (w² - ŵ²); dq/ds = ½ (w² + ŵ²)
    H           columns of ∂²L/∂q² for the active coordinates
    g(q)        g_0 - H (q - q_0) + bend φ (φ + lag) / (1 + lag), with φ = direction · (q - q_0); the last term is
                learned from one more gradient, at φ = 1, and vanishes at φ = 0 and φ = -lag
    lag         how far back, in steps like this one, the gradient was measured that H also explains; 0 if H is ∂²L/∂q²
                at q_0. The bend is then the parabola through three gradients, respectively through two and a slope
    wall        the value of log w (or log ŵ) at which a coordinate starts to count as active
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rankrise.theory._rosenbrock import Array, Index, Mask, rodas_step

_LONGEST_LAG = 10.0
_RELAXED = 1e3  # a step of this many relaxation times shows nothing of the relaxation
_TOO_LONG = 0.5  # a coordinate may pass the wall by this much before a step is taken back


@dataclass(frozen=True)
class LocalModel:
    """g near the products q_0, as a function of the growth s.

    Attributes:
        log_w: log w_0, (p,).
        log_w_hat: log ŵ_0, (p,).
        gradient: g_0, (p,).
        active: The k coordinates large enough to move g.
        columns: H[:, active], (p, k).
        bend: What the linear part misses at φ = 1, (p,).
        direction: φ = direction · (q - q_0), (k,).
        lag: Distance back to the gradient that H explains.
    """

    log_w: Array
    log_w_hat: Array
    gradient: Array
    active: Index
    columns: Array
    bend: Array
    direction: Array
    lag: float

    smallest_length = 1e-18  # for a smaller ‖q - q_0‖² a defect is rounding and says nothing about H

    def weights_squared(self, s: Array) -> tuple[Array, Array]:
        """Return w² and ŵ² of the active coordinates."""
        grown = s[self.active]
        log_w, log_w_hat = self._active_logs
        return np.exp(2 * (log_w + grown)), np.exp(2 * (log_w_hat - grown))

    def displacement(self, s: Array) -> Array:
        """Return q(s) - q_0 of the active coordinates."""
        w, w_hat = self.weights_squared(s)
        w_0, w_hat_0 = self._weights_squared_at_start
        moved: Array = 0.25 * ((w - w_0) - (w_hat - w_hat_0))
        return moved

    @cached_property
    def _weights_squared_at_start(self) -> tuple[Array, Array]:
        return self.weights_squared(np.zeros_like(self.log_w))

    @cached_property
    def _active_logs(self) -> tuple[Array, Array]:
        return self.log_w[self.active], self.log_w_hat[self.active]

    def slope(self, s: Array) -> Array:
        """Return the model's g at growth s."""
        moved = self.displacement(s)
        phi = self.direction @ moved
        slope: Array = self.gradient - self.columns @ moved + self.bend * (phi * (phi + self.lag) / (1 + self.lag))
        return slope

    def jacobian(self, s: Array) -> Array:
        """Return the columns ∂g/∂s of the active coordinates, (p, k)."""
        w, w_hat = self.weights_squared(s)
        phi = self.direction @ self.displacement(s)
        by_product = -self.columns + np.outer((2 * phi + self.lag) / (1 + self.lag) * self.bend, self.direction)
        columns: Array = by_product * (0.5 * (w + w_hat))
        return columns

    def bent(self, s: Array, gradient: Array, before: Array) -> "LocalModel":
        """Return the model that also passes through the gradient measured at growth s.

        Args:
            s: Growth at the end of the step.
            gradient: g measured there.
            before: Displacement of the step before, which H explains; 0 if H was measured at q_0, (p,).
        """
        moved = self.displacement(s)
        length = float(moved @ moved)
        if length <= self.smallest_length:
            return self
        lag = float(np.clip(before[self.active] @ moved / length, 0.0, _LONGEST_LAG))
        return replace(self, bend=gradient - self.slope(s), direction=moved / length, lag=lag)


@dataclass(frozen=True)
class Path:
    """A solution of the local model: times since its start, growths and slopes, one row per node.

    Attributes:
        times: (n,), from 0.
        growths: s, (n, p).
        slopes: ds/dt, (n, p).
        relaxed: Where a coordinate relaxed within a small part of the step before a node, (n, p): its slope says
            nothing about the rest of the step, whose length multiplies its rounding.
    """

    times: Array
    growths: Array
    slopes: Array
    relaxed: Mask

    def at(self, t: float) -> Array:
        """Return the growth at time t by cubic Hermite interpolation, linear where a coordinate relaxed."""
        n = int(np.clip(np.searchsorted(self.times, t), 1, len(self.times) - 1))
        h = self.times[n] - self.times[n - 1]
        x = (t - self.times[n - 1]) / h
        rise = self.growths[n] - self.growths[n - 1]
        cubic = (1 - 2 * x) * rise + h * ((x - 1) * self.slopes[n - 1] + x * self.slopes[n])
        growth: Array = self.growths[n - 1] + x * rise + np.where(self.relaxed[n], 0.0, x * (x - 1) * cubic)
        return growth

    def first(self, is_past: Callable[[Array], bool], node: int) -> float:
        """Return when s first satisfies `is_past`, by bisection between a node that does and the one before."""
        if node == 0:
            return float(self.times[0])
        low, high = float(self.times[node - 1]), float(self.times[node])
        while low < (middle := 0.5 * (low + high)) < high:
            low, high = (low, middle) if is_past(self.at(middle)) else (middle, high)
        return high


def tolerance_scale(log_w: Array, log_w_hat: Array) -> Array:
    """Return the length by which errors of s are judged: 1 plus a fiftieth of the distance to activity, log w = 0.

    A coordinate held at zero, log w = log ŵ = -inf, is judged like an active one.
    """
    distance = np.maximum(0.0, -np.maximum(log_w, log_w_hat))
    scale: Array = 1.0 + 0.02 * np.where(np.isfinite(distance), distance, 0.0)
    return scale


def solve_model(model: LocalModel, *, duration: float, radius: float, wall: float, tolerance: float, h: float) -> Path:
    """Integrate ds/dt = g(q(s)) of the model until it stops being valid.

    It stops at `duration`; where the products have moved by `radius`; or where an inactive coordinate reaches the wall.
    A path of one node says that no step was short enough.

    Args:
        model: The local model.
        duration: Longest time.
        radius: Largest ‖q - q_0‖.
        wall: Value of log w and log ŵ that inactive coordinates must not pass.
        tolerance: Tolerance of s, relative to `tolerance_scale`.
        h: First step to try.
    """
    active = np.zeros(len(model.gradient), dtype=bool)
    active[model.active] = True
    idle = np.flatnonzero(~active)
    t, s = 0.0, np.zeros_like(model.gradient)
    slope = model.slope(s)
    nodes = [(t, s, slope, np.zeros(len(s), dtype=bool))]
    moved = 0.0
    while t < duration and t + h > t:
        h = min(h, duration - t, _time_to_wall(model, s, slope, idle, wall))
        jacobian = model.jacobian(s)
        with np.errstate(over="ignore", invalid="ignore"):
            s_new, error = rodas_step(model.slope, s, slope, jacobian, model.active, h)
            scale = tolerance * tolerance_scale(model.log_w + s, model.log_w_hat - s)
            size = float(np.max(np.abs(error) / scale))
            moved_new = float(np.linalg.norm(model.displacement(s_new)))
        if not size <= 1.0:
            h *= max(0.1, 0.9 * size**-0.25) if np.isfinite(size) else 0.1
            continue
        if moved_new > 1.1 * radius:
            h *= min(0.9, max(0.1, (radius - moved) / (moved_new - moved)))
            continue
        overshoot = _height(model, s_new, idle) - wall
        if overshoot > _TOO_LONG:
            before = _height(model, s, idle) - wall
            h *= min(0.9, max(0.1, -before / (overshoot - before)))
            continue
        t, s, slope, moved = t + h, s_new, model.slope(s_new), moved_new
        relaxed = np.zeros(len(s), dtype=bool)
        relaxed[model.active] = -h * jacobian[model.active, np.arange(len(model.active))] > _RELAXED
        nodes.append((t, s, slope, relaxed))
        if moved >= 0.9 * radius or overshoot >= 0.0:
            break
        h *= min(10.0, 0.9 * size**-0.25) if size > 0 else 10.0
    times, growths, slopes, relaxations = zip(*nodes, strict=True)
    return Path(np.array(times), np.array(growths), np.array(slopes), np.array(relaxations))


def _height(model: LocalModel, s: Array, idle: Index) -> float:
    """Return the largest log w or log ŵ of the coordinates that are not active."""
    if len(idle) == 0:
        return -np.inf
    return float(np.maximum(model.log_w[idle] + s[idle], model.log_w_hat[idle] - s[idle]).max())


def _time_to_wall(model: LocalModel, s: Array, slope: Array, idle: Index, wall: float) -> float:
    """Return the time at which a coordinate that is not active reaches the wall if its slope stays."""
    slope = slope[idle]
    height = np.where(slope > 0, model.log_w[idle] + s[idle], model.log_w_hat[idle] - s[idle])
    with np.errstate(divide="ignore"):
        times = (np.maximum(wall - height, 0.0) + 0.1 * _TOO_LONG) / np.abs(slope)
    return float(times.min(initial=np.inf))
