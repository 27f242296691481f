"""From weights now and at the start to measurements: layers of one shape are stacked, every quantity reads the stack.

A group holds as many layers as fit a memory budget, because one call on ten small layers costs as much as on one.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.heads import CIRCUITS, AttentionLayer, HeadMap, LinearWeight
from rankrise.linalg import matrix_spectrum
from rankrise.tracking._change import Change, Directions, MatrixChange, ProductChange
from rankrise.tracking._measurement import Clock, Measurement, Quantity
from rankrise.tracking._parameters import InitialWeights
from rankrise.tracking._schedule import Schedule

Guard = Callable[[str], contextlib.AbstractContextManager[object]]
MATRICES = ("q", "k", "v", "o")
_GROUP_BYTES = {"cpu": 2**22, "cuda": 2**27}  # most bytes of float32 weights in a group


@dataclass
class Readout:
    """What a measurement of the weights gave, gathered group by group."""

    measurements: list[Measurement] = field(default_factory=list)
    directions: dict[str, Tensor] = field(default_factory=dict)  # "3.kq.left", "3.kq.sigma", "3.kq.right" of layer 3
    not_finite: list[str] = field(default_factory=list)  # "layer 3 head 1 (kq)"


@dataclass(frozen=True)
class MeasurementPlan:
    """What to measure of the weights, and when."""

    quantities: tuple[Quantity, ...]
    num_directions: int
    matrices: bool
    every: Schedule  # the clock `ranks`
    spectra: Schedule  # the clock `spectra`

    def due(self, step: int) -> frozenset[Clock]:
        """The clocks that strike at `step`; whenever spectra are due, ranks are due too."""
        if self.spectra(step):
            return frozenset(("ranks", "spectra"))
        return frozenset(("ranks",)) if self.every(step) else frozenset()


def groups(head_map: HeadMap, device: torch.device) -> Iterator[tuple[AttentionLayer, ...]]:
    """Consecutive layers whose factors have the same shapes, within the memory budget of the device."""
    budget = _GROUP_BYTES.get(device.type, _GROUP_BYTES["cuda"])
    group: list[AttentionLayer] = []
    for layer in head_map.layers:
        fits = (len(group) + 1) * _num_bytes(layer) <= budget
        if group and not (fits and _shape(layer) == _shape(group[0])):
            yield tuple(group)
            group = []
        group.append(layer)
    if group:
        yield tuple(group)


def measure(
    group: Sequence[AttentionLayer],
    now: Mapping[str, Tensor],
    initial: InitialWeights,
    *,
    plan: MeasurementPlan,
    due: frozenset[Clock],
    previous: Mapping[str, Tensor],
    guard: Guard = contextlib.nullcontext,
) -> Readout:
    """Measure a group of layers.

    Args:
        group: Layers of one shape.
        now: Their weights.
        initial: What these weights were before the first step.
        plan: What to measure.
        due: The clocks that have struck. Whole matrices are read when spectra are due, and then in every quantity.
        previous: Directions of the measurement before, keyed as in `Readout.directions`.
        guard: Takes a description and returns a context in which one quantity is read, and which handles its errors.
    """
    weights, start = initial.pair(now)
    layers = tuple(layer.index for layer in group)
    readout = Readout()
    wanted = [q for q in plan.quantities if q.clock in due]
    factors = {circuit: _factors(group, circuit, weights, start) for circuit in CIRCUITS}
    for circuits in _of_one_shape({circuit: [f[0] for f in parts] for circuit, parts in factors.items()}):
        left, right, left0, right0 = (
            torch.cat([layer for circuit in circuits for layer in factors[circuit][k]]) for k in range(4)
        )
        finite = left.isfinite().all(-1).all(-1) & right.isfinite().all(-1).all(-1)
        if not finite.all():
            left, right = (torch.where(finite[:, None, None], w, w0) for w, w0 in ((left, left0), (right, right0)))
        before = _stack_directions(previous, layers, circuits, left.device)
        change = ProductChange(left, right, left0, right0, plan.num_directions, before)
        stack = _Stack(change, circuits, layers, finite.reshape(len(circuits), len(layers), -1))
        stack.read(wanted, readout, guard)
        if "spectra" in due and change.leading is not None:
            _keep_directions(readout.directions, change.leading, layers, circuits)
    if plan.matrices and "spectra" in due:
        deltas = {role: _matrix_deltas(group, role, weights, start) for role in MATRICES}
        for roles in _of_one_shape({role: (delta,) for role, delta in deltas.items()}):
            delta = torch.cat([deltas.pop(role) for role in roles])
            finite = delta.isfinite().all(-1).all(-1)
            sigma = matrix_spectrum(torch.where(finite[:, None, None], delta, 0.0))
            stack = _Stack(MatrixChange(sigma), roles, layers, finite.reshape(len(roles), -1))
            stack.read(plan.quantities, readout, guard)
    return readout


def measure_linear(
    weight: LinearWeight,
    now: Mapping[str, Tensor],
    initial: InitialWeights,
    *,
    plan: MeasurementPlan,
    guard: Guard = contextlib.nullcontext,
) -> Readout:
    """Measure a linear weight beside attention, every expert by itself; the arguments are those of `measure`."""
    weights, start = initial.pair(now)
    readout = Readout()
    delta = weight.matrices(weights.__getitem__) - weight.matrices(start.__getitem__)
    finite = delta.isfinite().all(-1).all(-1)
    change = MatrixChange(matrix_spectrum(torch.where(finite[:, None, None], delta, 0.0)))
    finite = finite[None, None] if weight.has_experts else finite[None]
    _Stack(change, (weight.name,), (weight.layer,), finite).read(plan.quantities, readout, guard)
    return readout


@dataclass(frozen=True)
class _Stack:
    """The change of some circuits of some layers, one matrix for every entry of `finite`."""

    change: Change
    circuits: Sequence[str]
    layers: tuple[int, ...]
    finite: Tensor  # whether the weights are: (circuits, layers, heads), or (circuits, layers) for whole matrices

    def read(self, wanted: Sequence[Quantity], readout: Readout, guard: Guard) -> None:
        """Add what the quantities read; it is NaN where the weights are not finite."""
        finite = self.finite
        for quantity in wanted:
            with guard(f"Measuring {quantity.name!r}"):
                values = quantity.measure(self.change)
                if values is None:
                    continue
                _check_shape(quantity, values, finite.numel())
                values = values.double().reshape(*finite.shape, *values.shape[1:])
                mask = finite.reshape(*finite.shape, *(1 for _ in values.shape[finite.ndim :]))
                values = torch.where(mask, values, torch.nan)
                readout.measurements += [
                    Measurement(quantity.name, part, self.layers, finite.ndim == 3, circuit, quantity.index)
                    for circuit, part in zip(self.circuits, values, strict=True)
                ]
        for position in (~finite).nonzero().tolist():
            head = f" head {position[2]}" if len(position) > 2 else ""
            readout.not_finite.append(f"layer {self.layers[position[1]]}{head} ({self.circuits[position[0]]})")


def _factors(
    group: Sequence[AttentionLayer], circuit: str, weights: Mapping[str, Tensor], start: Mapping[str, Tensor]
) -> list[tuple[Tensor, ...]]:
    """left, right, left0, right0 of one circuit, each with one view per layer."""
    now, then = ([layer.factors(circuit, w.__getitem__) for layer in group] for w in (weights, start))
    return [*zip(*now, strict=True), *zip(*then, strict=True)]


def _matrix_deltas(
    group: Sequence[AttentionLayer], role: str, weights: Mapping[str, Tensor], start: Mapping[str, Tensor]
) -> Tensor:
    """W − W0 of one role for every layer, transposed to be taller than wide: only its spectrum is read."""
    views = [layer.roles[role] for layer in group]
    delta = torch.stack([v.matrix(weights.__getitem__) - v.matrix(start.__getitem__) for v in views])
    return delta if delta.shape[-2] >= delta.shape[-1] else delta.mT


def _of_one_shape(stacks: Mapping[str, Sequence[Tensor]]) -> list[tuple[str, ...]]:
    """Names whose stacks are measured together, because one call costs an accelerator little more than half of two."""
    shapes: dict[tuple[object, ...], list[str]] = {}
    for name, tensors in stacks.items():
        shapes.setdefault(tuple((t.shape, t.dtype) for t in tensors), []).append(name)
    return [tuple(names) for names in shapes.values()]


def _check_shape(quantity: Quantity, values: object, num: int) -> None:
    if not isinstance(values, Tensor):
        raise ValueError(f"it must return a tensor or None; got {type(values).__name__}")
    wanted = f"({num},) or ({num}, k)" if quantity.index is None else f"({num}, {len(quantity.index)})"
    is_single = values.ndim == 1 and quantity.index is None
    is_vector = values.ndim == 2 and (quantity.index is None or values.shape[1] == len(quantity.index))
    if not (is_single or is_vector) or values.shape[0] != num:
        raise ValueError(f"it must return the shape {wanted}; got {tuple(values.shape)}")


def _keep_directions(
    kept: dict[str, Tensor], leading: Directions, layers: tuple[int, ...], circuits: Sequence[str]
) -> None:
    for name, stack in leading._asdict().items():
        keys = [f"{layer}.{circuit}.{name}" for circuit in circuits for layer in layers]
        kept.update(zip(keys, stack.chunk(len(keys)), strict=True))


def _stack_directions(
    kept: Mapping[str, Tensor], layers: tuple[int, ...], circuits: Sequence[str], device: torch.device
) -> Directions | None:
    keys = [f"{layer}.{circuit}" for circuit in circuits for layer in layers]
    if any(f"{key}.sigma" not in kept for key in keys):
        return None
    return Directions(*(torch.cat([kept[f"{key}.{name}"].to(device) for key in keys]) for name in Directions._fields))


def _shape(layer: AttentionLayer) -> tuple[tuple[int, ...], ...]:
    views = (layer.roles[role] for role in MATRICES)
    return tuple((v.shape[1 - v.axis], v.head_dim, v.stored_heads, v.num_heads) for v in views)


def _num_bytes(layer: AttentionLayer) -> int:
    return sum(4 * inputs * head_dim * num_heads for inputs, head_dim, _, num_heads in _shape(layer))
