"""What rounding alone does to a circuit: the largest singular value that storing its factors gives its change.

Symbols:
    K, Q        factors (heads, d, r) now; K0, Q0 those of the base
    E_K, E_Q    rounding in K − K0 and in Q − Q0: independent, with known variances
    N           E_K Qᵀ + K0 E_Qᵀ, rounding in `K Qᵀ − K0 Q0ᵀ`. By Weyl's inequality a change of rank r has at most r
                singular values above σ₁(N)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rankrise.linalg import product_spectrum

_DRAWS = 6
_WIDTHS = 3.0  # standard deviations above the mean: the law of a largest singular value is narrow


def circuit_floor(
    left: Tensor,
    right: Tensor,
    left0: Tensor,
    right0: Tensor,
    *,
    variances: Sequence[Tensor],
    heads: Tensor | None = None,
) -> Tensor:
    """σ₁(N) of every head, (heads,): mean over draws of E and three standard deviations, found over draws and heads.

    A factor that is the same in both has no rounding in its change.

    Args:
        left: (heads, d, r) now.
        right: (heads, e, r) now.
        left0: The base's.
        right0: The base's.
        variances: Of the rounding in every entry of `left − left0` and `right − right0`.
        heads: (heads,), which of them to take; the others, which may hold NaN, are 0.

    >>> ones, generator = torch.ones(1, 50, 4), torch.Generator().manual_seed(0)
    >>> base, rounding = (torch.randn(1, 50, 4, generator=generator) for _ in range(2))
    >>> floor = circuit_floor(base + 0.01 * rounding, base, base, base, variances=(1e-4 * ones, 1e-4 * ones))
    >>> largest = product_spectrum(0.01 * rounding, base)[0, 0]
    >>> bool(0.8 * floor < largest < floor)
    True
    """
    if heads is not None:
        left, right, left0, right0 = (torch.where(heads[:, None, None], t, 0.0) for t in (left, right, left0, right0))
    deviations = [
        torch.where((now == then).flatten(1).all(1)[:, None, None], 0.0, variance.sqrt()).to(now.dtype)
        for now, then, variance in zip((left, right), (left0, right0), variances, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(_DRAWS):
        e_left, e_right = (
            deviation * torch.randn(deviation.shape, generator=generator).to(deviation) for deviation in deviations
        )
        draws.append(product_spectrum(torch.cat([e_left, left0], -1), torch.cat([right, e_right], -1))[..., 0])
    largest = torch.stack(draws)  # (draws, heads)
    mean = largest.mean(0)
    spread = (largest / mean.clamp_min(torch.finfo(mean.dtype).tiny)).std(0).square().mean().sqrt()
    return mean * (1 + _WIDTHS * spread)
