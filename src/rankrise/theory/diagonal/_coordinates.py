"""Logarithmic coordinates of the weights, in which the flow is the same computation at any α, and the start in them.

Symbols:
    θ0 = (u0, v0)   start before the factor α
    w, ŵ            u + v and u - v after swapping u, v and flipping both signs so that u > |v|; q = u ⊙ v is unchanged
    q               ¼ (w² - ŵ²)
    c               w ŵ = u² - v², conserved by the flow
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._rosenbrock import Array, Mask
from rankrise.theory._tasks import ArrayLike, as_data
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork


@dataclass(frozen=True)
class Start:
    """θ0 oriented so that u > |v|, and the way back.

    Attributes:
        log_w: log(u + v) of θ0, (p,).
        log_w_hat: log(u - v) of θ0, (p,).
        swapped: Where u and v were exchanged.
        sign: Sign that made u positive.
    """

    log_w: Array
    log_w_hat: Array
    swapped: Mask
    sign: Array

    def weights(self, log_w: Array, log_w_hat: Array) -> tuple[Array, Array]:
        """Return u and v in the caller's orientation; weights below 1e-308 come out as zero."""
        w, w_hat = np.exp(log_w), np.exp(log_w_hat)
        large, small = self.sign * 0.5 * (w + w_hat), self.sign * 0.5 * (w - w_hat)
        return np.where(self.swapped, small, large), np.where(self.swapped, large, small)


def orient(net: DiagonalNetwork, u0: ArrayLike, v0: ArrayLike) -> Start:
    """Check θ0 and bring it to u > |v| without changing q.

    Raises:
        ValueError: If a shape is wrong, a number is not finite, or |u0_i| = |v0_i| (Assumption 4.2).
    """
    p = net.num_weights
    u0, v0 = as_data("u0", u0), as_data("v0", v0)
    for name, weights in (("u0", u0), ("v0", v0)):
        if weights.shape != (p,):
            raise ValueError(
                f"`{name}` must have shape ({p},), one number per weight; got {tuple(weights.shape)}: "
                "draw it with gaussian_start(net.num_weights)."
            )
        if not bool(weights.isfinite().all()):
            raise ValueError(
                f"`{name}` must be finite; got NaN or infinity: draw it with gaussian_start(net.num_weights)."
            )
    u, v = (weights.cpu().double().numpy() for weights in (u0, v0))
    balanced = np.flatnonzero(np.abs(u) == np.abs(v))
    if len(balanced):
        raise ValueError(
            f"`u0` and `v0` must differ in magnitude in every coordinate (Assumption 4.2); got |u0| = |v0| for "
            f"{len(balanced)} of {p}, the first at index {balanced[0]}: perturb θ0, for instance with gaussian_start."
        )
    swapped = np.abs(v) > np.abs(u)
    u, v = np.where(swapped, v, u), np.where(swapped, u, v)
    sign = np.sign(u)
    return Start(np.log(sign * (u + v)), np.log(sign * (u - v)), swapped, sign)


def to_tensor(array: Array) -> Tensor:
    """Return a float64 tensor with its own memory."""
    return torch.tensor(array, dtype=torch.float64)


def log_products(log_w: Array, log_w_hat: Array) -> Array:
    """Return q = ¼ (w² - ŵ²) from the logarithms."""
    products: Array = 0.25 * (np.exp(2 * log_w) - np.exp(2 * log_w_hat))
    return products


def height_of(products: Array, log_c: Array) -> Array:
    """Return the larger of log w and log ŵ where |q| = ¼ |w² - ŵ²| and w ŵ = c: w² = 2 |q| + √(4 q² + c²)."""
    height: Array = 0.5 * np.log(2 * np.abs(products) + np.hypot(2 * products, np.exp(log_c)))
    return height


def balanced_logs(q: Array) -> tuple[Array, Array]:
    """Return log w and log ŵ of the balanced weights with products q: w² = 4 q⁺, ŵ² = 4 q⁻."""
    with np.errstate(divide="ignore"):
        return 0.5 * np.log(4 * np.maximum(q, 0.0)), 0.5 * np.log(4 * np.maximum(-q, 0.0))
