"""One cut back to the budget: the best part of lower rank of every module's `B A`, with the optimiser's state.

Symbols:
    Q_A R_A, Q_B R_B   QR factorisations of A_liveᵀ and B_live, so that B A = Q_B (R_B R_Aᵀ) Q_Aᵀ
    U S Vᵀ             SVD of the small matrix R_B R_Aᵀ
    A', B'             the factors that are kept, of equal norms: A' = √S Vᵀ Q_Aᵀ and B' = Q_B U √S
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.growth._slots import Slots, move_state
from rankrise.linalg import thin_svd


@dataclass(frozen=True, eq=False)
class AddedSpectrum:
    """The SVD of what a module adds to its base; no matrix of out × in entries is formed."""

    left: Tensor  # Q_B U, (out, k)
    sigma: Tensor  # (k,)
    right: Tensor  # Vᵀ Q_Aᵀ, (k, in)

    @property
    def squares(self) -> list[float]:
        """σ², falling."""
        return [float(s) for s in self.sigma.square()]


@torch.no_grad()
def spectrum_of(slots: Slots) -> AddedSpectrum:
    """Decompose `B A` of the live slots, in float64."""
    (qa, ra), (qb, rb) = (torch.linalg.qr(part.double()) for part in (slots.a[slots.live].mT, slots.b[:, slots.live]))
    u, s, vh = thin_svd(rb @ ra.mT)
    return AddedSpectrum(qb @ u, s, vh @ qa.mT)


@torch.no_grad()
def cut_module(slots: Slots, spectrum: AddedSpectrum, rank: int, optimiser: Any) -> None:
    """Keep the leading directions of a module, in its first slots."""
    root = spectrum.sigma[:rank].sqrt()
    a, b = root[:, None] * spectrum.right[:rank], spectrum.left[:, :rank] * root
    a_map = a @ torch.linalg.pinv(slots.a[slots.live].double())
    b_map = torch.linalg.pinv(slots.b[:, slots.live].double()) @ b
    move_state(slots, optimiser, a_map, b_map)
    slots.empty_all_but(rank)
    slots.a[:rank], slots.b[:, :rank] = a.to(slots.a), b.to(slots.b)
