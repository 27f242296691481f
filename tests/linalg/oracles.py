"""Slow, exact answers: singular values in 50-digit arithmetic, and the split form of a change in float64."""

import mpmath
import torch
from torch import Tensor


def exact_delta_spectrum(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor) -> list[float]:
    """σ(left rightᵀ − left0 right0ᵀ) of the very numbers passed, by mpmath."""
    with mpmath.workdps(50):
        k, q, k0, q0 = (mpmath.matrix(t.double().tolist()) for t in (left, right, left0, right0))
        delta = k * q.T - k0 * q0.T
        delta = delta if delta.rows >= delta.cols else delta.T
        return sorted((float(s) for s in mpmath.svd_r(delta, compute_uv=False)), reverse=True)


def dense_delta(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor) -> Tensor:
    """`ΔK Qᵀ + K0 ΔQᵀ`, formed in float64."""
    k, q, k0, q0 = (t.double() for t in (left, right, left0, right0))
    return (k - k0) @ q.mT + k0 @ (q - q0).mT


def error_bound(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor) -> Tensor:
    """`100 ε (‖ΔK‖‖Q‖ + ‖K0‖‖ΔQ‖)`, what `delta_spectrum` promises."""
    k, q, k0, q0 = (t.double() for t in (left, right, left0, right0))
    epsilon = torch.finfo(left.dtype).eps
    norm = torch.linalg.matrix_norm
    return 100 * epsilon * (norm(k - k0) * norm(q) + norm(k0) * norm(q - q0))


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Principal angles between the column spaces of (..., d, k) and (..., d, l), in radians, smallest first.

    `cos θ_i` are the singular values of `F₁ᵀF₂` for orthonormal bases; where that cosine is near 1, θ comes from the
    sines of the part of F₂ outside F₁ (Björck and Golub 1973), so that angles far below √ε are right.
    """
    first, second = first.double(), second.double()
    if first.shape[-1] < second.shape[-1]:
        first, second = second, first  # the sines below are those of the smaller space
    f1, f2 = torch.linalg.qr(first).Q, torch.linalg.qr(second).Q
    inside = f1.mT @ f2
    cosines = torch.linalg.svdvals(inside).clamp_max(1.0)
    sines = torch.linalg.svdvals(f2 - f1 @ inside).flip(-1).clamp_max(1.0)
    return torch.where(cosines**2 > 0.5, sines.asin(), cosines.acos())
