"""Angles between the subspaces of two changes: did training go on in the directions it had, or take new ones?"""

import torch
from torch import Tensor

from rankrise.linalg import _checks, _decompose
from rankrise.linalg._chunks import over_chunks


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Principal angles between the column spaces of `first` and `second`, in radians, smallest first.

    `cos θ_i` are the singular values of `F₁ᵀF₂` for orthonormal bases; where that cosine is near 1, θ comes from the
    sines of the part of F₂ outside F₁ (Björck and Golub 1973), so that angles far below √ε are right.

    Args:
        first: (..., d, k), e.g. `delta_svd(...).U`; columns must be independent.
        second: (..., d, l), same dtype and device.

    Returns:
        (..., min(k, l)) in float64, between 0 and π/2.

    Raises:
        ValueError: As `product_spectrum`; more columns than rows; dependent columns, which span no k-dimensional space.

    >>> import torch
    >>> e = torch.eye(3)
    >>> principal_angles(e[:, :2], e[:, 1:]).tolist() == [0.0, torch.pi / 2]
    True
    """
    _checks.stacks(first=first, second=second)
    if first.shape[:-1] != second.shape[:-1]:
        raise ValueError(
            "`first` (..., d, k) and `second` (..., d, l) must agree in d and in the batch dimensions; "
            f"got {tuple(first.shape)} and {tuple(second.shape)}."
        )
    for name, basis in (("first", first), ("second", second)):
        if basis.shape[-1] > basis.shape[-2]:
            raise ValueError(f"`{name}` must have at most d columns; got shape {tuple(basis.shape)}.")
        (dependent,) = over_chunks(lambda b: (_is_dependent(b.double()),), basis)
        if dependent.any():
            index = tuple(dependent.nonzero()[0].tolist())
            raise ValueError(f"`{name}` must have independent columns; those at batch index {index} are not.")
    (angles,) = over_chunks(lambda a, b: (_angles(a.double(), b.double()),), first, second)
    return angles


def _is_dependent(basis: Tensor) -> Tensor:
    """Whether a column, scaled to length 1, lies in the span of those before it up to rounding."""
    basis = basis / basis.norm(dim=-2, keepdim=True).clamp_min(torch.finfo(basis.dtype).tiny)
    diagonal: Tensor = torch.linalg.qr(basis, mode="r").R.diagonal(dim1=-2, dim2=-1)
    return diagonal.abs().amin(-1) < basis.shape[-2] * torch.finfo(basis.dtype).eps


def _angles(first: Tensor, second: Tensor) -> Tensor:
    if first.shape[-1] < second.shape[-1]:
        first, second = second, first  # the sines below are those of the smaller space
    f1, f2 = torch.linalg.qr(first).Q, torch.linalg.qr(second).Q
    inside = f1.mT @ f2
    cosines = _decompose.singular_values(inside).clamp_max(1.0)
    sines = _decompose.singular_values(f2 - f1 @ inside).flip(-1).clamp_max(1.0)
    return torch.where(cosines**2 > 0.5, sines.asin(), cosines.acos())
