"""Rows of every head's two circuits, where a checkpoint's names and config tell which weights are heads.

Symbols:
    K, Q        factors (heads, d, r) of the tuned model; K0, Q0 are those of the base
    E_K, E_Q    rounding in K − K0 and in Q − Q0: independent, with known variances
    N           E_K Qᵀ + K0 E_Qᵀ, the rounding in `K Qᵀ − K0 Q0ᵀ`. By Weyl's inequality a change of rank r has at most r
                singular values above σ₁(N), so σ₁(N) is the floor of a circuit
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rankrise.checkpoints.compare._measure import ZERO, spectral_fields
from rankrise.checkpoints.compare._result import Row
from rankrise.checkpoints.files import Checkpoint
from rankrise.checkpoints.match import Pair
from rankrise.heads import CIRCUITS, AttentionLayer, HeadMap, Layout, WeightView, resolve
from rankrise.linalg import delta_spectrum, product_spectrum, rounding_variance, storage_dtype

Get = Callable[[str], Tensor]


def find_heads(base: Checkpoint, pairs: Mapping[str, Pair], *, heads: Layout | None, num_heads: int | None) -> HeadMap:
    """The attention layers, from names, shapes and config alone.

    Raises:
        ValueError: They cannot be told; says why.
    """
    state = {
        name: torch.empty(base.tensors[pair.base_name].shape, dtype=base.tensors[pair.base_name].dtype, device="meta")
        for name, pair in pairs.items()
        if pair.base_name is not None and pair.base_name not in base.scales
    }
    return resolve(state, heads, num_heads=num_heads, config=base.config)


def measure_layer(
    base: Checkpoint,
    tuned: Checkpoint,
    pairs: Mapping[str, Pair],
    layer: AttentionLayer,
    *,
    step: int,
    unchanged: frozenset[str],
    device: str,
) -> Iterator[Row]:
    """The rows of one layer: `K Qᵀ` and `V Oᵀ` of every head, against those of the base.

    Args:
        base: The base.
        tuned: The tuned, or an adapter.
        pairs: Pairs by the names that the layer was resolved from; every name of the layer is there.
        layer: Which.
        step: The step that the rows get.
        unchanged: Names of weights that are known to be the same in both, and are not read again.
        device: Where to measure.
    """
    read: dict[str, Tensor] = {}
    before = _reader(read, lambda name: _base(base, pairs[name]), "0", device)
    after = _reader(read, lambda name: _tuned(base, tuned, pairs[name]), "1", device)
    for circuit, roles in CIRCUITS.items():
        views = [layer.roles[role] for role in roles]
        names = {name for view in views for name in view.parameters}
        blank = Row(
            step=step, name=layer.name, layer=layer.index, head=-1, circuit=circuit, kind="circuit",
            shape=(), dtype="", status="changed",
        )  # fmt: skip
        if names <= unchanged:
            yield from (replace(blank, head=head, status="identical", **ZERO) for head in range(layer.num_heads))
            continue
        factors = (*layer.factors(circuit, before), *layer.factors(circuit, after))
        dtype = torch.float64 if any(f.dtype == torch.float64 for f in factors) else torch.float32
        left0, right0, left, right = (factor.to(dtype) for factor in factors)
        blank = replace(blank, shape=(left.shape[1], right.shape[1]))
        is_fine = all(base.tensors[pairs[name].base_name].dtype.itemsize > 2 for name in names)  # type: ignore[index]
        finite = torch.stack([t.isfinite().all(-1).all(-1) for t in (left, right, left0, right0)]).all(0)
        norms = _norms(left0, right0)
        floors = None
        is_stored = not any(view.down for view in views)  # the rounding of a product of two weights is not that of one
        if is_stored and all(_has_grid(tuned, pairs[name]) for name in names):
            stored = [(base, "base_name", before), (tuned, "tuned_name", after)]
            variances = [_variance(layer.roles[role], pairs, stored) for role in roles]
            floors = circuit_floor(left, right, left0, right0, variances=variances, heads=finite)
        for head in range(layer.num_heads):
            row = replace(blank, head=head)
            if not finite[head]:
                yield replace(row, status="not finite")
                continue
            parts = [factor[head] for factor in (left, right, left0, right0)]
            if is_fine:  # the rounding of float32 is below what its Gram matrices resolve
                parts = [part.double() for part in parts]
            sigma = delta_spectrum(*parts).cpu()
            norm = float(sigma.square().sum().sqrt())
            row = replace(row, norm=norm, base_norm=float(norms[head]), dtype=str(left.dtype).removeprefix("torch."))
            if norm == 0:
                yield replace(row, status="unchanged", **ZERO)
                continue
            row = replace(row, **spectral_fields(sigma, (left.shape[1], right.shape[1]), 2 * left.shape[2]))
            yield row if floors is None else replace(row, **_floor_fields(sigma, float(floors[head])))


def _has_grid(tuned: Checkpoint, pair: Pair) -> bool:
    """Whether the tuned weight was rounded to a format that is known: not scaled, nor base + adapter."""
    return pair.tuned_name is not None and pair.tuned_name not in tuned.scales


def _variance(view: WeightView, pairs: Mapping[str, Pair], stored: list[tuple[Checkpoint, str, Get]]) -> Tensor:
    """Return the variance of the rounding in the change of one role, (heads, d, r)."""
    variances = []
    for checkpoint, side, read in stored:
        weight = read(view.parameter)
        dtype = checkpoint.tensors[getattr(pairs[view.parameter], side)].dtype
        variances.append(rounding_variance(weight, storage_dtype(weight) if dtype.itemsize > 2 else dtype))
    return view(variances[0] + variances[1])


def _floor_fields(sigma: Tensor, floor: float) -> dict[str, Any]:
    return {"rank_above_floor": int((sigma > floor).sum()), "rank_lower": int((sigma > 1.1 * floor).sum())}


def _base(base: Checkpoint, pair: Pair) -> Tensor:
    assert pair.base_name is not None
    return base.read_weight(pair.base_name)


def _tuned(base: Checkpoint, tuned: Checkpoint, pair: Pair) -> Tensor:
    if pair.tuned_name is not None:
        return tuned.read_weight(pair.tuned_name)
    weight = _base(base, pair)
    if pair.delta is None:
        return weight
    left, right = pair.delta.factors(tuned.read)
    return weight.double() + (left @ right.mT).reshape(weight.shape)


def _reader(read: dict[str, Tensor], get: Get, side: str, device: str) -> Get:
    """`get` in float32 or float64, each weight read once for both circuits (fused weights serve all four roles)."""

    def reading(name: str) -> Tensor:
        key = f"{side}{name}"
        if key not in read:
            weight = get(name)
            read[key] = weight.to(device, torch.promote_types(weight.dtype, torch.float32))
        return read[key]

    return reading


def _norms(left: Tensor, right: Tensor) -> Tensor:
    """`‖left rightᵀ‖_F` of every head."""
    left, right = left.double(), right.double()
    squares: Tensor = ((left.mT @ left) * (right.mT @ right)).sum(dim=(-2, -1))
    return squares.clamp_min(0).sqrt()


_DRAWS = 6
_WIDTHS = 3.0  # standard deviations above the mean: the law of a largest singular value is narrow


def circuit_floor(
    left: Tensor,
    right: Tensor,
    left0: Tensor,
    right0: Tensor,
    *,
    variances: Sequence[Tensor],
    heads: Tensor | None = None,
) -> Tensor:
    """σ₁(N) of every head, (heads,): mean over draws of E and three standard deviations, found over draws and heads.

    A factor that is the same in both has no rounding in its change.

    Args:
        left: (heads, d, r) now.
        right: (heads, e, r) now.
        left0: The base's.
        right0: The base's.
        variances: Variances of the rounding in every entry of `left − left0` and `right − right0`.
        heads: (heads,), which of them to take; the others, which may hold NaN, are 0.

    >>> ones, generator = torch.ones(1, 50, 4), torch.Generator().manual_seed(0)
    >>> base, rounding = (torch.randn(1, 50, 4, generator=generator) for _ in range(2))
    >>> floor = circuit_floor(base + 0.01 * rounding, base, base, base, variances=(1e-4 * ones, 1e-4 * ones))
    >>> largest = product_spectrum(0.01 * rounding, base)[0, 0]
    >>> bool(0.8 * floor < largest < floor)
    True
    """
    if heads is not None:
        left, right, left0, right0 = (torch.where(heads[:, None, None], t, 0.0) for t in (left, right, left0, right0))
    deviations = [
        torch.where((now == then).flatten(1).all(1)[:, None, None], 0.0, variance.sqrt()).to(now.dtype)
        for now, then, variance in zip((left, right), (left0, right0), variances, strict=True)
    ]
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(_DRAWS):
        e_left, e_right = (
            deviation * torch.randn(deviation.shape, generator=generator).to(deviation) for deviation in deviations
        )
        draws.append(product_spectrum(torch.cat([e_left, left0], -1), torch.cat([right, e_right], -1))[..., 0])
    largest = torch.stack(draws)  # (draws, heads)
    mean = largest.mean(0)
    spread = (largest / mean.clamp_min(torch.finfo(mean.dtype).tiny)).std(0).square().mean().sqrt()
    return mean * (1 + _WIDTHS * spread)
