"""A quantity over training as an array with one axis for each thing that was measured: layers, heads, entries."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rankrise._arguments import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[np.float64]]
MOST_ENTRIES = 16_000_000  # most entries of an array with gaps, such as perturbations that have steps of their own
_MOST_NAMES = 24  # most names that a message lists
Gaps = Literal["none", "tail", "heads"]
Gaps.__doc__ = (
    "What may be missing from a recorded quantity: nothing, the tail of every spectrum, or whole heads of a step."
)


class NotMeasurable(ValueError):
    """The run exists, but its table lacks what was asked for; the message says what is missing."""


@dataclass(frozen=True)
class Curve:
    """One quantity over training.

    Attributes:
        quantity: The name of the quantity, such as "stable_rank" or "loss".
        circuit: "kq", "vo", or a whole matrix such as "q"; empty for a number of the model as a whole.
        steps: When it was measured, (S,).
        values: What was measured, (S, layers, heads, index). An axis is missing if one place on it was chosen or if the
            quantity has no such places. NaN where nothing was measured.
        layers: What the axis of layers counts; empty if there is none.
        heads: What the axis of heads counts; empty if there is none.
        index: What the axis of entries counts; empty if there is none.
    """

    quantity: str
    circuit: str
    steps: Array
    values: Array
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    index: tuple[int, ...] = ()

    def mean(self) -> Array:
        """The mean over everything but the steps, (S,), leaving out what was not measured."""
        flat = self.values.reshape(len(self.steps), -1)
        there = np.isfinite(flat)
        total = np.where(there, flat, 0.0).sum(1)
        return np.asarray(np.divide(total, there.sum(1), out=np.full(len(flat), np.nan), where=there.any(1)))


def read_curve(
    table: "pa.Table", quantity: str, *, circuit: str | None, layer: int | None, head: int | None, source: str
) -> Curve:
    """Read one quantity from a long table.

    Args:
        table: The table of a run.
        quantity: The name of the quantity.
        circuit: The circuit; None if the quantity was measured in one circuit only.
        layer: One layer, counted from 0; None for all.
        head: One head, counted from 0; None for all.
        source: The name of the run, for messages.

    Raises:
        NotMeasurable: The run has no such quantity, circuit, layer or head; the message lists what it has.
    """
    import pyarrow.compute as pc

    part = table.filter(pc.equal(table["quantity"], quantity))
    if not part.num_rows:
        names = pc.unique(table["quantity"]).to_pylist()
        raise NotMeasurable(f"{source} has no quantity {quantity!r:.80}. {_known(quantity, names)}")
    circuits = pc.unique(part["circuit"]).to_pylist()
    if circuit is None and len(circuits) > 1:
        known = _list(circuits)
        raise NotMeasurable(f"`circuit` must say which `{quantity:.80}` is meant; {source} has {known}.")
    chosen = circuits[0] if circuit is None else circuit
    if chosen not in circuits:
        raise NotMeasurable(f"{source} has no `{quantity:.80}` of circuit {chosen!r:.80}. {_known(chosen, circuits)}")
    part = part.filter(pc.equal(part["circuit"], chosen))
    for name, place in (("layer", layer), ("head", head)):
        if place is not None:
            there = pc.unique(part[name]).to_pylist()
            if place not in there:
                raise NotMeasurable(f"{source} has no `{quantity:.80}` of {name} {place}; it has {_range(there)}.")
            part = part.filter(pc.equal(part[name], place))
    return _dense(part, quantity, chosen, layer=layer, head=head)


def _dense(part: "pa.Table", quantity: str, circuit: str, *, layer: int | None, head: int | None) -> Curve:
    """The rows as an array with an axis for each column that counts something. Of rows given twice the last counts."""
    columns = [part[name].to_numpy() for name in ("step", "layer", "head", "index")]
    found = [np.unique(column, return_inverse=True) for column in columns]
    shape_of_all = [len(places) for places, _ in found]
    if math.prod(shape_of_all) > max(MOST_ENTRIES, 4 * part.num_rows):  # checked before anything of this size is made
        what = f"`{quantity:.80}` of {circuit!r:.80}"
        raise NotMeasurable(f"The run has {what} at places that fit into no array: run it again.")
    values: Array = np.full(shape_of_all, np.nan)
    values[tuple(place for _, place in found)] = part["value"].to_numpy()
    steps, *places = (tuple(int(place) for place in places) for places, _ in found)
    is_axis = [names != (-1,) and chosen is None for names, chosen in zip(places, (layer, head, None), strict=True)]
    shape = [len(steps), *(len(names) for names, kept in zip(places, is_axis, strict=True) if kept)]
    layers, heads, index = (names if kept else () for names, kept in zip(places, is_axis, strict=True))
    return Curve(quantity, circuit, np.array(steps, dtype=np.float64), values.reshape(shape), layers, heads, index)


def _known(name: str, names: list[str]) -> str:
    return f"It has {_list(names)}. {did_you_mean(name, names)}".rstrip() if names else "It has recorded nothing yet."


def _list(names: list[str]) -> str:
    """The names in quotes. A stranger's table may hold many and long ones: these are cut."""
    shown = ", ".join(f"{name!r:.40}" for name in sorted(names)[:_MOST_NAMES])
    return f"{shown} and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else shown


def _range(places: list[int]) -> str:
    low, high = min(places), max(places)
    if high < 0:
        return "none"
    return f"{low} to {high}" if high > low else str(low)


def whole_steps(part: "pa.Table") -> "pa.Table":
    """The rows of those steps at which as many places were recorded as at any other step."""
    steps, where = np.unique(part["step"].to_numpy(), return_inverse=True)
    counts = np.bincount(where, minlength=len(steps))
    return part.filter((counts == counts.max())[where])


def is_whole(there: "np.ndarray[Any, np.dtype[np.bool_]]", gaps: Gaps) -> bool:
    """Whether nothing is missing that must be there; the axes are step, layer, head and index."""
    if gaps == "none":
        return bool(there.all())
    if gaps == "heads":
        return bool((there == there[:, :1, :, :1]).all())
    return bool((there == there[:, :1, :1]).all() and (there[..., 1:] <= there[..., :-1]).all())
