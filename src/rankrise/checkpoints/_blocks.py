"""One weight in two checkpoints as a matrix, in blocks of rows: what the measures read, and all that is in memory.

A tensor with more than two dimensions is a convolution, read as (out, everything else), or a stack of experts, read as
one matrix for each. Eight-bit floats become float32, scales are applied, and numbers out of float32's comfort become
float64.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._preflight import Pair

_BLOCK_ELEMENTS = 2**24  # 64 MB in float32


class Block(NamedTuple):
    """Some rows of one weight, as the models use them, on the device."""

    base: Tensor
    tuned: Tensor
    same_bits: bool


@dataclass(frozen=True)
class Matrix:
    """One matrix (m, n) of a pair of stored tensors."""

    base: Checkpoint
    tuned: Checkpoint
    pair: Pair
    name: str
    shape: tuple[int, int]
    expert: int | None = None  # which of a stack
    device: str = "cpu"

    @property
    def dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """The formats that the base and the tuned are stored in."""
        base, tuned = self._names
        return self.base.tensors[base].dtype, self.tuned.tensors[tuned].dtype

    @property
    def has_scales(self) -> bool:
        """Whether either is stored with scales, so that its grid is not known."""
        base, tuned = self._names
        return base in self.base.scales or tuned in self.tuned.scales

    def blocks(self) -> Iterator[Block]:
        """All rows, in order."""
        m, n = self.shape
        rows = max(1, _BLOCK_ELEMENTS // max(1, n))
        for begin in range(0, m, rows):
            yield self.rows(begin, min(m, begin + rows))

    def rows(self, begin: int, end: int) -> Block:
        """Rows `begin` to `end` of both."""
        base, tuned = (
            _rows(checkpoint, name, begin, end, self.expert, self.shape[1])
            for checkpoint, name in zip((self.base, self.tuned), self._names, strict=True)
        )
        same = base.dtype == tuned.dtype and not self.has_scales and torch.equal(_bits(base), _bits(tuned))
        wide = torch.promote_types(torch.promote_types(base.dtype, tuned.dtype), torch.float32)
        return Block(base.to(self.device, wide), tuned.to(self.device, wide), same)

    @property
    def _names(self) -> tuple[str, str]:
        assert self.pair.base_name is not None
        assert self.pair.tuned_name is not None
        return self.pair.base_name, self.pair.tuned_name


def matrices(base: Checkpoint, tuned: Checkpoint, pair: Pair, device: str = "cpu") -> list[Matrix]:
    """The matrices of a pair: one, or one for each expert of a stack; a vector is a matrix of one row."""
    shape = pair.shape
    if len(shape) == 3 and "expert" in pair.name:
        return [
            Matrix(base, tuned, pair, f"{pair.name}[{e}]", (shape[1], shape[2]), e, device) for e in range(shape[0])
        ]
    flat = (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))
    return [Matrix(base, tuned, pair, pair.name, flat, None, device)]


def find_device(name: str | None) -> str:
    """Where float64 can be had: MPS has none, so the CPU measures there.

    Raises:
        ValueError: The device is not there.
    """
    try:
        device = torch.device(name or "cpu")
        if device.type == "mps":
            return "cpu"
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError):
        kind = "CUDA device" if str(name).startswith("cuda") else "such device"
        raise ValueError(f"`device` must be there; got {name!r} and no {kind} was found. Leave it out.") from None
    return str(device)


def _rows(checkpoint: Checkpoint, name: str, begin: int, end: int, expert: int | None, columns: int) -> Tensor:
    info = checkpoint.tensors[name]
    if len(info.shape) < 2:
        stored = checkpoint.read(name).reshape(1, -1)
        return stored.to(torch.float32) if stored.dtype.itemsize == 1 else stored
    if expert is not None:
        stored = checkpoint.read_rows(name, expert, expert + 1)[0, begin:end]
        return stored.to(torch.float32) if stored.dtype.itemsize == 1 else stored
    return checkpoint.read_weight(name, begin, end).reshape(end - begin, columns)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
