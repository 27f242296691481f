"""One weight in two checkpoints as a matrix, in blocks of rows: what the measures read, and all that is in memory.

A tensor with more than two dimensions is a convolution, read as (out, everything else), or a stack of experts, read as
one matrix for each expert. Eight-bit floats become float32, scales are applied, and numbers that float32 cannot square
become float64.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.checkpoints.delta._decomposition import Blocks
from rankrise.checkpoints.files import Checkpoint
from rankrise.checkpoints.match import Pair

HELD_BYTES = 2**31  # most bytes of tensors that are held at a time; a change that is larger is read again
BLOCK_ELEMENTS = 2**18  # 1 MB in float32: it stays in the cache, and its memory is used again without page faults
_ONE_PIECE = 2**21  # a change up to this size is read in one piece: putting blocks together would cost more
_READ_AGAIN_ELEMENTS = 2**24  # elements of a block of a change that is too large to hold; every block costs a product


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
    expert: int | None = None  # which expert of a stack
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
        return (self.rows(begin, end) for begin, end in self.spans())

    def rows(self, begin: int, end: int) -> Block:
        """Rows `begin` to `end` of both, and whether they are equal bit for bit."""
        base, tuned = self._stored(begin, end)
        same = base.dtype == tuned.dtype and not self.has_scales and torch.equal(_bits(base), _bits(tuned))
        return Block(*self._widened(base, tuned), same)

    def weights(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Rows `begin` to `end` of the base and the tuned, in one dtype: float32, or float64 if one of them has it."""
        return self._widened(*self._stored(begin, end))

    def spans(self, elements: int | None = None) -> Iterator[tuple[int, int]]:
        """First and last row of every block that is read at a time."""
        m, n = self.shape
        size = max(1, (elements or BLOCK_ELEMENTS) // max(1, n))
        return ((begin, min(m, begin + size)) for begin in range(0, m, size))

    def _stored(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        base, tuned = (
            _rows(checkpoint, name, begin, end, self.expert, self.shape[1])
            for checkpoint, name in zip((self.base, self.tuned), self._names, strict=True)
        )
        return base, tuned

    def _widened(self, base: Tensor, tuned: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(torch.promote_types(base.dtype, tuned.dtype), torch.float32)
        return base.to(self.device, wide), tuned.to(self.device, wide)

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
    return [Matrix(base, tuned, pair, pair.name, _flat(shape), None, device)]


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    return (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


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


class Delta:
    """The change Δ of one pair as a matrix; `blocks()` goes through its rows, and remembers them where they are few.

    A vector is one row, and more than two dimensions are flattened to (first, everything else). `base_norm` is ‖W‖_F of
    the base, known after the first pass.
    """

    def __init__(self, base: Checkpoint, tuned: Checkpoint, pair: Pair, device: str = "cpu") -> None:
        self.matrix = Matrix(base, tuned, pair, pair.name, _flat(pair.shape), None, device)
        self._is_small = 4 * math.prod(pair.shape) <= HELD_BYTES // 2  # factors may take the other half
        self._whole: Tensor | None = None
        self.base_norm = math.nan

    def blocks(self) -> Iterator[Tensor]:
        """Blocks of rows; none of a matrix that is empty."""
        if 0 in self.matrix.shape:
            return
        if self._is_small:
            if self._whole is None:
                self._whole = self._read_whole()
            yield self._whole
            return
        yield from self._read(_READ_AGAIN_ELEMENTS)

    @property
    def source(self) -> Tensor | Blocks:
        """What `decompose_delta` takes: Δ in one piece where it is small, else a function that reads its blocks."""
        return next(self.blocks()) if self._is_small else self.blocks

    def squared_norm(self) -> float:
        """‖Δ‖_F²."""
        return sum(float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2 for block in self.blocks())

    def rounding(self) -> float:
        """Largest singular value that rounding to the working precision gives: `eps ‖W‖_F (1/√m + 1/√n) / √12`.

        Every entry has an error of variance ulp²/12, with ulp at most `eps |w|`. Call it after the first pass, which
        finds ‖W‖_F.
        """
        m, n = self.matrix.shape
        is_wide = all(dtype == torch.float64 for dtype in self.matrix.dtypes)
        eps = torch.finfo(torch.float64 if is_wide else torch.float32).eps
        return eps * self.base_norm * (1 / math.sqrt(m) + 1 / math.sqrt(n)) / math.sqrt(12)

    def _read_whole(self) -> Tensor:
        whole: Tensor | None = None
        at = 0
        size = math.prod(self.matrix.shape)
        elements = BLOCK_ELEMENTS if size > _ONE_PIECE else size
        for block in self._read(elements):  # to its end, where the norm of the base is known
            if len(block) == self.matrix.shape[0]:
                whole = block
                continue
            whole = block.new_empty(self.matrix.shape) if whole is None else whole
            whole[at : at + len(block)] = block
            at += len(block)
        assert whole is not None  # it has rows
        return whole

    def _read(self, elements: int) -> Iterator[Tensor]:
        squares = 0.0
        for begin, end in self.matrix.spans(elements):
            base, tuned = self.matrix.weights(begin, end)
            squares += float(torch.linalg.vector_norm(base, dtype=torch.float64)) ** 2
            yield tuned - base
        self.base_norm = math.sqrt(squares)


def note_on_size(change: float, base: float) -> str | None:
    """A question where ‖Δ‖ is no less than ‖W‖: unrelated weights of one size differ by about √2.

    >>> note_on_size(1.4, 1.0), note_on_size(0.5, 1.0)
    ('the matrices changed by 140% of their size: is this a fine-tune of this base?', None)
    """
    if not base or change < base:
        return None
    return f"the matrices changed by {change / base:.0%} of their size: is this a fine-tune of this base?"
