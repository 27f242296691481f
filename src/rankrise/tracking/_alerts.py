"""Alerts: what a tracker says, once, when the ranks of a run do what they should not.

A rule looks at the last measurements only and keeps nothing, so a resumed run raises exactly the alerts of an
uninterrupted one. What it found is an `Alert`, which `rankrise.store` keeps in the table of the run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from rankrise.heads import CIRCUITS as ROLES_OF_CIRCUITS
from rankrise.store import Alert

Array = np.ndarray[Any, np.dtype[np.float64]]
CIRCUITS = tuple(ROLES_OF_CIRCUITS)  # "kq" and "vo"


@dataclass(frozen=True)
class Trace:
    """The last measurements of all heads, oldest first.

    Attributes:
        steps: When they were made, (n,).
        layers: What the axis of layers counts.
        values: Arrays (n, 2, layers, heads) by quantity, for circuits "kq" and "vo"; NaN where nothing was measured.
    """

    steps: tuple[int, ...]
    layers: tuple[int, ...]
    values: Mapping[str, Array]

    def alert(self, name: str, layer: int, head: int, circuit: int | None, value: float, reference: float) -> Alert:
        """An alert at the last step; layer and circuit are places on their axes, head is -1 for the whole layer."""
        return Alert(
            name,
            self.steps[-1],
            self.layers[layer],
            int(head),
            "" if circuit is None else CIRCUITS[circuit],
            float(value),
            float(reference),
        )


class AlertRule(Protocol):
    """Looks for something in the last measurements."""

    @property
    def name(self) -> str:
        """The name of what it looks for: the quantity of its rows in the table."""

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities of heads that it looks at; the measurements that count are those that have all of them."""

    @property
    def window(self) -> int:
        """How many measurements it looks at; it is not asked before there are so many."""

    def find(self, trace: Trace) -> Iterable[Alert]:
        """What is out of order at the last step of the trace, whether or not it was said before."""


@dataclass(frozen=True)
class RankCollapse:
    """The effective rank of what a layer has learned falls to a share of what it was a few spectra before.

    The number is the effective rank of Δ of a circuit, mean over the heads of the layer. It is compared with the
    largest one among the `window` measurements of spectra that come before. Measurements at which Δ was still much
    smaller do not count, because a change that has just begun is noise, whose rank is high.

    Args:
        share: An alert is raised if the effective rank is below this share of the largest one.
        window: How many measurements to look back.
        least_size: ‖Δ‖_F of the layer at a measurement that counts, as a share of the largest before the last one.
    """

    share: float = 0.4
    window: int = 4
    least_size: float = 0.3
    name: ClassVar[str] = "rank_collapse"
    quantities: ClassVar[tuple[str, ...]] = ("effective_rank", "frobenius_norm")

    def find(self, trace: Trace) -> Iterator[Alert]:
        """Circuits of layers whose effective rank has collapsed at the last step."""
        means = mean_over_heads(trace.values["effective_rank"])  # (n, 2, layers)
        sizes = mean_over_heads(trace.values["frobenius_norm"])[:-1]
        counts = sizes >= self.least_size * np.fmax.reduce(sizes)
        now, before = means[-1], np.fmax.reduce(np.where(counts, means[:-1], np.nan))
        for circuit, layer in np.argwhere(now < self.share * before):
            yield trace.alert(self.name, layer, -1, circuit, now[circuit, layer], before[circuit, layer])


@dataclass(frozen=True)
class RankOneSpike:
    """The change of a head is overtaken by one direction within a measurement.

    The largest singular value of Δ of a circuit was nearly steady over the window and jumps to several times its
    largest value there, and the stable rank is then nearly 1. A change that grows fast because it has just begun is not
    steady.

    Args:
        jump: The least ratio of the singular value to the largest one in the window before.
        most_rank: The largest stable rank that a spike may have.
        steady: The most that the singular value may vary in the window before the spike: its largest value over its
            smallest one.
        window: How many measurements to look at, the last one included.
    """

    jump: float = 3.0
    most_rank: float = 1.2
    steady: float = 1.5
    window: int = 4
    name: ClassVar[str] = "rank_one_spike"
    quantities: ClassVar[tuple[str, ...]] = ("stable_rank", "spectral_norm")

    def find(self, trace: Trace) -> Iterator[Alert]:
        """Heads with a spike at the last step."""
        ranks, norms = trace.values["stable_rank"], trace.values["spectral_norm"]
        most, least = np.fmax.reduce(norms[:-1]), np.fmin.reduce(norms[:-1])
        found = (norms[-1] > self.jump * most) & (most <= self.steady * least) & (least > 0)
        found &= ranks[-1] <= self.most_rank
        for circuit, layer, head in np.argwhere(found):
            yield trace.alert(
                self.name, layer, head, circuit, norms[-1, circuit, layer, head], most[circuit, layer, head]
            )


@dataclass(frozen=True)
class StalledHead:
    """A head stands still while the others go on.

    How much a head moves is the sum of |‖Δ‖_F now − ‖Δ‖_F before| over the window, as a share of ‖Δ‖_F, and the larger
    of both circuits. It is compared with that of the median head of the model. A head that never moved counts as one
    that stands still.

    Args:
        share: An alert is raised if a head moves less than this share of what the median head moves.
        least: Nothing is said while the median head moves less than this, because then training as a whole is over.
        window: How many measurements to look at.
    """

    share: float = 0.05
    least: float = 0.01
    window: int = 6
    name: ClassVar[str] = "stalled_head"
    quantities: ClassVar[tuple[str, ...]] = ("frobenius_norm",)

    def find(self, trace: Trace) -> Iterator[Alert]:
        """Heads that have stopped learning by the last step."""
        norms = trace.values["frobenius_norm"]
        path = np.abs(np.diff(norms, axis=0)).sum(0)
        moved = np.fmax.reduce(np.divide(path, norms[-1], out=np.zeros_like(path), where=~(norms[-1] == 0)))
        there = moved[np.isfinite(moved)]
        median = float(np.median(there)) if len(there) else math.nan
        if not median >= self.least:
            return
        for layer, head in np.argwhere(moved < self.share * median):
            yield trace.alert(self.name, layer, head, None, moved[layer, head], median)


def mean_over_heads(values: Array) -> Array:
    """The mean over the last axis of what is finite; NaN where nothing is."""
    there = np.isfinite(values)
    count = there.sum(-1)
    total = np.where(there, values, 0.0).sum(-1)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))
