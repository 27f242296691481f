"""What a run has learned: which heads changed most, and when the rank of a layer rose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rankrise.runs._curve import Array, Curve, NotMeasurable
from rankrise.signals import FEWEST, detect_stages, thin

if TYPE_CHECKING:
    from rankrise.runs._run_data import RunData

CIRCUITS = ("kq", "vo")
_OF_THE_MODEL = ("", "ntk")  # circuits of numbers of the model as a whole: the user's own, and those of the kernel
_MOST_SAMPLES = 100  # of a curve whose stages are looked for: the search costs the square of this
_RANKS = ("stable_rank", "effective_rank")
_MIN_RISE = 0.25  # of a rank: smaller steps are drift, not a direction more


@dataclass(frozen=True)
class HeadChange:
    """How much one head has learned.

    Attributes:
        layer: The layer, counted from 0.
        head: The head, counted from 0.
        learned: ‖Δ‖_F over the mean of all heads, averaged over the circuits: 1 is an average head.
        norms: ‖Δ‖_F by circuit.
        ranks: The stable rank of Δ by circuit; empty if it was not measured.
    """

    layer: int
    head: int
    learned: float
    norms: Mapping[str, float]
    ranks: Mapping[str, float]


@dataclass(frozen=True)
class RunStage:
    """Something that happened in a run between two plateaus.

    Attributes:
        kind: "loss" for a drop of the loss, "rank" for a rise of the stable rank of a layer (mean over its heads).
        step: When half of it was done.
        start: When a tenth of it was done.
        end: When nine tenths of it were done.
        size: How far the loss fell, or the rank rose.
        confidence: From 0 to 1, as of `rankrise.signals.detect_stages`.
        layer: The layer, counted from 0; None for the loss.
        circuit: "kq" or "vo"; empty for the loss.
    """

    kind: Literal["loss", "rank"]
    step: float
    start: float
    end: float
    size: float
    confidence: float
    layer: int | None = None
    circuit: str = ""


def learned_heads(run: "RunData", *, layer: int | None = None) -> tuple[HeadChange, ...]:
    """The heads of a run from the one that changed most, by the last measurement that is finite.

    Raises:
        NotMeasurable: The run has no norms of heads.
    """
    norms = {circuit: curve for circuit in CIRCUITS if (curve := _of_heads(run, "frobenius_norm", circuit))}
    if not norms:
        raise NotMeasurable(
            f"{run.source} has no `frobenius_norm` of heads, by which heads are ranked. Track a model with attention, "
            "with the quantity `frobenius_norm`."
        )
    ranks = {circuit: curve for circuit in CIRCUITS if (curve := _of_heads(run, "stable_rank", circuit))}
    last = {circuit: _last(curve) for circuit, curve in norms.items()}
    last_ranks = {circuit: _last(curve) for circuit, curve in ranks.items()}
    shares = _mean_over_first([values / (_mean_over_first(values.ravel()) or 1.0) for values in last.values()])
    some = next(iter(norms.values()))
    found = [
        HeadChange(
            where,
            head,
            float(shares[row, column]),
            {circuit: float(values[row, column]) for circuit, values in last.items()},
            {circuit: float(values[row, column]) for circuit, values in last_ranks.items()},
        )
        for row, where in enumerate(some.layers)
        for column, head in enumerate(some.heads)
        if np.isfinite(shares[row, column]) and layer in (None, where)
    ]
    return tuple(sorted(found, key=lambda change: -change.learned))


def find_stages(run: "RunData") -> tuple[RunStage, ...]:
    """Drops of the loss, and rises of the stable rank of every layer, in order of time.

    A curve of fewer than 20 measurements shows no stages.
    """
    found: list[RunStage] = []
    for name in ("loss", "train_loss"):
        if run.has(name) and (loss := run.curve(name)).values.ndim == 1:  # not a loss for every head or layer
            found += _stages(loss.steps, loss.values, kind="loss")
            break
    for circuit in CIRCUITS:
        try:
            layers, steps, ranks = layer_means(run, "stable_rank", circuit)
        except NotMeasurable:
            continue
        for column, layer in enumerate(layers):
            rises = _stages(steps, -ranks[:, column], kind="rank", layer=layer, circuit=circuit)
            found += [rise for rise in rises if rise.size >= _MIN_RISE]
    return tuple(sorted(found, key=lambda stage: stage.step))


def _of_heads(run: "RunData", quantity: str, circuit: str) -> Curve | None:
    """The curve (S, layers, heads) of a quantity; None if heads have none."""
    if not run.has(quantity, circuit):
        return None
    curve = run.curve(quantity, circuit=circuit)
    return curve if curve.layers and curve.heads and not curve.index else None


def _mean_over_first(values: "Sequence[Array] | Array") -> Array:
    """The mean over the first axis of what is finite; NaN, without a warning, where nothing is."""
    array = np.asarray(values)
    there = np.isfinite(array)
    total, count = np.where(there, array, 0.0).sum(0), there.sum(0)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _last(curve: Curve) -> Array:
    """The last values (layers, heads) that are finite."""
    values = curve.values
    there = np.isfinite(values)
    last = len(values) - 1 - there[::-1].argmax(0)
    return np.asarray(np.take_along_axis(values, last[None], axis=0)[0])


def _stages(
    steps: Array, values: Array, *, kind: Literal["loss", "rank"], layer: int | None = None, circuit: str = ""
) -> list[RunStage]:
    there = np.isfinite(values)
    steps, values = thin(steps[there], values[there], _MOST_SAMPLES)
    if len(steps) < FEWEST:
        return []
    return [
        RunStage(kind, stage.midpoint, stage.start, stage.end, stage.size, stage.confidence, layer, circuit)
        for stage in detect_stages(steps, values).stages
    ]


def layer_means(run: "RunData", quantity: str, circuit: str) -> tuple[Sequence[int], Array, Array]:
    """Layers, steps (S,) and means over heads (S, layers) of a quantity of heads.

    A rank at step 0 is left out: nothing has changed there, and the rank of nothing is no point of a curve.

    Raises:
        NotMeasurable: Heads have no such quantity.
    """
    curve = _of_heads(run, quantity, circuit)
    if curve is None:
        raise NotMeasurable(f"{run.source} has no `{quantity}` of the heads' {circuit}.")
    means = [Curve(quantity, circuit, curve.steps, curve.values[:, row]).mean() for row in range(len(curve.layers))]
    kept = curve.steps > 0 if quantity in _RANKS else slice(None)
    return curve.layers, curve.steps[kept], np.stack(means, axis=1)[kept]


def whole_numbers(run: "RunData", most: int = 24) -> dict[str, Curve]:
    """The numbers of the model as a whole by name, the loss first: what the user logged, and what probes read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = run.table
    is_whole = pc.and_(pc.equal(table["layer"], -1), pc.and_(pc.equal(table["index"], -1), pc.equal(table["head"], -1)))
    part = table.filter(pc.and_(is_whole, pc.is_in(table["circuit"].cast(pa.string()), pa.array(_OF_THE_MODEL))))
    pairs = part.group_by(["quantity", "circuit"]).aggregate([])
    circuits = dict(zip(*(pairs[column].to_pylist() for column in ("quantity", "circuit")), strict=True))
    names = sorted(circuits, key=lambda name: (name not in ("loss", "train_loss"), name))[:most]
    curves = {name: run.curve(name, circuit=circuits[name], layer=-1) for name in names}
    return {name: curve for name, curve in curves.items() if curve.values.ndim == 1}
