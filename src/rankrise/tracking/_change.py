"""What changed since the start, as a quantity sees it: a stack of products, or of whole matrices.

A number is computed when a quantity first asks for it, and kept for the others.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankrise.linalg import StableRank as StableRankResult
from rankrise.linalg import (
    delta_spectrum,
    delta_stable_rank,
    delta_svd,
    leading_directions,
    product_spectrum,
    stable_rank,
)

# Up to this rank of the stacked factors, the whole spectrum costs a CPU less than the power iteration: half as much
# where the spectrum is flat, about as much where it is steep.
_MOST_COLUMNS = 128


class Directions(NamedTuple):
    """Leading singular triplets in float32, as they are stored: Δ is close to `left @ diag(sigma) @ rightᵀ`."""

    left: Tensor  # (n, d, k)
    sigma: Tensor  # (n, k)
    right: Tensor  # (n, e, k)


class Change(Protocol):
    """A stack of n changes Δ. Every number is (n,) in float64, on the device of the weights."""

    @property
    def sigma(self) -> Tensor:
        """All singular values, (n, k), descending."""

    @property
    def stable_rank(self) -> Tensor:
        """`‖Δ‖_F² / ‖Δ‖₂²`."""

    @property
    def frobenius_norm(self) -> Tensor:
        """`‖Δ‖_F`."""

    @property
    def spectral_norm(self) -> Tensor:
        """`‖Δ‖₂`."""

    @property
    def weight_sigma(self) -> Tensor | None:
        """All singular values of the weights themselves, not of their change; None where they are not read."""

    @property
    def leading(self) -> Directions | None:
        """The directions that carry most of the change; None where directions are not followed."""

    @property
    def previous(self) -> Directions | None:
        """`leading` at the measurement before."""


@dataclass(frozen=True)
class ProductChange:
    """`Δ = left rightᵀ − left0 right0ᵀ` of a stack of heads, (n, d, r) each."""

    left: Tensor
    right: Tensor
    left0: Tensor
    right0: Tensor
    num_directions: int
    previous: Directions | None = None

    @cached_property
    def sigma(self) -> Tensor:
        """All singular values, computed from the thin factors."""
        return delta_spectrum(self.left, self.right, self.left0, self.right0)

    @cached_property
    def weight_sigma(self) -> Tensor | None:
        """Singular values of `left rightᵀ`; the first one of a key-query circuit bounds the attention logits."""
        return product_spectrum(self.left, self.right)

    @property
    def stable_rank(self) -> Tensor:
        """`‖Δ‖_F² / ‖Δ‖₂²`, from the spectrum where that is cheap, else with `‖Δ‖₂` from a power iteration."""
        return MatrixChange(self.sigma).stable_rank if self._is_cheap else self._power.value

    @property
    def frobenius_norm(self) -> Tensor:
        """`‖Δ‖_F`, which is exact."""
        return MatrixChange(self.sigma).frobenius_norm if self._is_cheap else self._power.frobenius_norm

    @property
    def spectral_norm(self) -> Tensor:
        """`‖Δ‖₂`, from the spectrum where that is cheap, else from a power iteration."""
        return MatrixChange(self.sigma).spectral_norm if self._is_cheap else self._power.spectral_norm

    @cached_property
    def leading(self) -> Directions | None:
        """Computed by QR and SVD on a CPU, by subspace iteration on a GPU, which decomposes matrices one by one."""
        if self.num_directions == 0:
            return None
        factors = (self.left, self.right, self.left0, self.right0)
        if self.left.device.type == "cpu":
            u, s, vh = delta_svd(*factors, k=self.num_directions)
        else:
            u, s, vh = leading_directions(*factors, k=self.num_directions, start=self._start)
        return Directions(u.float(), s.float(), vh.mT.float())

    @property
    def _is_cheap(self) -> bool:
        """Whether the spectrum costs less than the power iteration."""
        return self.left.device.type == "cpu" and 2 * self.left.shape[-1] <= _MOST_COLUMNS

    @cached_property
    def _power(self) -> StableRankResult:
        return delta_stable_rank(self.left, self.right, self.left0, self.right0, start=self._start)

    @property
    def _start(self) -> Tensor | None:
        """Directions to start from: the stored ones, so that a resumed run reads the very same numbers."""
        if self.previous is None or not (self.previous.sigma > 0).all():
            return None
        return self.previous.right


@dataclass(frozen=True)
class MatrixChange:
    """`Δ = W − W0` of a stack of whole matrices, read through its spectrum; directions are not followed."""

    sigma: Tensor
    weight_sigma: None = None
    leading: None = None
    previous: None = None

    @property
    def stable_rank(self) -> Tensor:
        """`‖Δ‖_F² / ‖Δ‖₂²`, from the spectrum."""
        return stable_rank(self.sigma)

    @property
    def frobenius_norm(self) -> Tensor:
        """`‖Δ‖_F`, from the spectrum."""
        norm: Tensor = torch.linalg.vector_norm(self.sigma, dim=-1)
        return norm

    @property
    def spectral_norm(self) -> Tensor:
        """`‖Δ‖₂`, from the spectrum."""
        return self.sigma[..., 0]
