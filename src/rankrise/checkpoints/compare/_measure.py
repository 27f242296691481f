"""From one pair to its rows: two stored tensors, or what adapters add."""

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankrise.checkpoints.compare._result import Row, Status
from rankrise.checkpoints.delta import (
    Matrix,
    delta_blocks,
    find_intruders,
    first_pass,
    full_floor,
    is_whole,
    leading_values,
    matrices,
    quick_floor,
    spectrum,
)
from rankrise.checkpoints.files import Checkpoint, LowRankDelta, show
from rankrise.checkpoints.match import Pair, layer_of
from rankrise.linalg import delta_spectrum, gaussian_spectra, rank_measures

_NULL_SAMPLES = 4
_NOT_FINITE: dict[tuple[bool, ...], Status] = {  # whether the base and the tuned weights are finite
    (False, True): "not finite: base",
    (True, False): "not finite: tuned",
    (False, False): "not finite: base and tuned",
}


class Measured(NamedTuple):
    """A row, and the change itself where it is at hand: Δ, or the two factors of an adapter's."""

    row: Row
    change: tuple[Tensor, ...] | None = None


def measure_pair(
    base: Checkpoint | None, tuned: Checkpoint, pair: Pair, *, step: int, summary: bool, device: str
) -> Iterator[Measured]:
    """The rows of a pair: one, or one for each expert of a stack."""
    if pair.tuned_name is None:
        yield _measure_adapter(base, tuned, pair, step=step, summary=summary)
        return
    assert base is not None
    for matrix in matrices(base, tuned, pair, device):
        yield _measure_matrix(matrix, step=step, summary=summary)


def spectral_fields(sigma: Tensor, shape: tuple[int, int], inner: int | None = None) -> dict[str, Any]:
    """The measures that need a spectrum, and those of a random matrix beside them."""
    found = rank_measures(sigma)
    return {
        "spectral_norm": float(sigma[0]),
        "stable_rank": float(found.stable),
        "effective_rank": float(found.effective),
        "energy_rank_90": int(found.energy_90),
        "energy_rank_95": int(found.energy_95),
        "energy_rank_99": int(found.energy_99),
        "spectrum": tuple(sigma.tolist()),
        **null_fields(shape, inner),
    }


@functools.lru_cache(maxsize=256)
def _null(rows: int, columns: int, inner: int | None) -> tuple[tuple[str, float], ...]:
    found = rank_measures(gaussian_spectra(rows, columns, inner=inner, samples=_NULL_SAMPLES))
    return (
        ("null_stable_rank", float(found.stable.mean())),
        ("null_effective_rank", float(found.effective.mean())),
        ("null_energy_rank_90", float(found.energy_90.double().mean())),
    )


def null_fields(shape: tuple[int, int], inner: int | None = None) -> dict[str, float]:
    """Return what a random matrix of this shape, or a product of random factors, would show."""
    return dict(_null(max(shape), min(shape), inner))


def overlap(change: tuple[Tensor, ...] | None, before: tuple[Tensor, ...] | None) -> float | None:
    """⟨Δ, Δ'⟩ of two changes of one weight, each Δ or `left rightᵀ`; None where one is not at hand."""
    if change is None or before is None or len(change) != len(before):
        return None
    if len(change) == 1:
        return float((change[0].double() * before[0].double()).sum())
    (left, right), (left0, right0) = change, before
    return float(((left.mT @ left0) * (right.mT @ right0)).sum())


def _measure_matrix(matrix: Matrix, *, step: int, summary: bool) -> Measured:
    stored = [str(dtype).removeprefix("torch.") for dtype in matrix.dtypes]
    is_vector = len(matrix.pair.shape) < 2
    row = Row(
        step=step,
        name=matrix.name,
        layer=layer_of(matrix.name),
        head=-1,
        circuit="",
        kind="vector" if is_vector else "matrix",
        shape=matrix.pair.shape if matrix.expert is None else matrix.shape,
        dtype=" → ".join(dict.fromkeys(stored)),
        status="changed",
    )
    if 0 in matrix.shape:
        return Measured(replace(row, status="empty"))
    sums = first_pass(matrix)
    if sums.same_bits:
        norm = sums.base**0.5 if all(sums.finite) else None
        return Measured(replace(row, status="identical", base_norm=norm, **ZERO))
    if not all(sums.finite):
        return Measured(replace(row, status=_NOT_FINITE[tuple(sums.finite)]))
    if not all(map(math.isfinite, (sums.base, sums.change))):
        return Measured(replace(row, status="not finite: the change squared"))
    row = replace(row, norm=sums.change**0.5, base_norm=sums.base**0.5)
    if sums.largest == 0:
        return Measured(replace(row, status="unchanged", **ZERO))
    change = None if sums.held is None else (sums.held,)
    if is_vector:
        return Measured(row, change)
    blocks = delta_blocks(matrix, sums)
    if summary:
        values = leading_values(blocks, matrix.shape[1])
        fields: dict[str, Any] = {
            "spectral_norm": float(values[0]),
            "stable_rank": sums.change / float(values[0]) ** 2 if values[0] else None,
        }
        floor = quick_floor(matrix, sums, values)
    else:
        values = spectrum(blocks, matrix.shape)
        fields = spectral_fields(values, matrix.shape)
        floor = full_floor(matrix, sums) or quick_floor(matrix, sums, values)
        if is_whole(matrix.shape, device=matrix.device):
            fields |= _intruder_fields(*matrix.weights(0, matrix.shape[0]))
    if floor is not None:
        fields |= {"rank_above_floor": floor.rank, "rank_lower": floor.lower, "rank_upper": floor.upper}
    return Measured(replace(row, **fields), change)


def _intruder_fields(base: Tensor, tuned: Tensor) -> dict[str, Any]:
    found = find_intruders(base, tuned) if bool(base.isfinite().all()) and bool(tuned.isfinite().all()) else None
    if found is None:
        return {}
    return {"intruders": found.num, "least_cosine": found.least_cosine, "null_least_cosine": found.null}


def _measure_adapter(base: Checkpoint | None, tuned: Checkpoint, pair: Pair, *, step: int, summary: bool) -> Measured:
    """`scale·BA` of the tuned adapter less that of the base adapter, through thin factors."""
    now, then = pair.delta, pair.base_delta
    row = Row(
        step=step,
        name=pair.name,
        layer=layer_of(pair.name),
        head=-1,
        circuit="",
        kind="adapter",
        shape=pair.shape,
        dtype=str(tuned.tensors[now.a].dtype if now else torch.float32).removeprefix("torch."),
        status="changed",
    )
    if base is not None and pair.copy is not None:
        _check_copy(base, tuned, pair)
    if 0 in pair.shape or not (now or then) or 0 in ((now or then).rank,):  # type: ignore[union-attr]
        return Measured(replace(row, status="empty"))
    if base is not None and now and then and _same_bits(tuned, now, base, then):
        return Measured(replace(row, status="identical", **ZERO))
    rank = max(delta.rank for delta in (now, then) if delta)
    left, right = _factors(tuned, now, pair.shape, rank)
    left0, right0 = _factors(base, then, pair.shape, rank)
    if not all(bool(t.isfinite().all()) for t in (left, right, left0, right0)):
        return Measured(replace(row, status="not finite"))
    sigma = delta_spectrum(left, right, left0, right0)
    norm = float(sigma.square().sum().sqrt())
    if base is not None and pair.base_name is not None:
        row = replace(row, base_norm=_norm(base, pair.base_name))
    elif then is not None:
        row = replace(row, base_norm=float(delta_spectrum(left0, right0, 0 * left0, right0).square().sum().sqrt()))
    row = replace(row, norm=norm)
    if norm == 0:
        return Measured(replace(row, status="unchanged", **ZERO))
    width = min(*pair.shape, sum(delta.rank for delta in (now, then) if delta))
    shape = (pair.shape[0], pair.shape[1])
    fields = spectral_fields(sigma[:width], shape, inner=width)
    if summary:
        fields = {key: fields[key] for key in ("spectral_norm", "stable_rank")}
    elif base is not None and pair.base_name is not None and is_whole(shape):
        weight = base.read_weight(pair.base_name).reshape(shape).float()
        fields |= _intruder_fields(weight, weight + (left @ right.mT - left0 @ right0.mT).float())
    change = (torch.cat([left, -left0], 1), torch.cat([right, right0], 1))
    return Measured(replace(row, **fields), change)


ZERO: dict[str, Any] = {
    "norm": 0.0,
    "spectral_norm": 0.0,
    "stable_rank": 0.0,
    "effective_rank": 0.0,
    "energy_rank_90": 0,
    "energy_rank_95": 0,
    "energy_rank_99": 0,
    "rank_above_floor": 0,
}


def _check_copy(base: Checkpoint, tuned: Checkpoint, pair: Pair) -> None:
    """PEFT saves the weight of an embedding beside what it adds to it; a trained one would be a change of its own."""
    assert pair.base_name is not None
    assert pair.copy is not None
    for begin, end in _row_blocks(base, pair.base_name):
        one, other = base.read_weight(pair.base_name, begin, end), tuned.read_weight(pair.copy, begin, end)
        if not torch.equal(one.double(), other.double()):
            raise ValueError(
                f"The adapter must be of this base; its own {show(pair.copy)!r} differs from the base's. "
                "Merge the adapter and compare the result."
            )


def _same_bits(one: Checkpoint, now: LowRankDelta, other: Checkpoint, then: LowRankDelta) -> bool:
    if now.scale != then.scale or now.rank != then.rank:
        return False
    pairs = ((now.a, then.a), (now.b, then.b))
    return all(one.tensors[n].dtype == other.tensors[t].dtype for n, t in pairs) and all(
        torch.equal(one.read(n).view(torch.uint8), other.read(t).view(torch.uint8)) for n, t in pairs
    )


def _factors(
    checkpoint: Checkpoint | None, delta: LowRankDelta | None, shape: tuple[int, ...], rank: int
) -> tuple[Tensor, Tensor]:
    """Return factors with `rank` columns; columns that the adapter does not have are zero."""
    if checkpoint is None or delta is None:
        return torch.zeros(shape[0], rank, dtype=torch.float64), torch.zeros(shape[1], rank, dtype=torch.float64)
    left, right = delta.factors(checkpoint.read)
    pad = (0, rank - delta.rank)
    return torch.nn.functional.pad(left, pad), torch.nn.functional.pad(right, pad)


def _norm(checkpoint: Checkpoint, name: str) -> float:
    total = 0.0
    for begin, end in _row_blocks(checkpoint, name):
        block = checkpoint.read_weight(name, begin, end)
        total += float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2
    return math.sqrt(total)


def _row_blocks(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, int]]:
    rows = checkpoint.tensors[name].shape[0]
    size = max(1, 2**24 * rows // max(1, checkpoint.tensors[name].num_elements))
    return ((begin, min(rows, begin + size)) for begin in range(0, rows, size))
