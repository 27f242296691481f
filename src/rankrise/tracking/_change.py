"""What changed since the start, as a quantity sees it: a stack of products, or of whole matrices.

Nothing is computed before a quantity asks, and nothing twice.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankrise.linalg import StableRank as StableRankResult
from rankrise.linalg import delta_spectrum, delta_stable_rank, delta_svd, product_spectrum, stable_rank

_ROUNDS = 12  # of two power iterations each, for the leading directions on an accelerator


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
    def leading(self) -> Directions | None:
        """The directions that carry most of it; None where they are not followed."""

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
        """From the thin factors."""
        return delta_spectrum(self.left, self.right, self.left0, self.right0)

    @property
    def stable_rank(self) -> Tensor:
        """From the power iteration."""
        return self._power.value

    @property
    def frobenius_norm(self) -> Tensor:
        """Exact."""
        return self._power.frobenius_norm

    @property
    def spectral_norm(self) -> Tensor:
        """From the power iteration."""
        return self._power.spectral_norm

    @cached_property
    def leading(self) -> Directions | None:
        """By QR and SVD on a CPU; by power iteration on a GPU, which decomposes matrices one after another."""
        if self.num_directions == 0:
            return None
        if self.left.device.type == "cpu":
            u, s, vh = delta_svd(self.left, self.right, self.left0, self.right0, k=self.num_directions)
            return Directions(u.float(), s.float(), vh.mT.float())
        return self.leading_by_iteration()

    @cached_property
    def _power(self) -> StableRankResult:
        return delta_stable_rank(self.left, self.right, self.left0, self.right0, start=self._start)

    @property
    def _start(self) -> Tensor | None:
        """Directions to start from: the stored ones, so that a resumed run reads the very same numbers."""
        if self.previous is None or not (self.previous.sigma > 0).all():
            return None
        return self.previous.right

    def leading_by_iteration(self) -> Directions:
        """`leading` from products of thin matrices only: power iteration on twice as many, then Rayleigh-Ritz.

        Direction i is right to (σ_{2k+1} / σ_i)^48 or better; where that is not small, neither is it well defined.
        """
        factors = (self.left, self.right, self.left0, self.right0)
        block = min(2 * self.num_directions, self.left.shape[-2], self.right.shape[-2])
        vectors = self._start
        for _ in range(_ROUNDS):
            rank = delta_stable_rank(*factors, start=vectors, block=block, rtol=1e-12, max_iterations=2)
            vectors = rank.right_vectors
        assert vectors is not None
        left, right, left0, right0 = (f.double() for f in factors)
        v = torch.linalg.qr(vectors).Q
        image = (left - left0) @ (right.mT @ v) + left0 @ ((right - right0).mT @ v)  # Δ v
        squares, rotation = torch.linalg.eigh(image.mT @ image)
        k = min(self.num_directions, 2 * self.left.shape[-1], block)
        sigma = squares.flip(-1)[..., :k].clamp_min(0).sqrt()
        rotation = rotation.flip(-1)[..., :k]
        u = image @ rotation / sigma.clamp_min(torch.finfo(sigma.dtype).tiny)[..., None, :]
        return Directions(u.float(), sigma.float(), (v @ rotation).float())


@dataclass(frozen=True)
class MatrixChange:
    """`Δ = W − W0` of a stack of whole matrices, (n, d, m), read through its spectrum; directions are not followed."""

    delta: Tensor
    leading: None = None
    previous: None = None

    @cached_property
    def sigma(self) -> Tensor:
        """Through the Gram matrix of the smaller side."""
        tall = self.delta if self.delta.shape[-2] >= self.delta.shape[-1] else self.delta.mT
        identity = torch.eye(tall.shape[-1], dtype=tall.dtype, device=tall.device)
        return product_spectrum(tall, identity.expand(*tall.shape[:-2], -1, -1))

    @property
    def stable_rank(self) -> Tensor:
        """From the spectrum."""
        return stable_rank(self.sigma)

    @property
    def frobenius_norm(self) -> Tensor:
        """From the spectrum."""
        norm: Tensor = torch.linalg.vector_norm(self.sigma, dim=-1)
        return norm

    @property
    def spectral_norm(self) -> Tensor:
        """From the spectrum."""
        return self.sigma[..., 0]
