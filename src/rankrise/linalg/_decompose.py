"""Eigen- and singular value decompositions that do not give up.

The divide-and-conquer drivers behind `torch.linalg` fail to converge on rare finite input. Then the slower QR-iteration
drivers of LAPACK answer, one matrix at a time on the CPU, and a `RuntimeWarning` says so.
"""

import functools
import warnings

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

_NoConvergence = torch.linalg.LinAlgError  # type: ignore[attr-defined]
_DELTA = 1e-6


def symmetric_eigenvalues(matrix: Tensor) -> Tensor:
    """Eigenvalues of symmetric `matrix` (..., n, n), descending, (..., n)."""
    try:
        values: Tensor = torch.linalg.eigvalsh(matrix)
        return values.flip(-1)
    except _NoConvergence:
        _say("eigvalsh", "LAPACK syev")
        one_by_one = [scipy.linalg.eigvalsh(m, driver="ev") for m in _matrices(matrix)]
        return _like(matrix, one_by_one, matrix.shape[-1:]).flip(-1)


def symmetric_eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and orthonormal eigenvectors of symmetric `matrix` (..., n, n)."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    except _NoConvergence:
        _say("eigh", "LAPACK syev")
        pairs = [scipy.linalg.eigh(m, driver="ev") for m in _matrices(matrix)]
        return (
            _like(matrix, [p[0] for p in pairs], matrix.shape[-1:]),
            _like(matrix, [p[1] for p in pairs], matrix.shape[-2:]),
        )


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values of `matrix` (..., m, n), descending, (..., min(m, n))."""
    try:
        values: Tensor = torch.linalg.svdvals(matrix)
        return values
    except _NoConvergence:
        _say("svdvals", "LAPACK gesvd")
        one_by_one = [scipy.linalg.svd(m, compute_uv=False, lapack_driver="gesvd") for m in _matrices(matrix)]
        return _like(matrix, one_by_one, (min(matrix.shape[-2:]),))


def psd_eigenvalues(matrix: Tensor) -> Tensor:
    """Eigenvalues of positive semidefinite `matrix` (..., n, n), descending, (..., n), each right to ε λ₁.

    CUDA solves such matrices one after another, 2 ms each. Its batched singular value driver `gesvda` is fifteen times
    faster, fails where singular values are tiny, and is right to ε λ₁ for `λ = σ²(C) − δ`, `C Cᵀ = matrix + δ I`. It is
    believed where `Σ λ` and `Σ λ²` agree with the trace and the Frobenius norm.
    """
    if not (matrix.is_cuda and matrix.ndim > 2 and 32 < matrix.shape[-1] <= 1024):
        return symmetric_eigenvalues(matrix).clamp_min(0)
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    delta = _DELTA * trace + torch.finfo(matrix.dtype).tiny
    squares = matrix.square().sum(dim=(-2, -1))
    shifted = matrix.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(delta[..., None])
    c = torch.linalg.cholesky_ex(shifted).L
    del shifted
    try:
        values: Tensor = torch.linalg.svdvals(c, driver="gesvda").square() - delta[..., None]
    except _NoConvergence:
        return symmetric_eigenvalues(matrix).clamp_min(0)
    trusted = (values.sum(-1) - trace).abs() <= 1e-11 * trace
    trusted &= (values.square().sum(-1) - squares).abs() <= 1e-11 * squares
    if not trusted.all():
        values[~trusted] = symmetric_eigenvalues(matrix[~trusted])
    return values.clamp_min(0)


def thin_svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`U, S, Vh` of `matrix` (..., m, n) with min(m, n) columns of U and rows of Vh."""
    try:
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        return u, s, vh
    except _NoConvergence:
        _say("svd", "LAPACK gesvd")
        parts = [scipy.linalg.svd(m, full_matrices=False, lapack_driver="gesvd") for m in _matrices(matrix)]
        m, n = matrix.shape[-2:]
        k = min(m, n)
        shapes = ((m, k), (k,), (k, n))
        u, s, vh = (_like(matrix, [p[i] for p in parts], shape) for i, shape in enumerate(shapes))
        return u, s, vh


@functools.cache
def fixed_gaussian(rows: int, columns: int) -> Tensor:
    """Standard normals that are the same in every call, to start iterations that must not touch the global state."""
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")


def leading_svd(matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """`U, S, Vh` of the k largest singular values of one `matrix` (m, n), by subspace iteration in O(m n k).

    S approaches the singular values from below. It is right to a few percent where the spectrum is flat, and to many
    digits where the spectrum falls.
    """
    k = min(k, *matrix.shape)
    v = fixed_gaussian(matrix.shape[1], min(k + 8, *matrix.shape)).to(matrix.device)
    for _ in range(8):
        u = torch.linalg.qr(matrix @ v).Q
        v = torch.linalg.qr((u.mT @ matrix).mT).Q
    small_u, s, vh = thin_svd(u.mT @ matrix)
    return u @ small_u[:, :k], s[:k], vh[:k]


def _matrices(matrix: Tensor) -> list[np.ndarray]:
    return list(matrix.reshape(-1, *matrix.shape[-2:]).cpu().numpy())


def _like(matrix: Tensor, results: list[np.ndarray], shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.stack(results)).to(matrix.device).reshape(*matrix.shape[:-2], *shape)


def _say(failed: str, used: str) -> None:
    warnings.warn(f"torch.linalg.{failed} did not converge; used {used} instead.", RuntimeWarning, stacklevel=4)
