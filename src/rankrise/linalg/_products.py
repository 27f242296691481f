"""Spectra of `K Qᵀ` and of its change, through thin factors; a d × d matrix is never formed.

Symbols:
    K, Q      left (..., d, r) and right (..., e, r) factors now; K0, Q0 the same at the start
    ΔK, ΔQ    K − K0 and Q − Q0, formed first and exactly
    L, R      stacked factors of the change, Δ = L Rᵀ with L = [ΔK, K0], R = [Q, ΔQ], rank at most 2r

Early in training ‖ΔK‖/‖K‖ is 1e-6, and a difference of two products, or the factors [K, −K0][Q, Q0]ᵀ, loses that many
digits. `ΔK Qᵀ + K0 ΔQᵀ` is the same matrix and loses none.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankrise.linalg import _checks, _decompose
from rankrise.linalg._chunks import over_chunks


class SVD(NamedTuple):
    """Leading singular triplets: the matrix is close to `U @ diag(S) @ Vh`."""

    U: Tensor  # (..., d, k)
    S: Tensor  # (..., k)
    Vh: Tensor  # (..., k, e)


def product_spectrum(left: Tensor, right: Tensor) -> Tensor:
    """Singular values of `left rightᵀ`, e.g. of `W_K W_Qᵀ` for every head at once.

    For float64 factors: QR of both, then the singular values of the r × r core `R_left R_rightᵀ`. For narrower
    dtypes: float64 Gram matrices, whose error of √ε₆₄ is far below the input's ε and which cost less.
    Time O((d + e) r² + r³) a product; every |error| is at most 100 ε Σ_j ‖left_j‖‖right_j‖, ε of the input's dtype.

    Args:
        left: (..., d, r), any floating dtype.
        right: (..., e, r), same dtype, device and batch dimensions.

    Returns:
        (..., min(d, e, r)) in float64, descending.

    Raises:
        ValueError: Wrong shapes, mixed dtypes or devices, empty or non-finite input; names the argument.

    >>> import torch
    >>> key, query = torch.zeros(2, 5, 3), torch.zeros(2, 4, 3)
    >>> key[:, 0, 0] = query[:, 0, 0] = 2.0
    >>> product_spectrum(key, query).tolist()
    [[4.0, 0.0, 0.0], [4.0, 0.0, 0.0]]
    """
    _checks.stacks(left=left, right=right)
    _checks.factors_of_a_product(left, right)
    spectrum = _by_qr if left.dtype == torch.float64 else _by_gram
    (sigma,) = over_chunks(lambda *factors: (spectrum(lambda: [f.double() for f in factors]),), left, right)
    return sigma[..., : min(left.shape[-2], right.shape[-2])]


def delta_spectrum(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor) -> Tensor:
    """Singular values of the change `left rightᵀ − left0 right0ᵀ` of a product.

    Every |error| is at most `100 ε (‖ΔK‖‖Q‖ + ‖K0‖‖ΔQ‖)` in Frobenius norms, with ε of the input's dtype. A change of
    gauge (`K → K G`, `Q → Q G⁻ᵀ`) has large ΔK and ΔQ and no Δ: there the bound, not the value, is what one learns.
    Unchanged factors give exact zeros.

    Args:
        left: (..., d, r) now.
        right: (..., e, r) now.
        left0: (..., d, r) at the start.
        right0: (..., e, r) at the start.

    Returns:
        (..., min(d, e, 2r)) in float64, descending.

    Raises:
        ValueError: As `product_spectrum`.

    >>> import torch
    >>> k0, q0 = torch.eye(3), torch.eye(3)
    >>> k = k0.clone(); k[0, 0] = 1.25
    >>> delta_spectrum(k, q0, k0, q0).tolist()
    [0.25, 0.0, 0.0]
    """
    _checks.change_of_a_product(left, right, left0, right0)
    spectrum = _by_qr if left.dtype == torch.float64 else _by_gram
    (sigma,) = over_chunks(lambda *factors: (spectrum(lambda: stacked(*factors)),), left, right, left0, right0)
    return sigma[..., : min(left.shape[-2], right.shape[-2])]


def matrix_spectrum(matrix: Tensor) -> Tensor:
    """Singular values of whole matrices, e.g. of the change of an MLP's weight.

    For float64: QR, then the singular values of the triangle. For narrower dtypes: the eigenvalues of the float64 Gram
    matrix of the smaller side, whose error of √ε₆₄ σ₁ is far below the input's ε and which cost less.

    Args:
        matrix: (..., d, m), any floating dtype.

    Returns:
        (..., min(d, m)) in float64, descending.

    Raises:
        ValueError: As `product_spectrum`.

    >>> import torch
    >>> matrix_spectrum(torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    _checks.stacks(matrix=matrix)
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    (sigma,) = over_chunks(_spectrum_of_tall, tall)
    return sigma


def _spectrum_of_tall(matrix: Tensor) -> tuple[Tensor]:
    if matrix.dtype == torch.float64:
        return (_decompose.singular_values(torch.linalg.qr(matrix, mode="r").R),)
    return (_decompose.psd_eigenvalues(gram(matrix.double())).sqrt(),)


def delta_svd(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor, *, k: int = 8) -> SVD:
    """Leading singular values and vectors of `left rightᵀ − left0 right0ᵀ`: directions learned, or a LoRA pair.

    QR of both stacked factors in float64, SVD of the small core, vectors mapped back. `U[..., :r] * S[..., None, :r]`
    and `Vh[..., :r, :]` are the best rank-r approximation. The largest entry of each column of U is positive, so that
    signs do not depend on the driver.

    Args:
        left: (..., d, r) now.
        right: (..., e, r) now.
        left0: (..., d, r) at the start.
        right0: (..., e, r) at the start.
        k: How many triplets; fewer come back where the change cannot have as many, min(d, e, 2r).

    Raises:
        ValueError: As `product_spectrum`, or k < 1.

    >>> import torch
    >>> k0 = torch.zeros(3, 1); q = torch.tensor([[0.0], [2.0], [0.0]])
    >>> u, s, vh = delta_svd(torch.tensor([[1.0], [0.0], [0.0]]), q, k0, q, k=1)
    >>> u.squeeze().tolist(), s.tolist(), vh.squeeze().tolist()
    ([1.0, 0.0, 0.0], [2.0], [0.0, 1.0, 0.0])
    """
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"`k` must be an integer of at least 1; got {k}.")
    _checks.change_of_a_product(left, right, left0, right0)
    return SVD(*over_chunks(lambda *factors: _svd(*stacked(*factors), k), left, right, left0, right0))


def stacked(left: Tensor, right: Tensor, left0: Tensor, right0: Tensor) -> tuple[Tensor, Tensor]:
    """`L = [ΔK, K0]` and `R = [Q, ΔQ]` in float64, so that `Δ = L Rᵀ`.

    Each column is contiguous in memory, as LAPACK wants it and as a slice of an `nn.Linear` has it.
    """
    r = left.shape[-1]
    big_l, big_r = (f.new_empty(*f.shape[:-2], 2 * r, f.shape[-2], dtype=torch.float64) for f in (left, right))
    delta_l, base_l = big_l[..., :r, :], big_l[..., r:, :]
    base_l.copy_(left0.mT)
    torch.sub(left.mT, base_l, out=delta_l)
    now_r, delta_r = big_r[..., :r, :], big_r[..., r:, :]
    now_r.copy_(right.mT)
    torch.sub(now_r, right0.mT, out=delta_r)
    return big_l.mT, big_r.mT


def gram(matrix: Tensor) -> Tensor:
    """`MᵀM` of every M (..., d, r).

    On a CPU numpy computes it, because numpy calls the symmetric product (syrk), which does half the work of the
    general product that torch calls.
    """
    if matrix.device.type != "cpu":
        return matrix.mT @ matrix
    array = matrix.detach().numpy()
    return torch.from_numpy(np.matmul(array.swapaxes(-1, -2), array))


def balanced_grams(big_l: Tensor, big_r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`LᵀL`, `RᵀR` and the scales of R's columns, after giving the columns of every pair `l_j`, `r_j` equal norms.

    That leaves `L Rᵀ` as it is. The scales are powers of two and commute with rounding, so they are applied to the Gram
    matrices. A pair with a zero column contributes nothing to `L Rᵀ`; both its columns become zero, because the size
    of the other column would otherwise drown the remaining columns.
    """
    gram_l, gram_r = gram(big_l), gram(big_r)
    scale_l, scale_r = _column_scales(gram_l.diagonal(dim1=-2, dim2=-1), gram_r.diagonal(dim1=-2, dim2=-1))
    gram_l.mul_(scale_l[..., :, None]).mul_(scale_l[..., None, :])
    gram_r.mul_(scale_r[..., :, None]).mul_(scale_r[..., None, :])
    return gram_l, gram_r, scale_r


def _balance_columns(big_l: Tensor, big_r: Tensor) -> tuple[Tensor, Tensor]:
    scale_l, scale_r = _column_scales(big_l.square().sum(dim=-2), big_r.square().sum(dim=-2))
    return big_l * scale_l[..., None, :], big_r * scale_r[..., None, :]


def _column_scales(squares_l: Tensor, squares_r: Tensor) -> tuple[Tensor, Tensor]:
    both = (squares_l > 0) & (squares_r > 0)
    ratio = torch.where(both, squares_r / squares_l, 1.0)
    scale = torch.exp2((torch.log2(ratio) / 4).round())  # (‖r_j‖/‖l_j‖)^½, from squared norms
    return torch.where(both, scale, 0.0), torch.where(both, 1.0 / scale, 0.0)


def _svd(big_l: Tensor, big_r: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    big_l, big_r = _balance_columns(big_l, big_r)
    q_left, r_left = torch.linalg.qr(big_l)
    q_right, r_right = torch.linalg.qr(big_r)
    u, s, vh = _decompose.thin_svd(r_left @ r_right.mT)
    return with_positive_peaks(q_left @ u[..., :k], s[..., :k], vh[..., :k, :] @ q_right.mT)


def with_positive_peaks(u: Tensor, s: Tensor, vh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same triplets with the largest entry of each column of U positive."""
    peak = u.gather(-2, u.abs().argmax(dim=-2, keepdim=True))  # (..., 1, k)
    sign = torch.where(peak < 0, -1.0, 1.0).to(u)
    return u * sign, s, vh * sign.mT


def _by_qr(factors: Callable[[], Sequence[Tensor]]) -> Tensor:
    """σ(R_left R_rightᵀ), both factors scaled to unit size so that neither squares nor products leave the range."""
    left, right = factors()
    size_l, size_r = _power_of_two(left), _power_of_two(right)
    left, right = _balance_columns(left / size_l, right / size_r)
    core = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right, mode="r").R.mT
    return _decompose.singular_values(core) * size_l[..., 0] * size_r[..., 0]


def _power_of_two(tensor: Tensor) -> Tensor:
    """2^⌊log₂ max|tensor|⌋ of every matrix, (..., 1, 1), and 1 for a zero matrix."""
    largest = tensor.abs().amax(dim=(-2, -1), keepdim=True)
    return torch.exp2(torch.where(largest > 0, largest, 1.0).log2().floor())


def _by_gram(factors: Callable[[], Sequence[Tensor]]) -> Tensor:
    """σ² = λ(Cᵀ (rightᵀright) C) with leftᵀleft = C Cᵀ by Cholesky, or by eigenvectors where that breaks down.

    Takes a function so that the factors, the largest tensors here, are gone before anything is decomposed.
    """
    gram_l, gram_r, _ = balanced_grams(*factors())
    cholesky = torch.linalg.cholesky_ex(gram_l)
    c: Tensor = cholesky.L
    singular = cholesky.info > 0
    if singular.any():
        values, vectors = _decompose.symmetric_eigen(gram_l[singular])
        c[singular] = vectors * values.clamp_min(0).sqrt()[..., None, :]
    matrix = c.mT @ gram_r @ c
    del gram_l, gram_r, cholesky, c
    return _decompose.psd_eigenvalues(matrix).sqrt()
