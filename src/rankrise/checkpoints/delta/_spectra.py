"""Numbers of one change Δ = tuned − base from blocks of its rows: size, spectrum, stable rank, rounding floor.

Symbols:
    m, n    rows and columns
    S       S_ij, the variance of the rounding error in Δ_ij, ulp²/12 of each checkpoint
    V       (n, 8), an estimate of the leading right singular subspace; held as Vᵀ
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.checkpoints.delta._change import BLOCK_ELEMENTS, HELD_BYTES, Matrix
from rankrise.linalg import rank_above_floor, storage_dtype

_SPECTRUM_WORK = {"cpu": 2**25, "cuda": 2**28}  # elements of a matrix whose floor is found in full
_READ_AGAIN_ELEMENTS = 2**24  # elements of a block of a change that is not held; every block costs a Gram matrix
_NUM_VECTORS = 8
_MOST_PASSES = 24
_GROWTH = 1e-3  # the iteration stops once σ̂² grows by less than this share in a pass
_COMFORT = 1e-12, 1e12  # squares of such numbers add up in float32
_LARGEST = float(torch.finfo(torch.float32).max)  # a change beyond it is read again in float64


@dataclass
class Sums:
    """What one pass over the rows gives."""

    same_bits: bool = True
    finite: tuple[bool, bool] = (True, True)
    base: float = 0.0  # ‖W0‖_F²
    change: float = 0.0  # ‖Δ‖_F²
    largest: float = 0.0  # max |Δ_ij|
    grids: list[set[torch.dtype]] = field(default_factory=lambda: [set(), set()])
    row_powers: list[list[Tensor]] = field(default_factory=lambda: [[], []])  # Σ_j 4^exponent, of base and tuned
    column_powers: list[Tensor | float] = field(default_factory=lambda: [0.0, 0.0])
    held: Tensor | None = None


@dataclass(frozen=True)
class Floor:
    """Directions that rounding does not explain; in summaries a lower bound that stops at 8."""

    rank: int
    lower: int
    upper: int | None
    edge: float | None  # largest singular value that rounding alone gives, in the units of Δ; None: scaled rows


def first_pass(matrix: Matrix) -> Sums:
    """Read every row once: equality, finiteness, norms, rounding, and Δ itself where it is not too large to hold."""
    sums = Sums()
    m, n = matrix.shape
    held: Tensor | None = None
    at = 0
    for block in matrix.blocks():
        sums.same_bits &= block.same_bits
        largest = [_largest(w) for w in (block.base, block.tuned)]
        sums.finite = (sums.finite[0] and math.isfinite(largest[0]), sums.finite[1] and math.isfinite(largest[1]))
        if not all(sums.finite):
            continue
        sums.base += _square_sum(block.base, largest[0])
        if block.same_bits:
            delta = torch.zeros_like(block.base)
        else:
            delta = block.tuned - block.base
            top = _largest(delta)
            if not math.isfinite(top):  # both are finite, and too far apart for float32
                delta = block.tuned.double() - block.base.double()
                top = _largest(delta)
            sums.largest = max(sums.largest, top)
            sums.change += _square_sum(delta, top)
        _add_rounding(sums, matrix, (block.base, block.tuned))
        if m * n * delta.itemsize <= HELD_BYTES and sums.largest <= _LARGEST:
            held = delta if len(delta) == m else _filled(held, at, delta, m)
        at += len(delta)
    sums.held = held if all(sums.finite) and sums.largest <= _LARGEST else None
    return sums


def _filled(held: Tensor | None, at: int, delta: Tensor, rows: int) -> Tensor:
    """`held` with these rows put in; made on the first, so that there is never a second copy."""
    if held is None:
        held = delta.new_empty(rows, delta.shape[1])
    held[at : at + len(delta)] = delta
    return held


def delta_blocks(matrix: Matrix, sums: Sums) -> Callable[[], Iterator[Tensor]]:
    """Blocks of rows of Δ, as often as asked for."""
    held = sums.held
    wide = not _COMFORT[0] <= sums.largest <= _COMFORT[1]

    def blocks() -> Iterator[Tensor]:
        if held is not None:
            yield held.double() if wide else held
            return
        for begin, end in matrix.spans(_READ_AGAIN_ELEMENTS):
            base, tuned = matrix.weights(begin, end)
            yield tuned.double() - base.double() if wide else tuned - base

    return blocks


def leading_values(blocks: Callable[[], Iterator[Tensor]], columns: int) -> Tensor:
    """The largest singular values of Δ, at most 8, from below, by block power iteration with one reading a step."""
    first = next(blocks())
    k = min(_NUM_VECTORS, columns)
    generator = torch.Generator("cpu").manual_seed(0)
    v = torch.randn(columns, k, generator=generator, dtype=torch.float64)
    v = torch.linalg.qr(v).Q.mT.to(first).contiguous()
    previous = 0.0
    for _ in range(_MOST_PASSES):
        gram = torch.zeros(k, k, dtype=torch.float64, device=v.device)
        image = torch.zeros(k, columns, dtype=torch.float64, device=v.device)
        for delta in blocks():
            for rows in torch.split(delta, max(1, BLOCK_ELEMENTS // columns)):  # each stays in the cache
                u = v @ rows.mT  # thin products are fastest with the long side last
                gram += (u @ u.mT).double()  # (Δ V)ᵀ(Δ V)
                image += (u @ rows).double()  # (ΔᵀΔ V)ᵀ
        values: Tensor = torch.linalg.eigvalsh(gram).clamp_min(0).flip(0)
        top = float(values[0])
        if top <= previous * (1 + _GROWTH) or not top:
            break
        previous = top
        v = torch.linalg.qr((image / image.norm()).mT).Q.mT.to(first).contiguous()
    return values.sqrt().cpu()


def spectrum(blocks: Callable[[], Iterator[Tensor]], shape: tuple[int, int]) -> Tensor:
    """All singular values, right to 1e-8 σ₁, from the float64 Gram matrix of the smaller side."""
    m, n = shape
    if m < n:  # the smaller side is that of the rows, which lie in different blocks
        delta = torch.cat([block.double() for block in blocks()])
        gram = delta @ delta.mT
    else:
        gram = torch.zeros(n, n, dtype=torch.float64, device=next(blocks()).device)
        for block in blocks():
            wide = block.double()
            gram += wide.mT @ wide
    scale = float(gram.diagonal().max())
    if scale == 0:
        return torch.zeros(min(m, n), dtype=torch.float64)
    values: Tensor = torch.linalg.eigvalsh(gram / scale)
    return (values.clamp_min(0).sqrt() * math.sqrt(scale)).flip(0).cpu()


def full_floor(matrix: Matrix, sums: Sums) -> Floor | None:
    """Directions above the floor with rows and columns brought to one scale; None where the grid is not known."""
    if matrix.has_scales or sums.largest > _LARGEST:
        return None
    if not is_whole(matrix.shape, matrix.device):
        return None
    block = matrix.rows(0, matrix.shape[0])
    base_dtype, tuned_dtype = _grids(matrix, sums)
    found = rank_above_floor(block.base, block.tuned, base_dtype=base_dtype, tuned_dtype=tuned_dtype)
    return Floor(int(found.rank), int(found.lower), int(found.upper), None)


def is_whole(shape: tuple[int, ...], device: str = "cpu") -> bool:
    """Whether a weight is small enough to be worked on in one piece, with decompositions of its own size."""
    return math.prod(shape) <= _SPECTRUM_WORK.get(torch.device(device).type, _SPECTRUM_WORK["cpu"])


def quick_floor(matrix: Matrix, sums: Sums, values: Tensor) -> Floor | None:
    """Values above what rounding can give, by the largest row and column: a lower bound on the directions above it.

    The largest singular value of independent errors is near the root of the largest sum of variances over a row plus
    that over a column.
    """
    if matrix.has_scales or not sums.row_powers[0] or sums.largest > _LARGEST:
        return None
    rows, columns = (
        sum(
            _variance(dtype) * factor * powers
            for dtype, factor, powers in zip(_grids(matrix, sums), (1.0, 1.1), parts, strict=True)
        )
        for parts in ([torch.cat(p) for p in sums.row_powers], sums.column_powers)
    )
    assert isinstance(rows, Tensor)
    assert isinstance(columns, Tensor)
    edge = 1.02 * (float(rows.max()) ** 0.5 + float(columns.max()) ** 0.5)
    if not math.isfinite(edge):  # weights too large for squares in float32
        return None
    rank = int((values > edge).sum())
    return Floor(rank, rank, None, edge)


def _grids(matrix: Matrix, sums: Sums) -> tuple[torch.dtype, torch.dtype]:
    """The format whose grid the values lie on, which may be narrower than the one they are stored in."""
    base, tuned = (
        next(iter(found)) if len(found) == 1 else stored
        for found, stored in zip(sums.grids, matrix.dtypes, strict=True)
    )
    return base, tuned


def _add_rounding(sums: Sums, matrix: Matrix, pair: tuple[Tensor, Tensor]) -> None:
    """Add up the squares of the powers of two below each weight, which `_variance` turns into variances."""
    for i, (weight, stored) in enumerate(zip(pair, matrix.dtypes, strict=True)):
        sums.grids[i].add(storage_dtype(weight) if stored.itemsize >= 4 else stored)
        if weight.dtype == torch.float64:
            power = torch.exp2((torch.frexp(weight).exponent - 1).double())
        else:
            power = (weight.view(torch.int32) & 0x7F800000).view(torch.float32)
        square = power.square_()
        sums.row_powers[i].append(square.sum(1).double())  # three digits are enough
        sums.column_powers[i] = sums.column_powers[i] + square.sum(0).double()


def _variance(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) ** 2 / 12


def _largest(block: Tensor) -> float:
    if block.numel() == 0:
        return 0.0
    low, high = torch.aminmax(block)
    return float(torch.maximum(low.abs(), high.abs()))


def _square_sum(block: Tensor, largest: float) -> float:
    comfortable = _COMFORT[0] <= largest <= _COMFORT[1] or largest == 0
    if not comfortable:
        norm = float(torch.linalg.vector_norm(block, dtype=torch.float64))
        return norm * norm  # infinite where too large
    return float(torch.linalg.vector_norm(block, dim=-1).double().square().sum())  # long sums lose digits in float32
