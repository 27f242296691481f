"""Rank, measured: numbers that say how many directions a spectrum σ₁ ≥ σ₂ ≥ … ≥ 0 really uses.

Each takes singular values (..., k) in any order, as a tensor or anything `torch.as_tensor` takes, and returns one
number for each spectrum. A spectrum of zeros has rank 0 in every measure. `gaussian_spectra` gives the same numbers for
a random matrix, without which none of them says whether a rank is low.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.linalg import _checks


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
    """The measures that need no threshold, at once; beside them, put the same of `gaussian_spectra` for the shape.

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
