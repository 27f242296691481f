"""Changes read from disk: Δ = tuned − base of one pair, whole where it is small, else in blocks of rows."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._decompose import Blocks
from rankrise.checkpoints._preflight import Pair

_WHOLE = 2**28  # entries of a change that is kept in one piece: 1 GB in float32
_BLOCK = 2**24  # entries read at a time


class Delta:
    """The change of one pair; `blocks()` goes through its rows, and remembers them where they are few.

    `base_norm` is ‖W‖_F of the base, known after the first pass.
    """

    def __init__(self, base: Checkpoint, tuned: Checkpoint, pair: Pair, device: torch.device | str = "cpu") -> None:
        self._base, self._tuned, self._pair, self._device = base, tuned, pair, device
        self._whole: Tensor | None = None
        self.base_norm = math.nan

    def blocks(self) -> Iterator[Tensor]:
        """Blocks of rows; a vector is one column, more than two dimensions are flattened, nothing of what is empty."""
        if 0 in self._pair.shape:
            return
        if self._whole is not None:
            yield self._whole
            return
        if math.prod(self._pair.shape) <= _WHOLE:
            blocks = list(self._read())
            self._whole = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
            yield self._whole
            return
        yield from self._read()

    @property
    def source(self) -> Tensor | Blocks:
        """For `decompose_delta`."""
        if math.prod(self._pair.shape) > _WHOLE:
            return self.blocks
        return next(self.blocks())

    def squared_norm(self) -> float:
        """‖Δ‖_F²."""
        return sum(float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2 for block in self.blocks())

    def rounding(self) -> float:
        """Largest singular value that rounding to the working precision gives: `eps ‖W‖_F (1/√m + 1/√n) / √12`.

        Errors of ulp²/12 in every entry, with ulp at most `eps |w|`; known after the first pass.
        """
        m = self._pair.shape[0]
        n = math.prod(self._pair.shape) // m
        names = zip((self._base, self._tuned), self._names, strict=True)
        is_wide = all(checkpoint.tensors[name].dtype == torch.float64 for checkpoint, name in names)
        eps = torch.finfo(torch.float64 if is_wide else torch.float32).eps
        return eps * self.base_norm * (1 / math.sqrt(m) + 1 / math.sqrt(n)) / math.sqrt(12)

    @property
    def _names(self) -> tuple[str, str]:
        assert self._pair.base_name is not None
        assert self._pair.tuned_name is not None
        return self._pair.base_name, self._pair.tuned_name

    def _read(self) -> Iterator[Tensor]:
        (base_name, tuned_name), shape = self._names, self._pair.shape
        num_rows = shape[0] if shape else 1
        size = max(1, _BLOCK // max(1, math.prod(shape[1:])))
        squares = 0.0
        for begin in range(0, num_rows, size):
            end = min(num_rows, begin + size)
            base, tuned = (
                _wide(_rows(checkpoint, name, begin, end)).to(self._device)
                for checkpoint, name in ((self._base, base_name), (self._tuned, tuned_name))
            )
            squares += float(torch.linalg.vector_norm(base, dtype=torch.float64)) ** 2
            yield (tuned - base).reshape(end - begin, -1)
        self.base_norm = math.sqrt(squares)


def note_on_size(change: float, base: float) -> str | None:
    """A question where ‖Δ‖ is no less than ‖W‖: unrelated weights of one size differ by about √2.

    >>> note_on_size(1.4, 1.0), note_on_size(0.5, 1.0)
    ('the matrices changed by 140% of their size: is this a fine-tune of this base?', None)
    """
    if not base or change < base:
        return None
    return f"the matrices changed by {change / base:.0%} of their size: is this a fine-tune of this base?"


def _rows(checkpoint: Checkpoint, name: str, begin: int, end: int) -> Tensor:
    info = checkpoint.tensors[name]
    return checkpoint.read_weight(name, begin, end) if info.shape else checkpoint.read(name).reshape(1)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)
