"""The quantities that a tracker measures unless the user chooses others.

stable_rank       ‖Δ‖_F² / ‖Δ‖₂², the paper's measure of rank; 0 for a change that is zero
frobenius_norm    ‖Δ‖_F
spectral_norm     ‖Δ‖₂
spectrum          all singular values of Δ
effective_rank    exp of the entropy of σ / Σ σ; unlike the stable rank it sees the tail of the spectrum
energy_rank       number of directions that carry 90, 95 and 99% of Σ σ²: what a LoRA of that rank would keep.
                  The index is the percentage
top_components    the leading singular values; for circuits, their singular vectors are stored beside the table
overlap_left      overlap of the leading left (right) singular subspaces with those of the measurement before: tells
overlap_right     whether training went on in the directions that it already had
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from rankrise._arguments import did_you_mean
from rankrise.linalg import effective_rank, energy_rank, stable_rank
from rankrise.tracking._change import Change
from rankrise.tracking._measurement import Quantity

_PERCENT = (90, 95, 99)
_RESOLVED = 1e-6  # a direction whose singular value is below this share of σ₁ is rounding


def subspace_overlap(first: Tensor, second: Tensor, *, sigma: Tensor, sigma2: Tensor) -> Tensor:
    """`‖F_jᵀ G_j‖_F² / j` for j = 1 … k: 1 for equal spans, 0 for orthogonal ones.

    F_j and G_j are the first j columns of F and G. The overlap is the mean of cos² θ_i over the principal angles θ_i
    between the spans of F_j and G_j.

    Args:
        first: F, (..., d, k), with orthonormal columns.
        second: G, (..., d, l), with orthonormal columns. Only the leading min(k, l) columns of F and G are compared.
        sigma: (..., k), the singular values that belong to F.
        sigma2: (..., l), the singular values that belong to G.

    Returns:
        (..., min(k, l)), with entry j − 1 for the leading j directions. An entry is NaN where the singular value of a
        direction is below 1e-6 σ₁, because such a direction is only rounding.

    >>> f, g = torch.eye(3)[:, :2], torch.eye(3)[:, [0, 2]]
    >>> subspace_overlap(f, g, sigma=torch.ones(2), sigma2=torch.ones(2)).tolist()
    [1.0, 0.5]
    """
    k = min(sigma.shape[-1], sigma2.shape[-1])
    first, second, sigma, sigma2 = first[..., :k], second[..., :k], sigma[..., :k], sigma2[..., :k]
    cosines = (first.double().mT @ second.double()).square()
    sums = cosines.cpu().cumsum(-1).cumsum(-2).diagonal(dim1=-2, dim2=-1)  # cumsum on a GPU is not deterministic
    sums = sums.to(cosines.device)
    counts = torch.arange(1, sums.shape[-1] + 1, dtype=sums.dtype, device=sums.device)
    resolved = (sigma > _RESOLVED * sigma[..., :1]) & (sigma2 > _RESOLVED * sigma2[..., :1])
    return torch.where(resolved, sums / counts, torch.nan)


def _energy_ranks(change: Change) -> Tensor:
    return torch.stack([energy_rank(change.sigma, percent / 100) for percent in _PERCENT], dim=-1)


def _leading_sigma(change: Change) -> Tensor | None:
    return None if change.leading is None else change.leading.sigma


def _overlap_left(change: Change) -> Tensor | None:
    now, before = change.leading, change.previous
    if now is None or before is None:
        return None
    return subspace_overlap(now.left, before.left, sigma=now.sigma, sigma2=before.sigma)


def _overlap_right(change: Change) -> Tensor | None:
    now, before = change.leading, change.previous
    if now is None or before is None:
        return None
    return subspace_overlap(now.right, before.right, sigma=now.sigma, sigma2=before.sigma)


def _weight_spectral_norm(change: Change) -> Tensor | None:
    return None if change.weight_sigma is None else change.weight_sigma[..., 0]


def _weight_stable_rank(change: Change) -> Tensor | None:
    return None if change.weight_sigma is None else stable_rank(change.weight_sigma)


QUANTITIES = {
    quantity.name: quantity
    for quantity in (
        Quantity("stable_rank", "ranks", lambda change: change.stable_rank),
        Quantity("frobenius_norm", "ranks", lambda change: change.frobenius_norm),
        Quantity("spectral_norm", "ranks", lambda change: change.spectral_norm),
        Quantity("spectrum", "spectra", lambda change: change.sigma),
        Quantity("effective_rank", "spectra", lambda change: effective_rank(change.sigma)),
        Quantity("energy_rank", "spectra", _energy_ranks, index=_PERCENT),
        Quantity("top_components", "spectra", _leading_sigma),
        Quantity("overlap_left", "spectra", _overlap_left),
        Quantity("overlap_right", "spectra", _overlap_right),
    )
}

OF_WEIGHTS = {
    quantity.name: quantity
    for quantity in (
        Quantity("weight_spectral_norm", "ranks", _weight_spectral_norm),
        Quantity("weight_stable_rank", "ranks", _weight_stable_rank),
    )
}


def choose(chosen: Iterable[str | Quantity] | None, *, weights: bool = False) -> tuple[Quantity, ...]:
    """Quantities given by name or as they are; all of `QUANTITIES` for None, with `weights` those of the weights too.

    Raises:
        ValueError: A name is unknown (the message lists the known ones), or two quantities have the same name.

    >>> [q.name for q in choose(["spectrum"])]
    ['spectrum']
    """
    if chosen is None:
        return (*QUANTITIES.values(), *(OF_WEIGHTS.values() if weights else ()))
    if isinstance(chosen, str):
        raise ValueError(f"`quantities` must be a list; got {chosen!r}. Pass [{chosen!r}].")
    found = tuple(_named(q) if isinstance(q, str) else q for q in chosen)
    names = [q.name for q in found]
    if weights:
        found += tuple(q for name, q in OF_WEIGHTS.items() if name not in names)
    if len(set(names)) < len(names):
        raise ValueError(f"Every quantity must have a name of its own; got {names}.")
    return found


def _named(name: str) -> Quantity:
    known = QUANTITIES | OF_WEIGHTS
    if name in known:
        return known[name]
    hint = did_you_mean(name, known)
    raise ValueError(f"A quantity must be one of {', '.join(known)}; got {name!r}. {hint}".rstrip())
