"""From weights now and at the start to numbers: layers of one shape are stacked, every quantity reads the stack.

A group holds as many layers as fit a budget: of small layers, one call costs as much as ten.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.heads import AttentionLayer, HeadMap
from rankrise.tracking._change import Change, Directions, MatrixChange, ProductChange
from rankrise.tracking._weights import InitialWeights
from rankrise.tracking.quantities import Clock, Quantity

CIRCUITS = ("kq", "vo")
MATRICES = ("q", "k", "v", "o")
_GROUP_BYTES = {"cpu": 2**22, "cuda": 2**27}  # of float32 weights


class Reading(NamedTuple):
    """One quantity of one circuit of a group of layers."""

    quantity: Quantity
    circuit: str
    layers: tuple[int, ...]
    values: Tensor  # (layers, heads), (layers, heads, k), and without heads for a whole matrix
    heads: bool


class Measured(NamedTuple):
    """What a group of layers gave."""

    readings: list[Reading]
    directions: dict[str, Tensor]  # "3.kq.left", "3.kq.sigma", "3.kq.right": (heads, ...) of layer 3
    not_finite: list[str]  # "layer 3 head 1 (kq)"


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    quantities: tuple[Quantity, ...]
    num_directions: int
    matrices: bool


def groups(head_map: HeadMap, device: torch.device) -> Iterator[tuple[AttentionLayer, ...]]:
    """Runs of layers whose factors have the same shapes, within the budget of the device."""
    budget = _GROUP_BYTES.get(device.type, _GROUP_BYTES["cuda"])
    group: list[AttentionLayer] = []
    for layer in head_map.layers:
        fits = (len(group) + 1) * _num_bytes(layer) <= budget
        if group and not (fits and _shape(layer) == _shape(group[0])):
            yield tuple(group)
            group = []
        group.append(layer)
    yield tuple(group)


def measure(
    group: Sequence[AttentionLayer],
    now: Mapping[str, Tensor],
    initial: InitialWeights,
    *,
    plan: Plan,
    due: frozenset[Clock],
    previous: Mapping[str, Tensor],
) -> Measured:
    """Measure a group of layers.

    Args:
        group: Layers of one shape.
        now: Their weights.
        initial: What they were.
        plan: What to measure.
        due: Which clocks have struck. Whole matrices are read with the spectra, and then in every quantity.
        previous: Directions of the measurement before, as in `Measured.directions`.
    """
    weights, start = initial.pair(now)
    layers = tuple(layer.index for layer in group)
    measured = Measured([], {}, [])
    for circuit in CIRCUITS:
        stacks = [
            torch.cat([layer.factors(circuit, w.__getitem__)[side] for layer in group])
            for w in (weights, start)
            for side in (0, 1)
        ]
        left, right, left0, right0 = stacks
        finite = left.isfinite().all(-1).all(-1) & right.isfinite().all(-1).all(-1)
        if not finite.all():
            left, right = (torch.where(finite[:, None, None], w, w0) for w, w0 in ((left, left0), (right, right0)))
        before = _stack_directions(previous, layers, circuit, left.device)
        change = ProductChange(left, right, left0, right0, plan.num_directions, before)
        wanted = [q for q in plan.quantities if q.clock in due]
        _read(measured, wanted, change, circuit, layers, finite.reshape(len(layers), -1))
        if "spectra" in due and change.leading is not None:
            _keep_directions(measured.directions, change.leading, layers, circuit)
    if plan.matrices and "spectra" in due:
        for role in MATRICES:
            delta = torch.stack(
                [
                    layer.roles[role].matrix(weights.__getitem__) - layer.roles[role].matrix(start.__getitem__)
                    for layer in group
                ]
            )
            finite = delta.isfinite().all(-1).all(-1)
            change_of_matrix = MatrixChange(torch.where(finite[:, None, None], delta, 0.0))
            _read(measured, plan.quantities, change_of_matrix, role, layers, finite)
    return measured


def _read(
    measured: Measured,
    wanted: Sequence[Quantity],
    change: Change,
    circuit: str,
    layers: tuple[int, ...],
    finite: Tensor,
) -> None:
    """Add what the quantities read, NaN where the weights are not finite."""
    for quantity in wanted:
        values = quantity.measure(change)
        if values is None:
            continue
        values = values.double().reshape(*finite.shape, *values.shape[1:])
        mask = finite.reshape(*finite.shape, *(1 for _ in values.shape[finite.ndim :]))
        values = torch.where(mask, values, torch.nan)
        measured.readings.append(Reading(quantity, circuit, layers, values, heads=finite.ndim == 2))
    for position in (~finite).nonzero().tolist():
        head = f" head {position[1]}" if len(position) > 1 else ""
        measured.not_finite.append(f"layer {layers[position[0]]}{head} ({circuit})")


def _keep_directions(kept: dict[str, Tensor], leading: Directions, layers: tuple[int, ...], circuit: str) -> None:
    for name, stack in leading._asdict().items():
        for layer, tensor in zip(layers, stack.chunk(len(layers)), strict=True):
            kept[f"{layer}.{circuit}.{name}"] = tensor


def _stack_directions(
    kept: Mapping[str, Tensor], layers: tuple[int, ...], circuit: str, device: torch.device
) -> Directions | None:
    if any(f"{layer}.{circuit}.sigma" not in kept for layer in layers):
        return None
    return Directions(
        *(torch.cat([kept[f"{layer}.{circuit}.{name}"].to(device) for layer in layers]) for name in Directions._fields)
    )


def _shape(layer: AttentionLayer) -> tuple[tuple[int, ...], ...]:
    views = (layer.roles[role] for role in MATRICES)
    return tuple((v.shape[1 - v.axis], v.head_dim, v.stored_heads, v.num_heads) for v in views)


def _num_bytes(layer: AttentionLayer) -> int:
    return sum(4 * inputs * head_dim * num_heads for inputs, head_dim, _, num_heads in _shape(layer))
