"""Measures of rank, which say how many directions a spectrum σ₁ ≥ σ₂ ≥ … ≥ 0 really uses, and the spectra of chance.

Each measure takes singular values (..., k) in any order, as a tensor or anything `torch.as_tensor` takes, and returns
one number for each spectrum. A spectrum of zeros has rank 0 in every measure. Whether a rank is low shows only in
comparison with that of a random matrix of the same shape, which `gaussian_spectra` gives.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from rankrise.linalg import _checks, _decompose


def stable_rank(sigma: Tensor) -> Tensor:
    """`‖M‖_F² / ‖M‖₂² = Σ σ_i² / σ₁²`, the paper's measure: at most the rank, and blind to small directions.

    >>> stable_rank([2.0, 1.0, 1.0]).item()
    1.5
    """
    return _scaled(sigma).square().sum(-1)


def effective_rank(sigma: Tensor) -> Tensor:
    """`exp(−Σ p_i log p_i)` with `p_i = σ_i / Σ σ`: the entropy measure of Roy and Vetterli (2007).

    >>> round(effective_rank([1.0, 1.0, 1.0, 0.0]).item(), 9)
    3.0
    """
    sigma = _scaled(sigma)
    p = sigma / sigma.sum(-1, keepdim=True).clamp_min(1.0)
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return entropy.exp() * (sigma.amax(-1) > 0)


def numerical_rank(sigma: Tensor, *, rtol: float) -> Tensor:
    """Number of σ_i above `rtol · σ₁`.

    >>> numerical_rank([1.0, 0.1, 1e-9], rtol=1e-6).item()
    2
    """
    if not 0 <= rtol < 1:
        raise ValueError(f"`rtol` must be in [0, 1); got {rtol}.")
    return (_scaled(sigma) > rtol).sum(-1)


def energy_rank(sigma: Tensor, energy: float = 0.9) -> Tensor:
    """Smallest number of leading σ_i whose squares add up to `energy` of `Σ σ²`.

    >>> energy_rank([3.0, 1.0, 1.0], 0.9).item(), energy_rank([3.0, 1.0, 1.0], 0.95).item()
    (2, 3)
    """
    if not 0 < energy <= 1:
        raise ValueError(f"`energy` must be in (0, 1]; got {energy}.")
    sigma = _scaled(sigma).sort(-1, descending=True).values
    if energy == 1:
        return (sigma > 0).sum(-1)
    sums = sigma.square().cpu().cumsum(-1).to(sigma.device)  # on a GPU it is not deterministic, and may be forbidden
    share = sums / sigma.square().sum(-1, keepdim=True).clamp_min(1.0)
    short = share < energy * (1 - 1e-12)  # by more than the rounding of the sum
    return (short.sum(-1) + 1).clamp_max(sigma.shape[-1]) * (sigma.amax(-1) > 0)


def nuclear_ratio(sigma: Tensor) -> Tensor:
    """`‖M‖_* / ‖M‖_F = Σ σ_i / (Σ σ_i²)^½`, between 1 and the square root of the rank.

    >>> nuclear_ratio([1.0, 1.0, 1.0, 1.0]).item()
    2.0
    """
    sigma = _scaled(sigma)
    return sigma.sum(-1) / sigma.square().sum(-1).sqrt().clamp_min(1.0)


@dataclass(frozen=True, eq=False)
class RankMeasures:
    """The measures that need no threshold, for one spectrum or a batch of them."""

    stable: Tensor
    effective: Tensor
    energy_90: Tensor
    energy_95: Tensor
    energy_99: Tensor
    nuclear_ratio: Tensor


def rank_measures(sigma: Tensor) -> RankMeasures:
    """All measures that need no threshold; compare them with those of `gaussian_spectra` for the same shape.

    >>> from rankrise.linalg import gaussian_spectra
    >>> null = rank_measures(gaussian_spectra(512, 512, inner=256))
    >>> round(null.stable.mean().item()), round(null.energy_90.double().mean().item())
    (59, 140)
    """
    return RankMeasures(
        stable=stable_rank(sigma),
        effective=effective_rank(sigma),
        energy_90=energy_rank(sigma, 0.9),
        energy_95=energy_rank(sigma, 0.95),
        energy_99=energy_rank(sigma, 0.99),
        nuclear_ratio=nuclear_ratio(sigma),
    )


def _scaled(sigma: Tensor) -> Tensor:
    """σ / σ₁ in float64, so that no square leaves the range; zeros stay zeros."""
    sigma = _checks.spectrum_in_float64(sigma)
    largest = sigma.amax(-1, keepdim=True)
    return sigma / torch.where(largest > 0, largest, 1.0)


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
        samples: How many spectra to draw.
        seed: Seed of a generator of its own, so that the global random state is not touched.

    Returns:
        (samples, min(rows, columns, inner)), float64, descending.

    Raises:
        ValueError: A size is below 1.

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
