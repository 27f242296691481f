"""Phase B for matrices: the flow of the active columns, run to its limit by an implicit method and Newton's.

Symbols:
    Z_j         [A_j; B_j], the active columns of matrix j, (d_j + d'_j, r_j); M_j = A_j B_jᵀ
    G_j, H_j    -∂L/∂M_j and [[0, G_j], [G_jᵀ, 0]]; dZ_j/dt = (H_j - λ) Z_j
    λ           weight decay; at rest M_j is then stationary for L with a penalty λ on the nuclear norm
    z           all Z_j, row by row, one after another: n numbers
    D           ∂M/∂z, (p, n); ∇² of L + ½ λ |Z|² in z is Dᵀ (∇²_M L) D - H + λ; the gauge directions [A T; -B Tᵀ] do
                not change L, and those that are rotations are in its kernel
    step        t, the duration h and G at the two Gauss points: all that a propagator of inactive columns needs
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import block_diag

from rankrise.theory._rosenbrock import Array, rodas_step
from rankrise.theory._status import Status
from rankrise.theory.matrix._matrix_network import MatrixNetwork

Factors = tuple[Array, ...]

_HORIZON = 1e9  # longest phase B, in units of 1/scale
_ENDLESS = 1e6  # a product this large grows without bound
_SLOW = 1e-6  # Newton's method finishes once |H Z| is below this part of scale · |Z|
_STATIONARY = 1e-10  # largest |H Z| after Newton's method, as a part of scale · |Z|
_NEWTON_STEPS = 20
_NEWTON_REACH = 0.05  # Newton's method must end this close to the flow, in |Z|
_LEFT = 1e-6  # a singular value that shrinks and is below this part of the largest one has left
_GAUSS = 0.5 - math.sqrt(3.0) / 6.0


@dataclass(frozen=True)
class Step:
    """One step of phase B: Z and dZ/dt at both ends, and G of every matrix at the two Gauss points between them."""

    time: float
    duration: float
    start: Factors
    end: Factors
    start_slope: Factors
    end_slope: Factors
    first: Factors
    second: Factors

    def at(self, x: float) -> Factors:
        """Return Z at the part x of the step, by cubic Hermite interpolation."""
        ends = zip(self.start, self.start_slope, self.end, self.end_slope, strict=True)
        return tuple(_hermite(*end, self.duration, x) for end in ends)


@dataclass(frozen=True)
class Settled:
    """Where phase B went.

    Attributes:
        factors: Z_j at the end; columns that left are gone.
        loss: L at the end.
        gradients: G_j at the end.
        curvature: Smallest eigenvalue of ∇² on the active columns modulo gauge; inf without active columns.
        left: The matrix of each direction that left, in the order in which they did.
        steps: The path.
        status: FINISHED, or why there is no limit.
    """

    factors: Factors
    loss: float
    gradients: Factors
    curvature: float
    left: tuple[int, ...]
    steps: tuple[Step, ...]
    status: Status

    @property
    def duration(self) -> float:
        """How long the path is, in time that is not rescaled."""
        return self.steps[-1].time + self.steps[-1].duration if self.steps else 0.0


class ActiveFlow:
    """Slopes, Jacobians and steps of the flow of active columns; counts gradients and Hessian products."""

    def __init__(self, net: MatrixNetwork, decay: float = 0.0) -> None:
        self.net, self.decay = net, decay
        self.num_gradients = 0
        self.num_hessian_products = 0

    def gradients(self, factors: Factors) -> tuple[float, Factors]:
        """Return L and G_j at M_j = A_j B_jᵀ."""
        self.num_gradients += 1
        loss, gradients = self.net.loss_and_gradients(self._products(factors))
        return loss, tuple(g.cpu().numpy() for g in gradients)

    def curvature_along(self, factors: Factors, j: int, direction: Array) -> float:
        """Return ⟨V, ∇²L V⟩ for a direction V of matrix j."""
        along = [np.zeros((1, *shape)) for shape in self.net.shapes]
        along[j][0] = direction
        self.num_hessian_products += 1
        moved = self.net.hessian_products(self._products(factors), [torch.from_numpy(v) for v in along])
        return float((moved[j][0].cpu().numpy() * direction).sum())

    def jacobian(self, factors: Factors, gradients: Factors) -> Array:
        """Return ∂((H - λ) Z)/∂z, symmetric, (n, n)."""
        parts = [
            _product_derivative(z, shape) for z, shape in zip(factors, self.net.shapes, strict=True)
        ]  # (n_j, d_j, d'_j) each
        sizes = [len(part) for part in parts]
        n, p = sum(sizes), self.net.num_products
        derivative = block_diag(*[part.reshape(len(part), math.prod(part.shape[1:])) for part in parts])  # (n, p): Dᵀ
        along = derivative if n < p else np.eye(p)
        self.num_hessian_products += len(along)
        splits = np.cumsum([rows * columns for rows, columns in self.net.shapes])[:-1]
        directions = [
            torch.from_numpy(np.ascontiguousarray(v)).reshape(-1, *shape)
            for v, shape in zip(np.split(along, splits, axis=1), self.net.shapes, strict=True)
        ]
        moved = self.net.hessian_products(self._products(factors), directions)
        hessian = np.concatenate([v.cpu().numpy().reshape(len(along), -1) for v in moved], axis=1)
        bent = hessian @ derivative.T if n < p else derivative @ hessian @ derivative.T
        straight = block_diag(*[np.kron(swap(g), np.eye(z.shape[1])) for g, z in zip(gradients, factors, strict=True)])
        jacobian: Array = straight - 0.5 * (bent + bent.T) - self.decay * np.eye(n)
        return jacobian

    def between(self, step: Step, x: float) -> Factors:
        """Return Z at the part x of a step to the accuracy of the step, by a shorter one."""
        shapes, z = [f.shape for f in step.start], _flatten(step.start)

        def slope(at: Array) -> Array:
            there = _unflatten(at, shapes)
            return _flatten(self._flow(there, self.gradients(there)[1]))

        jacobian = self.jacobian(step.start, self.gradients(step.start)[1])
        every = np.arange(len(z))
        part, _ = rodas_step(slope, z, _flatten(step.start_slope), jacobian, every, max(x, 1e-6) * step.duration)
        return _unflatten(part, shapes)

    def settle(self, factors: Factors, *, scale: float, rtol: float, max_steps: int) -> Settled:
        """Follow the flow from Z until it rests: phase B.

        Args:
            factors: Start; the newest column is small.
            scale: Size of G by which slowness is judged.
            rtol: Tolerance of a step, relative to the norm of each column.
            max_steps: Largest number of steps tried.
        """
        t, h, bar, status = 0.0, 0.1 / scale, _SLOW, Status.UNBOUNDED
        steps: list[Step] = []
        loss, gradients = self.gradients(factors)
        z, shapes = _flatten(factors), [f.shape for f in factors]
        jacobian, tried = self.jacobian(factors, gradients), 0

        def slope(at: Array) -> Array:
            there = _unflatten(at, shapes)
            return _flatten(self._flow(there, self.gradients(there)[1]))

        while t < _HORIZON / scale and len(z):
            if tried == max_steps:
                status = Status.MAX_STEPS
                break
            tried += 1
            first = _flatten(self._flow(factors, gradients))
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    trial, error = rodas_step(slope, z, first, jacobian, np.arange(len(z)), h)
                size = _relative_error(_unflatten(error, shapes), factors, _unflatten(trial, shapes)) / rtol
            except ValueError:  # the step was so long that h(x; M) is not finite there
                size = math.inf
            if not size <= 1.0:
                h *= max(0.1, 0.9 * size**-0.25) if np.isfinite(size) else 0.1
                if t + h == t:
                    status = Status.STALLED
                    break
                continue
            there = tuple(_balanced(f, d) for f, (d, _) in self._zip(_unflatten(trial, shapes)))
            trial = _flatten(there)
            loss, new_gradients = self.gradients(there)
            last = _flatten(self._flow(there, new_gradients))
            nodes = [self.gradients(_unflatten(_hermite(z, first, trial, last, h, x), shapes))[1] for x in _nodes()]
            slopes = _unflatten(first, shapes), _unflatten(last, shapes)
            steps.append(Step(t, h, factors, there, *slopes, *nodes))
            t, z, factors, gradients = t + h, trial, there, new_gradients
            h *= min(5.0, max(0.2, 0.9 * size**-0.25)) if size > 0 else 5.0
            largest = max((float(np.abs(f[:r] @ f[r:].T).max(initial=0)) for f, (r, _) in self._zip(factors)))
            if largest > _ENDLESS:
                break
            remaining, left = self._without_left(factors, gradients)
            speed = self._speed(remaining, gradients)
            if speed <= bar * scale:
                end = self._polish(remaining, left, scale)
                if end is not None:
                    return Settled(*end, tuple(direction.matrix for direction in left), tuple(steps), Status.FINISHED)
                bar = 0.1 * speed / scale
            jacobian = self.jacobian(factors, gradients)
        if not len(z):
            return Settled(factors, loss, gradients, math.inf, (), (), Status.FINISHED)
        return Settled(factors, loss, gradients, math.nan, (), tuple(steps), status)

    def _polish(
        self, factors: Factors, left: tuple["_Left", ...], scale: float
    ) -> tuple[Factors, float, Factors, float] | None:
        """Newton's method for (H - λ) Z = 0 of least length; None if it goes astray, or ends at no minimum."""
        start, shapes = _flatten(factors), [f.shape for f in factors]
        at, best = start.copy(), math.inf
        for _ in range(_NEWTON_STEPS):
            there = _unflatten(at, shapes)
            loss, gradients = self.gradients(there)
            speed = self._speed(there, gradients)
            if speed <= 1e-3 * _STATIONARY * scale or speed > 0.5 * best:
                break
            best = min(best, speed)
            jacobian = self.jacobian(there, gradients)
            at = at - np.linalg.lstsq(jacobian, _flatten(self._flow(there, gradients)), rcond=1e-11)[0]
        there = tuple(_refactored(f, d) for f, (d, _) in self._zip(there))
        far = float(np.linalg.norm(at - start)) > _NEWTON_REACH * float(np.linalg.norm(start))
        if far or speed > _STATIONARY * scale:
            return None
        curvature = smallest_curvature(self.jacobian(there, gradients), there, self.net.shapes)
        stays = (_pull(direction, there, gradients, self.net.shapes) < self.decay for direction in left)
        if curvature < -1e-9 * scale or not all(stays):
            return None
        return there, loss, gradients, curvature

    def _without_left(self, factors: Factors, gradients: Factors) -> tuple[Factors, tuple["_Left", ...]]:
        """Drop directions that have shrunk to nothing: last ones of square, full products, and any one that decays."""
        spectra = [np.linalg.svd(f[:d] @ f[d:].T) for f, (d, _) in self._zip(factors)]
        largest = max((float(s.max(initial=0.0)) for _, s, _ in spectra))
        kept, left = [], []
        for j, ((u, s, vt), f, (d, columns)) in enumerate(zip(spectra, factors, self.net.shapes, strict=True)):
            rank = f.shape[1]
            while rank and (self.decay or rank == d == columns):
                small, pull = s[rank - 1] < _LEFT * largest, float(u[:, rank - 1] @ gradients[j] @ vt[rank - 1])
                if not small or pull >= self.decay:
                    break
                rank -= 1
                left.append(_Left(j, u[:, rank], vt[rank], last=rank + 1 == d == columns))
            kept.append(f if rank == f.shape[1] else _from_svd(u, s[:rank], vt))
        return tuple(kept), tuple(left)

    def _flow(self, factors: Factors, gradients: Factors) -> Factors:
        pairs = zip(factors, gradients, strict=True)
        return tuple(np.concatenate([g @ f[len(g) :], g.T @ f[: len(g)]]) - self.decay * f for f, g in pairs)

    def _speed(self, factors: Factors, gradients: Factors) -> float:
        """Return |(H - λ) Z| / |Z|, the largest over the matrices, in largest entries."""
        pairs = zip(factors, self._flow(factors, gradients), strict=True)
        ratios = (float(np.abs(v).max(initial=0.0)) / float(np.abs(f).max()) for f, v in pairs if f.size)
        return max(ratios, default=0.0)

    def _products(self, factors: Factors) -> list[torch.Tensor]:
        return [torch.from_numpy(f[:d] @ f[d:].T) for f, (d, _) in self._zip(factors)]

    def _zip(self, factors: Factors) -> list[tuple[Array, tuple[int, int]]]:
        return list(zip(factors, self.net.shapes, strict=True))


def complement(factors: Array, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Return orthonormal bases of what range A and range B leave: (d, d - r) and (d', d' - r)."""
    d, rank = shape[0], factors.shape[1]
    left = np.linalg.qr(factors[:d], mode="complete")[0][:, rank:] if rank else np.eye(d)
    right = np.linalg.qr(factors[d:], mode="complete")[0][:, rank:] if rank else np.eye(shape[1])
    return left, right


def smallest_curvature(jacobian: Array, factors: Factors, shapes: Sequence[tuple[int, int]]) -> float:
    """Return the smallest eigenvalue of -J on the complement of the gauge directions [A T; -B Tᵀ], which keep M."""
    if len(jacobian) == 0:
        return math.inf
    gauge: list[Array] = []
    for j, (f, (d, _)) in enumerate(zip(factors, shapes, strict=True)):
        for a in range(f.shape[1]):
            for b in range(f.shape[1]):
                turned = [np.zeros_like(other) for other in factors]
                turned[j][:d, b], turned[j][d:, a] = f[:d, a], -f[d:, b]
                gauge.append(_flatten(tuple(turned)))
    if not gauge:
        return float(np.linalg.eigvalsh(-jacobian)[0])
    basis = np.linalg.qr(np.array(gauge).T, mode="complete")[0][:, len(gauge) :]
    return float(np.linalg.eigvalsh(-(basis.T @ jacobian @ basis)).min(initial=math.inf))


def _balanced(factors: Array, d: int) -> Array:
    """Return [P S; Q S] with AᵀA = BᵀB = S², where P and Q are the polar factors of A and B.

    The flow keeps active columns balanced; rounding does not, and where a direction shrinks its partner [a; -b] grows.
    """
    if factors.shape[1] == 0:
        return factors
    turns = []
    for part in (factors[:d], factors[d:]):
        u, _, vt = np.linalg.svd(part, full_matrices=False)
        turns.append(u @ vt)
    squares, axes = np.linalg.eigh(0.5 * factors.T @ factors)
    size = (axes * np.sqrt(np.maximum(squares, 0.0))) @ axes.T
    return np.concatenate([turn @ size for turn in turns])


def _refactored(factors: Array, d: int) -> Array:
    """Return balanced columns with the same product."""
    u, s, vt = np.linalg.svd(factors[:d] @ factors[d:].T)
    return _from_svd(u, s[: factors.shape[1]], vt)


def _from_svd(u: Array, s: Array, vt: Array) -> Array:
    return np.concatenate([u[:, : len(s)], vt[: len(s)].T]) * np.sqrt(s)


@dataclass(frozen=True)
class _Left:
    """A direction u vᵀ that left; the last one of a square, full product cannot turn, only come back or change sign."""

    matrix: int
    u: Array
    v: Array
    last: bool


def _pull(direction: _Left, factors: Factors, gradients: Factors, shapes: Sequence[tuple[int, int]]) -> float:
    """Return how fast a direction that left grows outside the active ones: it stays away below λ."""
    j = direction.matrix
    left, right = complement(factors[j], shapes[j])
    outside = left.T @ gradients[j] @ right
    if not direction.last or outside.size > 1:
        return float(np.linalg.norm(outside, 2))
    side = float(left[:, 0] @ direction.u) * float(right[:, 0] @ direction.v)
    return math.copysign(1.0, side) * float(outside[0, 0])


def swap(gradient: Array) -> Array:
    """Return H = [[0, G], [Gᵀ, 0]]."""
    d, columns = gradient.shape
    return np.block([[np.zeros((d, d)), gradient], [gradient.T, np.zeros((columns, columns))]])


def _product_derivative(factors: Array, shape: tuple[int, int]) -> Array:
    """Return ∂M/∂z of one matrix, (n, d, d'): e_i b_cᵀ for an entry of A, a_c e_iᵀ for one of B."""
    d, columns = shape
    rank = factors.shape[1]
    a, b = factors[:d], factors[d:]
    of_a = np.einsum("ij,kc->icjk", np.eye(d), b).reshape(d * rank, d, columns)
    of_b = np.einsum("ik,jc->icjk", np.eye(columns), a).reshape(columns * rank, d, columns)
    return np.concatenate([of_a, of_b])


def _relative_error(error: Factors, before: Factors, after: Factors) -> float:
    """Return the largest error of an entry, relative to the norm of its column."""
    sizes = [
        np.abs(e) / np.maximum(np.linalg.norm(b, axis=0), np.linalg.norm(a, axis=0))
        for e, b, a in zip(error, before, after, strict=True)
        if e.size
    ]
    return float(max(np.max(size) for size in sizes))


def _nodes() -> tuple[float, float]:
    return _GAUSS, 1.0 - _GAUSS


def _hermite(start: Array, slope: Array, end: Array, slope_end: Array, h: float, x: float) -> Array:
    rise = end - start
    cubic = (1 - 2 * x) * rise + h * ((x - 1) * slope + x * slope_end)
    value: Array = start + x * rise + x * (x - 1) * cubic
    return value


def _flatten(factors: Factors) -> Array:
    return np.concatenate([f.ravel() for f in factors])


def _unflatten(z: Array, shapes: Sequence[tuple[int, ...]]) -> Factors:
    sizes = [math.prod(shape) for shape in shapes]
    parts = np.split(z, np.cumsum(sizes)[:-1])
    return tuple(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
