"""Measures of a kernel matrix: its rank, its distance from another one, its alignment with targets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.linalg import effective_rank, stable_rank


@dataclass(frozen=True)
class KernelMeasures:
    """Measures of the centred kernel HKH, H = I − 11ᵀ/N; each a tensor of one number.

    Attributes:
        effective_rank: exp of the entropy of λ / Σλ over the eigenvalues λ.
        stable_rank: Σλ / λ₁, the stable rank of the centred Jacobian.
        trace: Σλ.
        drift: ‖K − K₀‖_F / ‖K₀‖_F of the centred kernels; NaN without a reference.
        cosine: ⟨K, K₀⟩ / (‖K‖_F ‖K₀‖_F) of the centred kernels; NaN without a reference.
        alignment: the same with Y Yᵀ of the centred targets in place of K₀; NaN without targets.
    """

    effective_rank: Tensor
    stable_rank: Tensor
    trace: Tensor
    drift: Tensor
    cosine: Tensor
    alignment: Tensor


def kernel_measures(
    kernel: Tensor, *, targets: Tensor | None = None, reference: Tensor | None = None
) -> KernelMeasures:
    """Measure a kernel after centring it.

    The mean over samples is taken out because it hides all else: without it the effective rank of a fresh network's
    kernel is near 1 whatever the network.

    Args:
        kernel: K, (N, N), symmetric.
        targets: Classes (N,) as integers, or numbers (N,) or (N, d).
        reference: K₀, (N, N), say the kernel at the start of training.

    Raises:
        ValueError: A shape does not fit.

    >>> found = kernel_measures(torch.eye(3), targets=torch.tensor([0, 1, 2]))
    >>> [round(x.item(), 4) for x in (found.effective_rank, found.stable_rank, found.alignment)]
    [2.0, 2.0, 1.0]
    """
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(f"`kernel` must be (N, N); got {tuple(kernel.shape)}.")
    if reference is not None and reference.shape != kernel.shape:
        raise ValueError(f"`reference` must have the shape of the kernel; got {tuple(reference.shape)}.")
    centred = _centred(kernel)
    values = torch.linalg.eigvalsh(centred).flip(0).clamp(min=0)
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=kernel.device)
    drift = cosine = alignment = nothing
    if reference is not None:
        start = _centred(reference.to(kernel.device))
        drift, cosine = (centred - start).norm() / start.norm(), _cosine(centred, start)
    if targets is not None:
        alignment = _cosine(centred, _of_targets(targets.to(kernel.device), len(kernel)))
    return KernelMeasures(
        effective_rank=effective_rank(values),
        stable_rank=stable_rank(values.sqrt()),
        trace=values.sum(),
        drift=drift,
        cosine=cosine,
        alignment=alignment,
    )


def _centred(kernel: Tensor) -> Tensor:
    wide = kernel.double()
    rows = wide - wide.mean(0, keepdim=True)
    return rows - rows.mean(1, keepdim=True)


def _of_targets(targets: Tensor, count: int) -> Tensor:
    if targets.ndim not in (1, 2) or len(targets) != count:
        raise ValueError(f"`targets` must have an entry for each of the {count} samples; got {tuple(targets.shape)}.")
    y = targets if targets.is_floating_point() else torch.nn.functional.one_hot(targets)
    y = y.double().reshape(count, -1)
    return _centred(y @ y.mT)


def _cosine(one: Tensor, other: Tensor) -> Tensor:
    cosine: Tensor = (one * other).sum() / (one.norm() * other.norm())
    return cosine
