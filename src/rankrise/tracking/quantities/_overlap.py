"""Did training go on in the directions it had? Overlap of leading subspaces with those of the measurement before.

Symbols:
    F, G    orthonormal columns, leading directions of two changes; F_j, G_j the first j of them
    θ_i     principal angles between their spans
"""

import torch
from torch import Tensor

from rankrise.tracking._change import Change
from rankrise.tracking.quantities._quantity import Quantity

_RESOLVED = 1e-6  # of σ₁: below, a direction is rounding


def subspace_overlap(first: Tensor, second: Tensor, *, sigma: Tensor, sigma2: Tensor) -> Tensor:
    """`‖F_jᵀ G_j‖_F² / j`, the mean of cos² θ_i, for j = 1 … k: 1 for equal spans, 0 for orthogonal ones.

    Args:
        first: F, (..., d, k), orthonormal columns.
        second: G, (..., d, l); of the two, the leading min(k, l) directions count.
        sigma: (..., k), singular values that belong to F.
        sigma2: (..., l), those of G.

    Returns:
        (..., min(k, l)), entry j − 1 for the leading j directions; NaN where one of them is below 1e-6 σ₁, and so is no
        direction at all.

    >>> f, g = torch.eye(3)[:, :2], torch.eye(3)[:, [0, 2]]
    >>> subspace_overlap(f, g, sigma=torch.ones(2), sigma2=torch.ones(2)).tolist()
    [1.0, 0.5]
    """
    k = min(sigma.shape[-1], sigma2.shape[-1])
    first, second, sigma, sigma2 = first[..., :k], second[..., :k], sigma[..., :k], sigma2[..., :k]
    cosines = (first.double().mT @ second.double()).square()
    sums = cosines.cpu().cumsum(-1).cumsum(-2).diagonal(dim1=-2, dim2=-1)  # on a GPU it is not deterministic
    sums = sums.to(cosines.device)
    counts = torch.arange(1, sums.shape[-1] + 1, dtype=sums.dtype, device=sums.device)
    resolved = (sigma > _RESOLVED * sigma[..., :1]) & (sigma2 > _RESOLVED * sigma2[..., :1])
    return torch.where(resolved, sums / counts, torch.nan)


def _left(change: Change) -> Tensor | None:
    now, before = change.leading, change.previous
    if now is None or before is None:
        return None
    return subspace_overlap(now.left, before.left, sigma=now.sigma, sigma2=before.sigma)


def _right(change: Change) -> Tensor | None:
    now, before = change.leading, change.previous
    if now is None or before is None:
        return None
    return subspace_overlap(now.right, before.right, sigma=now.sigma, sigma2=before.sigma)


OVERLAP_LEFT = Quantity("overlap_left", "spectra", _left)
OVERLAP_RIGHT = Quantity("overlap_right", "spectra", _right)
