"""The floor that rounding leaves: how many directions of `tuned − base` the storage format cannot explain.

A checkpoint stored in bfloat16 keeps eight bits of every weight. The difference of two checkpoints is then the true
change plus a full-rank matrix of rounding errors, and a rank-4 change of 0.3% reads as "226 directions for 90% of
the energy". Rounding errors are nearly independent, with the known variance ulp²/12, so the edge of their spectrum is
known.

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
from rankrise.linalg._measures import gaussian_spectra

# Quantiles of the Tracy-Widom law for β = 1 (A. Bejan, "Largest eigenvalues and sample covariance matrices", 2005).
_TRACY_WIDOM_05, _TRACY_WIDOM_99 = -3.18037, 2.02344
# A change of about half an ulp, added to a base that lies on the grid, is rounded with an error that is not uniform.
# Its variance around the best linear response is at most this multiple of ulp²/12 (a Gaussian change of half an ulp).
_ON_GRID = 1.10
_MOST_EXPLAINED = 64  # directions; if more are above the floor, it is not asked which of them rounding explains
_OF_LIKE_SIZE = 0.3
_ROUNDS = 5


@dataclass(frozen=True, eq=False)
class RankAboveFloor:
    """Directions of a change that rounding does not explain; all but the last two fields have the batch shape."""

    rank: Tensor  # values of `sigma` above `floor`, less those that rounding the leading ones explains
    lower: Tensor  # how many of these are above a floor that is a tenth higher
    upper: Tensor  # values above the 5% quantile, counted as if the base were exact
    floor: Tensor  # the 99% quantile of the largest value that rounding of both checkpoints alone gives
    sigma: Tensor  # (..., min(m, n)): singular values of X, in which rounding has variance 1
    rounding: Tensor  # (..., min(m, n)): the spectrum of rounding alone, in the same units


def rounding_variance(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Variance `ulp(w)² / 12` of the error made by storing values like `weight` in `dtype`, in float64.

    >>> import torch
    >>> (rounding_variance(torch.tensor([1.0, 3.0]), torch.bfloat16) * 12).sqrt().tolist()
    [0.0078125, 0.015625]
    """
    _checks.floating_dtype("dtype", dtype)
    info = torch.finfo(dtype)
    weight = weight.to(torch.float64)
    smallest = int(math.log2(info.tiny))  # zero and subnormal numbers have the spacing of the smallest normal one
    exponent = torch.where(weight == 0, smallest, torch.frexp(weight).exponent - 1)
    ulp = torch.exp2(exponent.clamp_min(max(smallest, -400)).to(torch.float64)) * info.eps
    return ulp.square() / 12


def storage_dtype(weight: Tensor) -> torch.dtype:
    """The format whose grid the values lie on: bfloat16 or float16 if these hold them exactly, else the tensor's own.

    A checkpoint trained in bfloat16 and saved in float32 is a bfloat16 checkpoint. Eight-bit formats are stored with
    scales, so their grid cannot be recognised: name them where they are meant.

    >>> import torch
    >>> storage_dtype(torch.tensor([0.5, 3.0])), storage_dtype(torch.tensor([0.1]))
    (torch.bfloat16, torch.float32)
    """
    if weight.itemsize > 2:
        for narrow in (torch.bfloat16, torch.float16):  # most bfloat16 weights lie on float16's finer grid as well
            if (weight.to(narrow).to(weight.dtype) == weight).all():
                return narrow
    return weight.dtype


def rank_above_floor(
    base: Tensor, tuned: Tensor, *, base_dtype: torch.dtype | None = None, tuned_dtype: torch.dtype | None = None
) -> RankAboveFloor:
    """Number of directions of `tuned − base` that rounding to the stored formats cannot have made.

    Rows and columns are scaled until rounding has the same variance in each; then the singular values of the scaled
    difference are compared with the largest one of a random matrix of that variance, `√m + √n` and its Tracy-Widom
    fluctuation (Johnstone 2001). Where the base lies on the grid of the tuned format, `round(base + c) − base` is a
    nonlinear function of the change c and shows more directions than c has, growing with the matrix: there the rank is
    the smallest j for which rounding `base` plus a change of rank j leaves nothing above the floor. Directions weaker
    than the floor are lost, not absent.

    One rounding of each checkpoint is taken into account. Weights that are trained in the format they are stored in are
    rounded at every step, and no file says how often: `rank` is then an upper bound.

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
    if base.device != tuned.device:
        raise ValueError(f"`tuned` must be on the device of `base`; got {tuned.device} and {base.device}.")
    _checks.same_shape(base=base, tuned=tuned)
    dtypes = base_dtype or storage_dtype(base), tuned_dtype or storage_dtype(tuned)
    for name, dtype in zip(("base_dtype", "tuned_dtype"), dtypes, strict=True):
        _checks.floating_dtype(name, dtype)
    return RankAboveFloor(
        *over_chunks(lambda base, tuned: _above_floor(base.double(), tuned.double(), *dtypes), base, tuned)
    )


def _above_floor(base: Tensor, tuned: Tensor, base_dtype: torch.dtype, tuned_dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The fields of `RankAboveFloor`, in order."""
    of_tuned = rounding_variance(tuned, tuned_dtype)
    variance = of_tuned * _ON_GRID + rounding_variance(base, base_dtype)  # S
    a, b = _equalised(variance)
    scale = (a * b).sqrt()
    edge = _edge(a * b * variance, _TRACY_WIDOM_99)
    sigma = _spectrum(scale * (tuned - base), edge)
    on_grid = (base.to(tuned_dtype).to(base.dtype) == base).flatten(1).all(-1)
    rank = (sigma > edge[:, None]).sum(-1)
    for i in on_grid.nonzero().flatten().tolist():
        rank[i] = _explaining_rank(base[i], tuned[i], scale[i], float(edge[i]), sigma[i, : rank[i]], tuned_dtype)
    lower = (sigma > 1.1 * edge[:, None]).sum(-1).minimum(rank)
    upper = (sigma > _edge(a * b * of_tuned, _TRACY_WIDOM_05)[:, None]).sum(-1)
    alone = gaussian_spectra(*base.shape[-2:], samples=1).to(sigma.device).expand_as(sigma)
    return rank, lower, upper, edge, sigma, alone


def _explaining_rank(
    base: Tensor, tuned: Tensor, scale: Tensor, floor: float, found: Tensor, dtype: torch.dtype
) -> int:
    """Smallest j for which some change of rank j, rounded, leaves nothing above the floor; all `found` values suffice.

    Rounding turns less than a tenth of a direction into others, so directions of about the size of the largest one are
    true and are not tested.
    """
    low, high = int((found > _OF_LIKE_SIZE * found[:1]).sum()), len(found)
    while low < high <= _MOST_EXPLAINED:
        j = (low + high) // 2
        low, high = (low, j) if _unexplained(base, tuned, scale, j, dtype) <= floor else (j + 1, high)
    return high


def _unexplained(base: Tensor, tuned: Tensor, scale: Tensor, j: int, dtype: torch.dtype) -> float:
    """Largest singular value, in the scaled coordinates, of `tuned − round(base + c)` for the best c of rank j found.

    The search begins at c = 0 and repeats `c ← best rank-j part of c + tuned − round(base + c)`, which restores within
    a few rounds what rounding took from a true change of rank j.
    """
    change = torch.zeros_like(base)
    for _ in range(_ROUNDS):
        rest = scale * (tuned - (base + change).to(dtype).to(base.dtype))
        u, s, vh = _decompose.leading_svd(scale * change + rest, j)
        change = (u * s) @ vh / scale
    rest = scale * (tuned - (base + change).to(dtype).to(base.dtype))
    return float(_decompose.leading_svd(rest, 1)[1][0])


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
