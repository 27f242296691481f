"""The numbers of a sample whose gradients are the rows of the Jacobian."""

import math
from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor

RowKind = Literal["sum", "lse", "outputs", "fisher"]
Rows = RowKind | Callable[[Tensor], Tensor]
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)


def check_rows(rows: Rows) -> None:
    """Refuse what is neither a kind of rows nor a function.

    Raises:
        ValueError: The kind is unknown.
    """
    if not callable(rows) and rows not in ROW_KINDS:
        raise ValueError(f"`rows` must be {', '.join(ROW_KINDS)} or a function; got {rows!r}.")


def rows_of(outputs: Tensor, rows: Rows) -> Tensor:
    """The rows (n, R) of outputs (n, …) whose last dimension counts the classes.

    >>> import torch
    >>> [rows_of(torch.zeros(5, 4, 3), kind).shape[1] for kind in ROW_KINDS]
    [1, 1, 12, 12]
    """
    if callable(rows):
        found = rows(outputs)
        if found.ndim != 2 or len(found) != len(outputs):
            raise ValueError(f"`rows` must return (n, R) for {len(outputs)} samples; got {tuple(found.shape)}.")
        return found
    if rows == "lse":
        positions = outputs.logsumexp(-1).flatten(1) if outputs.ndim > 2 else outputs.logsumexp(-1, keepdim=True)
        return positions.sum(1, keepdim=True) / math.sqrt(positions.shape[1])
    if rows == "fisher":  # ∇(2 √p) = √p ∇ log p
        return 2 * (outputs.log_softmax(-1) / 2).exp().flatten(1)
    flat = outputs.flatten(1)
    return flat if rows == "outputs" else flat.sum(1, keepdim=True) / math.sqrt(flat.shape[1])
