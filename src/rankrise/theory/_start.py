"""The start θ(0) = α θ0 in logarithmic coordinates.

Symbols:
    θ0 = (u0, v0)   start before the factor α
    w, ŵ            u + v and u - v after swapping u, v and flipping both signs so that u > |v|; q = u ⊙ v is unchanged
    A               log(1/α), natural
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._networks import DiagonalNetwork
from rankrise.theory._rosenbrock import Array


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
    swapped: np.ndarray[tuple[int], np.dtype[np.bool_]]
    sign: Array

    def weights(self, log_w: Array, log_w_hat: Array) -> tuple[Array, Array]:
        """Return u and v in the caller's orientation; weights below 1e-308 come out as zero."""
        w, w_hat = np.exp(log_w), np.exp(log_w_hat)
        large, small = self.sign * 0.5 * (w + w_hat), self.sign * 0.5 * (w - w_hat)
        return np.where(self.swapped, small, large), np.where(self.swapped, large, small)


def orient(net: DiagonalNetwork, u0: Tensor, v0: Tensor) -> Start:
    """Check θ0 and bring it to u > |v| without changing q.

    Raises:
        ValueError: If a shape is wrong, a number is not finite, or |u0_i| = |v0_i| (Assumption 4.2).
    """
    p = net.num_weights
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
    u, v = (weights.detach().cpu().double().numpy() for weights in (u0, v0))
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


def log_inverse_alpha(log10_alpha: float) -> float:
    """Return A = log(1/α) from log10 α.

    >>> round(log_inverse_alpha(-1), 3)
    2.303
    """
    if not (math.isfinite(log10_alpha) and log10_alpha < 0):
        raise ValueError(
            f"`log10_alpha` must be negative and finite, as α < 1; got {log10_alpha}: pass -32 for α = 1e-32."
        )
    return -float(log10_alpha) * math.log(10.0)


def to_tensor(array: Array) -> Tensor:
    """Return a float64 tensor with its own memory."""
    return torch.tensor(array, dtype=torch.float64)
