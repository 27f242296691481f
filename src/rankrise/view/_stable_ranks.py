"""Stable ranks of both changes of one network: over training ([v1] 12, 14, 16; [v2] 4), and head by head at the end."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.runs import read_alike
from rankrise.view import _networks as net
from rankrise.view._figure import Axis, Cells, FigureData, Order, Panel, Trace, is_finite, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankrise.runs import RunData

_MOST_NAMED = 8  # if there are more layers, three have a name and a band, and a scale of colours shows the others


def stable_rank_over_training(
    runs: "Sequence[RunData]", *, name: str = "", network: str = "", about: str = ""
) -> FigureData:
    """`‖Δ‖_F² / ‖Δ‖₂²` of every layer against epochs; in a deep network, three layers have a label and a band.

    Args:
        runs: Runs that differ in their seed only.
        name: The name of the experiment; a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.

    Raises:
        NotMeasurable: A run has no stable ranks, or the runs were recorded at different steps.
    """
    panels = tuple(_panel(runs, circuit) for circuit in net.CIRCUITS)
    num_layers = len(panels[0].traces)
    named = _named(num_layers)
    whose = "" if len(named) == num_layers else ", drawn for layers " + ", ".join(str(i) for i in named)
    return FigureData(
        id="stable_rank_over_training",
        experiment=name,
        title=net.titled("Stable rank of the learned change", network),
        text=(
            f"Stable rank of what training added to each head. {net.rise_words(_curves(runs))}"
            f"{net.at_init(runs)}Lines: mean over heads {net.band_words(runs)}{whose}."
        ),
        run=about,
        panels=panels,
        rows=1,
        cols=2,
        sources=tuple(run.source for run in runs),
        order=Order("layer", tuple((net.depth_level(i, num_layers), str(i)) for i in named)) if whose else None,
    )


def stable_rank_by_head(runs: "Sequence[RunData]", *, name: str = "", network: str = "", about: str = "") -> FigureData:
    """A heat map of the last stable rank of each head, as the mean over seeds.

    Args:
        runs: Runs that differ in their seed only.
        name: The name of the experiment; a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.

    Raises:
        NotMeasurable: A run has no stable ranks, or the runs were recorded at different steps.
    """
    panels = []
    for circuit, words in net.CIRCUITS.items():
        means = np.mean([part.values[-1, :, :, 0] for part in read_alike(runs, "stable_rank", circuit)], axis=0)
        cells = Cells(
            rows=tuple(net.layer_name(i) for i in range(means.shape[0])),
            cols=tuple(f"{h}" for h in range(means.shape[1])),
            values=tuple(numbers(row) for row in means),
            label="stable rank",
        )
        panels.append(Panel(words.change, Axis("head"), Axis(""), cells=cells))
    ends = [value for panel in panels if panel.cells for row in panel.cells.values for value in row if is_finite(value)]
    return FigureData(
        id="stable_rank_by_head",
        experiment=name,
        title=net.titled("Stable rank of the learned change, head by head", network),
        text=(
            f"Stable rank of the change at the end of training, from {min(ends):.1f} to {max(ends):.1f}. "
            "The other figures show means over rows of these."
        ),
        run=about,
        panels=tuple(panels),
        rows=1,
        cols=2,
        sources=tuple(run.source for run in runs),
    )


def _curves(runs: "Sequence[RunData]") -> "dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]":
    """By circuit: the steps after the start (S,), and stable ranks (S, layers), mean over heads and seeds."""
    curves = {}
    for circuit in net.CIRCUITS:
        ranks = read_alike(runs, "stable_rank", circuit)
        later = ranks[0].steps > 0
        means = np.mean([net.mean_over_heads(part.values[later, :, :, 0]) for part in ranks], axis=0)
        curves[circuit] = (ranks[0].steps[later], means)
    return curves


def _named(num_layers: int) -> list[int]:
    """The layers with a label and a band: all of a few layers, or else the first, the middle one and the last.

    >>> _named(3), _named(12)
    ([0, 1, 2], [0, 5, 11])
    """
    return list(range(num_layers)) if num_layers <= _MOST_NAMED else net.spread_layers(num_layers)


def _panel(runs: "Sequence[RunData]", circuit: str) -> Panel:
    ranks = read_alike(runs, "stable_rank", circuit)
    steps = ranks[0].steps
    moved = steps > 0  # at the start nothing has changed
    times = net.epochs(runs[0], steps[moved])
    num_layers = ranks[0].values.shape[1]
    traces = []
    for layer in range(num_layers):
        mean, low, high = net.mean_and_band([r.values[moved, layer, :, 0] for r in ranks])
        name = net.layer_name(layer)
        is_named = layer in _named(num_layers)
        traces.append(
            Trace(
                x=numbers(times),
                y=mean,
                low=numbers(np.maximum(low, 1.0)) if is_named else None,  # no matrix has a smaller stable rank
                high=high if is_named else None,
                label=name if is_named else "",
                group=name,
                level=net.depth_level(layer, num_layers),
                at_end=is_named,
            )
        )
    return Panel(
        net.CIRCUITS[circuit].change,
        Axis(net.time_label(runs[0]), low=0, high=float(times[-1])),
        Axis("stable rank", low=1),
        tuple(traces),
    )
