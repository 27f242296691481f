"""The change of a stack of experts, (E, d1, d2), decomposed expert by expert, with one rank for all of them.

Together the experts are a block-diagonal matrix, in which rank r stands for r directions of every expert: the singular
values here are `s_j = √(Σ_e σ_{e,j}²)`, and the error at rank r is that of all experts cut at r.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankrise.checkpoints.delta._change import Delta
from rankrise.checkpoints.delta._decomposition import Decomposition


@dataclass(frozen=True, eq=False)
class StackDecomposition(Decomposition):
    """As `Decomposition`, of every expert; `left` and `right` of all are empty."""

    parts: tuple[Decomposition, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of all factors."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def has_factors(self) -> bool:
        """Whether factors are held."""
        return any(part.left.shape[1] for part in self.parts)

    def without_factors(self) -> "StackDecomposition":
        """The spectrum alone."""
        return replace(self, parts=tuple(part.without_factors() for part in self.parts))

    def expert_factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """`left` (E, d1, rank) and `right` (E, rank, d2); directions that an expert does not have are zero."""
        lefts, rights = [], []
        for part in self.parts:
            left, right = part.factors(rank)
            lefts.append(torch.nn.functional.pad(left, (0, rank - left.shape[1])))
            rights.append(torch.nn.functional.pad(right, (0, 0, 0, rank - right.shape[0])))
        return torch.stack(lefts), torch.stack(rights)


def decompose_stack(
    delta: Delta, shape: tuple[int, ...], decompose: Callable[[Tensor], Decomposition]
) -> StackDecomposition:
    """Decompose every expert of a change that is read as (E, d1 · d2).

    Args:
        delta: The change.
        shape: (E, d1, d2).
        decompose: Decomposes one expert's change, (d1, d2).
    """
    experts, rows, columns = shape
    parts = tuple(decompose(row.reshape(rows, columns)) for block in delta.blocks() for row in block)
    squares = torch.zeros(max((part.max_rank for part in parts), default=0), dtype=torch.float64)
    for part in parts:
        squares[: part.max_rank] += part.sigma.square().cpu()
    return StackDecomposition(
        shape=(experts * rows, experts * columns),
        left=torch.empty(experts * rows, 0),
        sigma=squares.sqrt(),
        right=torch.empty(0, experts * columns),
        squared_norm=sum(part.squared_norm for part in parts),
        squared_rest=sum(part.squared_rest for part in parts),
        is_exact=all(part.is_exact for part in parts),
        parts=parts,
    )
