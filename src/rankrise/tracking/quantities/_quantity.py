"""What can be measured of a change, and on which clock."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rankrise.tracking._change import Change

Clock = Literal["ranks", "spectra"]  # often and cheap; seldom and dear


@dataclass(frozen=True)
class Quantity:
    """A number, or a vector, for every change in a stack.

    `measure` takes a `Change` and returns (n,) or (n, k), or None where the quantity does not apply.

    >>> import torch
    >>> from rankrise.tracking import MatrixChange
    >>> half = Quantity("half_norm", "ranks", lambda change: change.frobenius_norm / 2)
    >>> half.measure(MatrixChange(torch.full((1, 1, 1), 8.0))).item()
    4.0
    """

    name: str  # in the column `quantity`
    clock: Clock
    measure: Callable[[Change], Tensor | None]
    index: tuple[int, ...] | None = None  # what the entries of a vector are, if not 0 … k − 1
