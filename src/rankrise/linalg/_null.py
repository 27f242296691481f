"""Spectra of random matrices of the same shape, to be compared with every rank measure."""

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from rankrise.linalg import _decompose


def gaussian_spectra(rows: int, columns: int, *, inner: int | None = None, samples: int = 16, seed: int = 0) -> Tensor:
    """Singular values of random matrices, drawn from their exact law without drawing the matrices.

    Without `inner`, of a `rows` × `columns` matrix of independent standard normals, through the bidiagonal model: χ
    variables on two diagonals have the same singular values (Dumitriu and Edelman 2002). With `inner`, of a product
    of Gaussian factors, rows × inner times inner × columns, through the triangular QR factors of both. The change of a
    head of dimension r that is random in all four factors is a product with `inner = 2r`.

    Args:
        rows: d.
        columns: e.
        inner: Inner dimension of the product, or None for one dense matrix.
        samples: How many spectra.
        seed: Of a generator of its own; global randomness is not touched.

    Returns:
        (samples, min(rows, columns, inner)), float64, descending.

    Raises:
        ValueError: A size below 1.

    >>> sigma = gaussian_spectra(100, 400, samples=3)
    >>> sigma.shape, bool((sigma[:, 0] < 20 + 10 + 2).all())  # near √400 + √100
    (torch.Size([3, 100]), True)
    """
    for name, size in {"rows": rows, "columns": columns, "inner": inner, "samples": samples}.items():
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"`{name}` must be an integer of at least 1; got {size}.")
    rng = np.random.default_rng(seed)
    if inner is None:
        return torch.from_numpy(np.stack([_dense(rng, rows, columns) for _ in range(samples)]))
    left = np.stack([_triangle(rng, rows, inner) for _ in range(samples)])
    right = np.stack([_triangle(rng, columns, inner) for _ in range(samples)])
    sigma = _decompose.singular_values(torch.from_numpy(left @ right.swapaxes(-1, -2)))
    return sigma[:, : min(rows, columns, inner)]


def _dense(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Bidiagonal B with χ_m, χ_{m−1}, … on and χ_{n−1}, … beside the diagonal (m ≥ n); σ² = λ(B Bᵀ), tridiagonal."""
    m, n = max(rows, columns), min(rows, columns)
    on = np.sqrt(rng.chisquare(m - np.arange(n)))
    beside = np.sqrt(rng.chisquare(n - 1 - np.arange(n - 1)))
    squares = on**2
    squares[:-1] += beside**2
    sigma: np.ndarray = np.sqrt(scipy.linalg.eigvalsh_tridiagonal(squares, on[1:] * beside).clip(0))
    return sigma[::-1].copy()


def _triangle(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """The R of a QR factorisation of a rows × columns Gaussian matrix: χ_{rows−j} on, normals above the diagonal."""
    height = min(rows, columns)
    r = np.triu(rng.standard_normal((height, columns)), 1)
    r[np.arange(height), np.arange(height)] = np.sqrt(rng.chisquare(rows - np.arange(height)))
    return r
