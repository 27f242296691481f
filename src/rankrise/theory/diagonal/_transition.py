"""Phase B of Algorithm 1: the balanced flow on a few coordinates, run to its limit and polished to stationarity.

Symbols:
    balanced        u = ±v, so ŵ = 0 or w = 0 and |q| = ¼ w² or ¼ ŵ²; a zero coordinate stays zero
    s_i = ∫ g_i dt  growth over the phase, also of the coordinates that stay at zero
    J               the support at the end
    class           tied coordinates that a symmetry of the network exchanges: their products are equal up to sign
    z               one product per class, m numbers; q = E z with E (p, m) of entries 0 and ±1
    g_z             mean of ± g over a class: ds/dt of each of its members as long as they are equal
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._rosenbrock import Array, Index
from rankrise.theory._status import Status
from rankrise.theory.diagonal._coordinates import balanced_logs
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork, Landscape
from rankrise.theory.diagonal._integrator import ENDLESS, Integrator, Piece

_HORIZON = 1e9  # longest phase B, in units of 1/scale
_SLOW = 1e-3  # Newton's method is tried once |g| on the support is below this part of the scale
_LEFT = 1e-6  # a product that shrinks and is below this part of the largest one has left the support
GRADIENT_FLOOR = 1e-9  # a gradient below this part of the scale is rounding, and counts as zero
_STATIONARY = 1e-10  # largest |g| on the support after Newton's method, as a part of the scale
_NEWTON_STEPS = 20
_STALE = 0.1  # Newton's method measures its Hessian again when a step leaves more than this part of the gradient
_NEWTON_REACH = 0.1  # Newton's method must end this close to the flow, in largest products


@dataclass(frozen=True)
class Transition:
    """Where phase B went.

    Attributes:
        products: q at the end, exactly zero off the support.
        loss: L at the end.
        gradient: g at the end, (p,).
        hessian: ∂²L/∂q² on the support.
        pieces: The path, with growths of all coordinates.
        status: FINISHED, or why there is no limit.
        num_gradients: Gradients computed.
        num_columns: Hessian columns computed.
    """

    products: Array
    loss: float
    gradient: Array
    hessian: Array
    pieces: tuple[Piece, ...]
    status: Status
    num_gradients: int
    num_columns: int

    @property
    def support(self) -> Index:
        """The coordinates that are not zero."""
        return np.flatnonzero(self.products)


def settle(
    net: Landscape,
    q: Array,
    *,
    scale: float,
    logs: tuple[Array, Array] | None = None,
    saddles: bool = False,
    hessian: Array | None = None,
    rtol: float = 1e-3,
    max_steps: int = 20_000,
) -> Transition:
    """Follow the balanced flow from q on its support until it rests: equation (11).

    Once the flow is slow, Newton's method on the support finishes; its answer is taken if it stays close, keeps all
    signs, is a minimum, and has a gradient that keeps away the coordinates that left. Otherwise the flow goes on.

    Args:
        net: The network.
        q: Start; zero where the weights are held at zero.
        scale: Size of g by which slowness is judged.
        logs: log w and log ŵ that have these products, -inf for weights held at zero; balanced if None.
        saddles: Accept a stationary point that is no minimum (a tied group started on its symmetry axis).
        hessian: ∂²L/∂q² at q, if it is known already.
        rtol: As for `solve_flow`.
        max_steps: As for `solve_flow`.
    """
    smallest = float(np.abs(q[q != 0]).min(initial=1.0))
    log_w, log_w_hat = balanced_logs(q) if logs is None else logs
    integrator = Integrator(net, log_w, log_w_hat, wall=0.5 * math.log(0.04 * smallest), rtol=rtol, hessian=hessian)
    pieces: list[Piece] = []
    polish_columns, bar, status = 0, _SLOW * scale, Status.UNBOUNDED
    while integrator.t < _HORIZON / scale:
        piece = integrator.step(3 * integrator.t + 10 / scale, max_steps)
        if piece is None:
            status = Status.MAX_STEPS if integrator.num_steps >= max_steps else Status.STALLED
            break
        pieces.append(piece)
        if float(np.abs(integrator.products).max()) > ENDLESS:
            break
        support, speed = _slow_support(integrator)
        if speed > bar:
            continue
        side = np.where(integrator.products != 0, integrator.products, q)
        products, guess = integrator.products, integrator.hessian
        end = _polish_and_restore(net, products, support, side, guess, scale=scale, saddles=saddles)
        polish_columns += end.num_columns
        integrator.num_gradients += end.num_gradients
        if end.found:
            counts = integrator.num_gradients, integrator.num_columns + polish_columns
            found = end.products, end.loss, end.gradient, end.hessian
            return Transition(*found, tuple(pieces), Status.FINISHED, *counts)
        bar = 0.1 * speed
    counts = integrator.num_gradients, integrator.num_columns + polish_columns
    products = np.where(np.isin(np.arange(len(q)), integrator.active), integrator.products, 0.0)
    unknown = np.full((len(integrator.active),) * 2, np.nan)
    return Transition(products, integrator.loss, integrator.gradient, unknown, tuple(pieces), status, *counts)


def _slow_support(integrator: Integrator) -> tuple[Index, float]:
    """Return the coordinates that have not left, and the largest |g| among them."""
    active = integrator.active
    q, g = integrator.products[active], integrator.gradient[active]
    left = (np.abs(q) < _LEFT * np.abs(q).max(initial=0.0)) & (q * g < 0)
    return active[~left], float(np.abs(g[~left]).max(initial=0.0))


@dataclass(frozen=True)
class _Polished:
    found: bool
    products: Array
    loss: float
    gradient: Array
    hessian: Array
    num_gradients: int
    num_columns: int


def _polish_and_restore(
    net: Landscape, q: Array, support: Index, side: Array, guess: Array, *, scale: float, saddles: bool
) -> _Polished:
    """Polish, and put back each coordinate that has not left: g at the end drives it to the side it came from."""
    gradients = columns = 0
    while True:
        end = _polish(net, q, support, guess, scale=scale, saddles=saddles)
        gradients, columns = gradients + end.num_gradients, columns + end.num_columns
        returning = np.setdiff1d(np.flatnonzero(np.sign(side) * end.gradient > GRADIENT_FLOOR * scale), support)
        if not end.found or len(returning) == 0:
            return replace(end, num_gradients=gradients, num_columns=columns)
        support = np.union1d(support, returning)


def _polish(net: Landscape, q: Array, support: Index, guess: Array, *, scale: float, saddles: bool) -> _Polished:
    """Newton's method for g = 0 on the support: q_J ← q_J + H_JJ⁻¹ g_J, until |g_J| stops falling.

    The first H_JJ is the guess; it is kept from step to step as long as |g_J| falls fast, and then measured.
    """
    cut, k = net.restricted(support.tolist()), len(support)
    start = q[support]
    at, best, gradients, columns = start.copy(), math.inf, 0, 0
    hessian = guess[np.ix_(support, support)]

    def measure_hessian() -> Array:
        block: Array = cut.hessian_columns(torch.from_numpy(at), range(k)).cpu().numpy()
        return block

    fresh = False
    for _ in range(_NEWTON_STEPS):
        gradients += 1
        slope: Array = cut.loss_and_gradient(torch.from_numpy(at))[1].cpu().numpy()
        speed = float(np.abs(slope).max(initial=0.0))
        stopped = speed > 0.5 * best and (fresh or speed <= _STATIONARY * scale)
        if speed <= 1e-3 * _STATIONARY * scale or stopped:
            break
        fresh = speed > _STALE * best
        if fresh:
            columns += k
            hessian = measure_hessian()
        best = min(best, speed)
        at = at + np.linalg.lstsq(hessian, slope, rcond=None)[0]
    reach = _NEWTON_REACH * float(np.abs(start).max(initial=0.0))
    found = (
        speed <= _STATIONARY * scale
        and float(np.abs(at - start).max(initial=0.0)) <= reach
        and bool((np.sign(at) == np.sign(start)).all())
    )
    hessian = np.full((k, k), np.nan)
    if found:
        columns += k
        hessian = measure_hessian()
        curvatures = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))
        found = saddles or k == 0 or float(curvatures[0]) > -_STATIONARY * float(np.abs(curvatures).max())
    products = np.zeros_like(q)
    products[support] = at
    loss, g = net.loss_and_gradient(torch.from_numpy(products))
    gradient: Array = g.cpu().numpy()
    return _Polished(found, products, loss, gradient, hessian, gradients + 1, columns)


def first_passage(pieces: tuple[Piece, ...], log_w: Array, log_w_hat: Array, wall: Array) -> tuple[float, Array] | None:
    """Return when, on a path, the first of some idle coordinates reaches the wall, and all growths s then.

    Args:
        pieces: A path from time 0.
        log_w: log w of the idle coordinates at time 0; -inf for the others.
        log_w_hat: log ŵ likewise.
        wall: Value of log w or log ŵ at which a coordinate activates, (p,).
    """
    grown = np.zeros_like(log_w)
    for piece in pieces:
        path = piece.path

        def height(s: Array, grown: Array = grown) -> Array:
            top: Array = (np.maximum(log_w + grown + s, log_w_hat - grown - s) - wall).max(axis=-1)
            return top

        above = np.flatnonzero(height(path.growths) > 0)
        if len(above):
            t = path.first(lambda s: bool(height(s) > 0), int(above[0]))
            return piece.time + t, grown + path.at(t)
        grown = grown + path.growths[-1]
    return None


def settle_on_support(
    net: DiagonalNetwork,
    q: Array,
    *,
    scale: float,
    saddles: bool = False,
    classes: Sequence[Index] = (),
    known: Array | None = None,
    l1: float = 0.0,
) -> Transition:
    """Follow the balanced flow from q on the network cut to the support of q: `settle` without the idle growths.

    Coordinates that are held at zero change nothing, so that the network is cut to the other coordinates; only the
    gradient at the end is measured on all. The pieces of the path are left out, because they would lack the growths of
    the coordinates that wait, which the limit α → 0 does not need.

    Args:
        net: The network.
        q: Start; zero where the weights are held at zero.
        scale: As for `settle`.
        saddles: As for `settle`.
        classes: Sets of coordinates within the support that tied and are still equal; they move as one if they can.
        known: ∂²L/∂q² close to q, (p, p), NaN where it is not known.
        l1: λ of a penalty λ ‖q‖₁, which is what weight decay amounts to for balanced weights. The loss and the gradient
            that are returned leave the penalty out.
    """
    moving = np.flatnonzero(q)
    start = q[moving]
    cut = net.restricted(moving.tolist())
    if l1 > 0:
        cut = _Tilted(cut, torch.from_numpy(l1 * np.sign(start)))
    end = settle_symmetric(cut, start, [np.searchsorted(moving, members) for members in classes], scale=scale)
    if end is None:
        num_new, hessian = 0, None
        if known is not None:
            hessian = known[np.ix_(moving, moving)]
            new = np.flatnonzero(np.isnan(np.diag(hessian)))
            num_new = len(new)
            hessian[:, new] = cut.hessian_columns(torch.from_numpy(start), new.tolist()).cpu().numpy()
            hessian[new] = hessian[:, new].T
        end = settle(cut, start, scale=scale, saddles=saddles, hessian=hessian)
        end = replace(end, num_columns=end.num_columns + num_new)
    products = np.zeros_like(q)
    products[moving] = end.products
    loss, gradient = net.loss_and_gradient(torch.from_numpy(products))
    counts = end.num_gradients + 1, end.num_columns
    return Transition(products, loss, gradient.cpu().numpy(), end.hessian, (), end.status, *counts)


class _Tilted:
    """A landscape with a linear penalty: L + tilt · q. A balanced product keeps its sign, so that λ |q| is linear."""

    def __init__(self, net: Landscape, tilt: Tensor) -> None:
        self._net, self._tilt = net, tilt

    def loss_and_gradient(self, q: Tensor, /) -> tuple[float, Tensor]:
        loss, g = self._net.loss_and_gradient(q)
        return loss + float(self._tilt @ q), g.cpu() - self._tilt

    def hessian_columns(self, q: Tensor, index: Sequence[int], /) -> Tensor:
        return self._net.hessian_columns(q, index)

    def restricted(self, index: Sequence[int], /) -> Landscape:
        return _Tilted(self._net.restricted(index), self._tilt[list(index)])


class _Quotient:
    """L, g_z and its derivative as functions of z."""

    def __init__(self, net: Landscape, expand: Tensor) -> None:
        self._net, self._expand = net, expand
        self._size = expand.abs().sum(dim=0)

    def loss_and_gradient(self, z: Tensor, /) -> tuple[float, Tensor]:
        loss, g = self._net.loss_and_gradient(self._expand @ z)
        return loss, self._expand.T @ g.cpu() / self._size

    def hessian_columns(self, z: Tensor, index: Sequence[int], /) -> Tensor:
        members = self._expand[:, list(index)]  # (p, k)
        used = members.abs().sum(dim=1).nonzero().flatten()
        columns = self._net.hessian_columns(self._expand @ z, used.tolist()).cpu() @ members[used]
        return self._expand.T @ columns / self._size[:, None]

    def restricted(self, index: Sequence[int], /) -> Landscape:
        chosen = self._expand[:, list(index)]  # (p, k)
        used = chosen.abs().sum(dim=1).nonzero().flatten()
        return _Quotient(self._net.restricted(used.tolist()), chosen[used])


def settle_symmetric(net: Landscape, q: Array, classes: Sequence[Index], *, scale: float) -> Transition | None:
    """Follow the balanced flow from q with each class moving as one.

    Args:
        net: The network.
        q: Start; |q| is equal within a class.
        classes: Disjoint sets of coordinates that tied.
        scale: As for `settle`.

    Returns:
        The point where the flow rests, without its path; None if there are no classes, or if the point is not
        stationary for the whole network, because the tie was then no symmetry.
    """
    if not classes:
        return None
    first = np.arange(len(q))
    for members in classes:
        first[members] = members[0]
    kept, label = np.unique(first, return_inverse=True)
    expand = np.zeros((len(q), len(kept)))
    expand[np.arange(len(q)), label] = np.where(q * q[first] < 0, -1.0, 1.0)
    end = settle(_Quotient(net, torch.from_numpy(expand)), q[kept], scale=scale, saddles=True)
    if end.status is not Status.FINISHED:
        return None
    products = expand @ end.products
    support = np.flatnonzero(products)
    loss, g = net.loss_and_gradient(torch.from_numpy(products))
    gradient: Array = g.cpu().numpy()
    if float(np.abs(gradient[support]).max(initial=0.0)) > _STATIONARY * scale:
        return None
    hessian = net.hessian_columns(torch.from_numpy(products), support.tolist()).cpu().numpy()[support]
    counts = end.num_gradients + 1, end.num_columns + len(support)
    return Transition(products, loss, gradient, hessian, (), Status.FINISHED, *counts)
