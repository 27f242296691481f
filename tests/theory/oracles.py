"""Independent answers to compare rankrise with: plain numpy and mpmath, nothing of the package.

Symbols:
    q = u ⊙ v   products; g = -∂L/∂q; du/dt = v ⊙ g, dv/dt = u ⊙ g; θ(0) = α θ0; times are t / log(1/α)
    w, ŵ        u + v and u - v, with dw/dt = w ⊙ g and dŵ/dt = -ŵ ⊙ g; w_i ŵ_i = u_i² - v_i² = c_i is conserved
    L           ½‖y - h‖², summed over outputs, averaged over samples
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.integrate import DOP853, solve_ivp
from scipy.optimize import nnls

Array = NDArray[Any]  # float64, or object arrays of mpf


class Head(NamedTuple):
    """A student attention head with a teacher's data, and its start θ0."""

    x: Array  # (N, n, d)
    y: Array  # (N, n, d)
    u0: Array  # (2d,)
    v0: Array  # (2d,)


def draw_head(*, samples: int, tokens: int, dim: int, seed: int) -> Head:
    """Gaussian tokens, a Gaussian teacher, a Gaussian start."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, tokens, dim))
    w_k, w_q, w_v, w_o = rng.standard_normal((4, dim))
    u0, v0 = rng.standard_normal(2 * dim), rng.standard_normal(2 * dim)
    attended, _ = attend(x, w_k * w_q, np.exp)
    return Head(x, attended * (w_v * w_o), u0, v0)


def attend(x: Array, a: Array, exp: Callable[[Array], Array]) -> tuple[Array, Array]:
    """softmax(X diag(a) Xᵀ) X and the softmax itself, for float64 or mpf."""
    scores = (x * a) @ x.swapaxes(1, 2)
    s = exp(scores - scores.max(axis=-1, keepdims=True))
    s = s / s.sum(axis=-1, keepdims=True)
    return s @ x, s


def head_gradient(x: Array, y: Array, q: Array, exp: Callable[[Array], Array] = np.exp) -> Array:
    """g of softmax(X diag(a) Xᵀ) X diag(b), q = [a, b], for float64 or mpf."""
    a, b = np.split(q, 2)
    m, s = attend(x, a, exp)
    r = y - m * b
    to_s = (r * b) @ x.swapaxes(1, 2)
    to_scores = s * (to_s - (s * to_s).sum(axis=-1, keepdims=True))
    return np.concatenate([((to_scores @ x) * x).sum(axis=(0, 1)), (r * m).sum(axis=(0, 1))]) / len(x)


# The flow itself


_as_mpf = np.vectorize(mpmath.mpf, otypes=[object])
_exp_mpf = np.vectorize(mpmath.exp, otypes=[object])
_as_float = np.vectorize(float, otypes=[float])


def multiprecision_flow(head: Head, *, log10_alpha: int, times: Array, digits: int, rtol: float = 1e-12) -> Array:
    """Products of the original flow du/dt = v ⊙ g, dv/dt = u ⊙ g in `digits` decimal digits, at rescaled `times`.

    Dormand-Prince of order 8, steps by error control. The error is measured in u + v and u - v relative to each of
    them, without which c would be lost. For c to be in the numbers at all, 2 |log10 α| digits are needed beyond those
    of the answer: on an active coordinate u - v = c / (u + v) is of size α².

    Returns:
        A float64 array (len(times), p); times[0] must be 0.
    """
    with mpmath.workdps(digits):
        x, y = _as_mpf(head.x), _as_mpf(head.y)
        alpha = mpmath.mpf(10) ** log10_alpha
        clock = -mpmath.log(alpha)

        def slope(theta: Array) -> Array:
            u, v = theta
            g = head_gradient(x, y, u * v, _exp_mpf)
            return np.stack([v * g, u * g])

        theta = np.stack([_as_mpf(head.u0), _as_mpf(head.v0)]) * alpha
        products = [theta[0] * theta[1]]
        t, h, first = mpmath.mpf(0), mpmath.mpf(0.1), slope(theta)
        for target in [mpmath.mpf(s) * clock for s in times[1:]]:
            while t < target:
                last = target - t <= h
                trial, error, slope_there = _dop853_step(slope, theta, first, target - t if last else h)
                error /= rtol
                if error <= 1:
                    t = target if last else t + h
                    theta, first = trial, slope_there
                grow = min(2.0, max(0.2, 0.9 * max(error, 1e-10) ** (-1 / 8)))
                h = h if last and error <= 1 and grow >= 1 else h * mpmath.mpf(grow)
            products.append(theta[0] * theta[1])
        return _as_float(np.stack(products))


def _dop853_step(
    slope: Callable[[Array], Array], theta: Array, first: Array, h: mpmath.mpf
) -> tuple[Array, float, Array]:
    """One step: the new θ, its estimated error relative to u + v and u - v, and the slope there."""
    slopes = [first]
    for row in DOP853.A[1:]:
        slopes.append(slope(theta + h * _combine(row, slopes)))
    trial = theta + h * _combine(DOP853.B, slopes)
    slopes.append(slope(trial))
    size = np.stack([theta[0] + theta[1], theta[0] - theta[1]])

    def relative(weights: Array) -> float:
        delta = h * _combine(weights, slopes)
        return float(np.abs(_as_float(np.stack([delta[0] + delta[1], delta[0] - delta[1]]) / size)).max())

    fifth, third = relative(DOP853.E5), relative(DOP853.E3)
    error = 0.0 if fifth == 0 else fifth**2 / float(np.hypot(fifth, 0.1 * third))
    return trial, error, slopes[-1]


def _combine(weights: Array, slopes: list[Array]) -> Array:
    terms = [mpmath.mpf(float(weight)) * k for weight, k in zip(weights, slopes, strict=False) if weight != 0]
    return np.sum(terms, axis=0)


def float64_flow(head: Head, *, log10_alpha: int, times: Array, rtol: float = 1e-12) -> Array:
    """The same flow as `multiprecision_flow` in float64 (u, v), by scipy's DOP853 with atol far below α."""
    p, alpha, clock = len(head.u0), 10.0**log10_alpha, -log10_alpha * np.log(10)

    def slope(_: float, theta: Array) -> Array:
        u, v = np.split(theta, 2)
        g = head_gradient(head.x, head.y, u * v)
        return np.concatenate([v * g, u * g])

    start = np.concatenate([head.u0, head.v0]) * alpha
    solution = solve_ivp(slope, (0, times[-1] * clock), start, "DOP853", times * clock, rtol=rtol, atol=1e-10 * alpha)
    return solution.y[:p].T * solution.y[p:].T


def matrix_flow(x: Array, y: Array, weights: list[Array], *, alpha: float, times: Array) -> Array:
    """W_K, W_Q, W_V, W_O of a full-matrix head at rescaled `times`, (T, 4, d, r), by the implicit Radau method."""
    shape, clock = (4, *weights[0].shape), -np.log(alpha)

    def slope(_: float, theta: Array) -> Array:
        w_k, w_q, w_v, w_o = theta.reshape(shape)
        scores = np.einsum("tik,kl,tjl->tij", x, w_k @ w_q.T, x)
        s = np.exp(scores - scores.max(axis=-1, keepdims=True))
        s /= s.sum(axis=-1, keepdims=True)
        m = s @ x
        r = y - m @ w_v @ w_o.T
        to_s = np.einsum("tik,lk,tjl->tij", r, w_v @ w_o.T, x)
        to_scores = s * (to_s - (s * to_s).sum(axis=-1, keepdims=True))
        g_a = np.einsum("tik,tij,tjl->kl", x, to_scores, x) / len(x)
        g_b = np.einsum("tik,til->kl", m, r) / len(x)
        return np.concatenate([(g_a @ w_q).ravel(), (g_a.T @ w_k).ravel(), (g_b @ w_o).ravel(), (g_b.T @ w_v).ravel()])

    start = alpha * np.stack(weights).astype(float).ravel()
    solution = solve_ivp(slope, (0, times[-1] * clock), start, "Radau", times * clock, rtol=1e-9, atol=1e-11 * alpha)
    return solution.y.T.reshape(-1, *shape)


def one_coordinate_flow(k: float, target: float, u0: float, v0: float, *, log10_alpha: int, times: Array) -> Array:
    """q(t) for one coordinate with g = k (q* - q), in closed form; u0 > |v0|.

    r = e^{2s} = w/ŵ obeys the Riccati equation dr/dt = -(k c / 2) (r - r₊)(r - r₋), r± = (2 q* ± √(4 q*² + c²)) / c, so
    ρ = (r - r₊)/(r - r₋) decays like exp(-k √(4 q*² + c²) t), and q = (c/4)(r - 1/r).
    """
    with mpmath.workdps(40 + 4 * abs(log10_alpha)):
        alpha = mpmath.mpf(10) ** log10_alpha
        u, v, k, target = mpmath.mpf(u0) * alpha, mpmath.mpf(v0) * alpha, mpmath.mpf(k), mpmath.mpf(target)
        c, start = u * u - v * v, (u + v) / (u - v)
        root = mpmath.sqrt(4 * target**2 + c**2)
        high, low = (2 * target + root) / c, (2 * target - root) / c
        clock = -mpmath.log(alpha)

        def product(time: float) -> float:
            rho = (start - high) / (start - low) * mpmath.exp(-k * root * mpmath.mpf(time) * clock)
            r = (high - rho * low) / (1 - rho)
            return float(c / 4 * (r - 1 / r))

        return np.array([product(time) for time in times])


# The limit α → 0 for linear networks


class Saddles(NamedTuple):
    """Successive saddles β (K + 1 of them, from β = 0) and the times (K) of the jumps between them."""

    times: Array
    products: Array


def pesme_flammarion(x: Array, y: Array, *, tolerance: float = 1e-10) -> Saddles:
    """Algorithm 1 of Pesme and Flammarion, "Saddle-to-saddle dynamics in diagonal linear networks" (2023).

    With s the integrated gradient, a coordinate is free once |s_i| = 1:
        Δ ← inf{δ > 0: s_i - δ ∇_i L(β) = ±1 for some i with ∇_i L(β) ≠ 0};  t ← t + Δ;  s ← s - Δ ∇L(β)
        β ← argmin L over β_i ≥ 0 where s_i = 1, β_i ≤ 0 where s_i = -1, β_i = 0 elsewhere
    The constrained least squares problem is solved exactly, by the active set method of Lawson and Hanson.
    """
    num_samples, p = x.shape
    s, beta, t = np.zeros(p), np.zeros(p), 0.0
    scale = np.abs(x.T @ y).max() / num_samples
    times, products = [], [beta]
    while True:
        slope = x.T @ (x @ beta - y) / num_samples
        slope[np.abs(slope) <= tolerance * scale] = 0.0
        moving = slope != 0
        if not moving.any():
            return Saddles(np.array(times), np.array(products))
        wall = np.where(slope < 0, 1.0, -1.0)
        delta = np.full(p, np.inf)
        delta[moving] = (s - wall)[moving] / slope[moving]
        step = delta[delta > tolerance].min()
        arrived = moving & (delta <= step * (1 + tolerance))
        s = np.where(arrived, wall, s - step * slope)
        t += step
        free = np.flatnonzero(np.abs(s) == 1)
        beta = np.zeros(p)
        beta[free] = s[free] * nnls(x[:, free] * s[free], y)[0]
        times.append(t)
        products.append(beta)


def orthogonal_times(x: Array, y: Array) -> Array:
    """Stage times of a linear network whose features are orthogonal: T_i = 1/|g_i(0)| for each coordinate."""
    return 1 / np.abs(x.T @ y / len(x))
