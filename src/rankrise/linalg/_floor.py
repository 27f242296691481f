"""The floor that rounding leaves: how many directions of `tuned − base` the storage format cannot explain.

A checkpoint stored in bfloat16 keeps eight bits of every weight. The difference of two checkpoints is then the true
change plus a full-rank matrix of rounding errors, and a rank-4 change of 0.3% reads as "226 directions for 90% of
the energy". Rounding errors are as good as independent, with the known variance ulp²/12, so they have a known edge.

Symbols:
    D       tuned − base, as stored
    S       S_ij, the variance of the rounding error in D_ij
    a, b    row and column scales under which `a_i b_j S_ij` has mean 1 in every row and column (Sinkhorn), so that
            outlier rows and columns do not lift the edge for everyone
    X       a^½ ⊙ D ⊙ b^½, in which rounding alone has its largest singular value near √m + √n
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.linalg import _checks, _decompose
from rankrise.linalg._chunks import over_chunks

# Quantiles of the Tracy-Widom law for β = 1 (A. Bejan, "Largest eigenvalues and sample covariance matrices", 2005).
_TRACY_WIDOM_05, _TRACY_WIDOM_99 = -3.18037, 2.02344
# A change of about half an ulp, added to a base that lies on the grid, is rounded with an error that is not uniform.
# Its variance around the best linear response is at most this multiple of ulp²/12 (a Gaussian change of half an ulp).
_ON_GRID = 1.10


@dataclass(frozen=True)
class RankAboveFloor:
    """Directions of a change that rounding does not explain; every field has the batch shape but `sigma`."""

    rank: Tensor  # values of `sigma` above `floor`
    lower: Tensor  # above a floor a tenth higher
    upper: Tensor  # above the 5% quantile, were the base exact
    floor: Tensor  # the 99% quantile of the largest value that rounding of both checkpoints alone gives
    sigma: Tensor  # (..., min(m, n)): singular values of X, in which rounding has variance 1


def rounding_variance(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Variance `ulp(w)² / 12` of the error made by storing values like `weight` in `dtype`, in float64.

    >>> import torch
    >>> (rounding_variance(torch.tensor([1.0, 3.0]), torch.bfloat16) * 12).sqrt().tolist()
    [0.0078125, 0.015625]
    """
    info = torch.finfo(dtype)
    exponent = torch.frexp(weight.to(torch.float64)).exponent - 1
    smallest = int(math.log2(info.tiny))  # subnormal numbers keep the spacing of the smallest normal one
    ulp = torch.exp2(exponent.clamp_min(smallest).to(torch.float64)) * info.eps
    return ulp.square() / 12


def storage_dtype(weight: Tensor) -> torch.dtype:
    """The format whose grid the values lie on: float16 or bfloat16 if these hold them exactly, else the tensor's own.

    A checkpoint trained in bfloat16 and saved in float32 is a bfloat16 checkpoint.

    >>> import torch
    >>> storage_dtype(torch.tensor([0.5, 3.0])), storage_dtype(torch.tensor([0.1]))
    (torch.float16, torch.float32)
    """
    if weight.itemsize > 2:
        for narrow in (torch.float16, torch.bfloat16):
            if (weight.to(narrow).to(weight.dtype) == weight).all():
                return narrow
    return weight.dtype


@_checks.measurement
def rank_above_floor(
    base: Tensor, tuned: Tensor, *, base_dtype: torch.dtype | None = None, tuned_dtype: torch.dtype | None = None
) -> RankAboveFloor:
    """Number of directions of `tuned − base` that rounding to the stored formats cannot have made.

    Rows and columns are scaled until rounding has the same variance in each; then the singular values of the scaled
    difference are compared with the largest one of a random matrix of that variance, `√m + √n` and its Tracy-Widom
    fluctuation (Johnstone 2001). False positives are at the percent level. A direction below the floor is lost, not
    absent: `upper` says how many there may be, short of that.

    Args:
        base: (..., m, n) as stored, or upcast.
        tuned: (..., m, n), same device; its dtype may differ.
        base_dtype: The format it was stored in; by default the one its values lie on (`storage_dtype`).
        tuned_dtype: Likewise. Divide an eight-bit checkpoint with scales by its scale first.

    Raises:
        ValueError: Wrong shapes, empty or non-finite input; names the argument.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> base, left, right = (torch.randn(200, n, generator=generator) for n in (300, 2, 300))
    >>> change = 0.002 * left @ right[:2]
    >>> rank_above_floor(base, (base + change).bfloat16()).rank.item()
    2
    """
    _checks.stacks(base=base)
    _checks.stacks(tuned=tuned)
    _checks.same_shape(base=base, tuned=tuned)
    if base.device != tuned.device:
        raise ValueError(f"`tuned` must be on the device of `base`; got {tuned.device} and {base.device}.")
    dtypes = base_dtype or storage_dtype(base), tuned_dtype or storage_dtype(tuned)
    return RankAboveFloor(*over_chunks(lambda base, tuned: _above_floor(base, tuned, *dtypes), base, tuned))


def _above_floor(base: Tensor, tuned: Tensor, base_dtype: torch.dtype, tuned_dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The fields of `RankAboveFloor`, in order."""
    of_tuned = rounding_variance(tuned, tuned_dtype)
    variance = of_tuned * _ON_GRID + rounding_variance(base, base_dtype)  # S
    a, b = _equalised(variance)
    scaled = (a * b).sqrt() * (tuned - base)  # X
    edges = [
        _edge(a * b * variance, _TRACY_WIDOM_99),
        1.1 * _edge(a * b * variance, _TRACY_WIDOM_99),
        _edge(a * b * of_tuned, _TRACY_WIDOM_05),
    ]
    sigma = _spectrum(scaled, edges[0])
    rank, lower, upper = ((sigma > edge[:, None]).sum(-1) for edge in edges)
    return rank, lower, upper, edges[0], sigma


def _equalised(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scales (..., m, 1) and (..., 1, n) that bring the mean of every row and column of S near 1."""
    a = 1 / variance.mean(-1, keepdim=True)
    for _ in range(20):
        b = 1 / (a * variance).mean(-2, keepdim=True)
        means = (b * variance).mean(-1, keepdim=True)
        settled = ((a * means).log().abs() < 1e-3).all()
        a = 1 / means
        if settled:
            break
    return a, b


def _edge(variance: Tensor, quantile: float) -> Tensor:
    """Quantile of the largest singular value of a random matrix with these variances.

    For variance 1: `σ₁² = μ + s·TW`, `μ = (√(m−½) + √(n−½))²`, `s = √μ (1/√(m−½) + 1/√(n−½))^⅓` (Johnstone 2001). With
    unequal variances m and n become the largest sums over a column and a row.
    """
    m = variance.sum(-2).amax(-1) - 0.5
    n = variance.sum(-1).amax(-1) - 0.5
    m, n = m.clamp_min(0.5), n.clamp_min(0.5)
    root = m.sqrt() + n.sqrt()
    return (root.square() + root * (1 / m.sqrt() + 1 / n.sqrt()) ** (1 / 3) * quantile).clamp_min(0).sqrt()


def _spectrum(matrix: Tensor, floor: Tensor) -> Tensor:
    """Singular values through the smaller Gram matrix; directly where its error of 1e-8 σ₁ comes near the floor."""
    wide = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    sigma = _decompose.psd_eigenvalues(wide @ wide.mT).sqrt()
    return _decompose.singular_values(matrix) if (sigma[:, 0] > 1e6 * floor).any() else sigma
