"""Stable rank of both changes over training, mean ± sd, layer by layer: [v1] 12, 14, 16; [v2] 4."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _networks as net
from rankrise.lab.figures import _words
from rankrise.lab.figures._data import Axis, FigureData, Order, Panel, Trace, numbers
from rankrise.lab.figures._runs import Runs, read_alike, read_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankrise.lab.experiments._run_data import RunData

ID = "stable_rank_over_training"
_MOST_NAMED = 8  # of more layers, three have a name and a band, and a scale of colours tells the others


def build(runs: Runs, *, experiment: str) -> FigureData:
    """`‖Δ‖_F² / ‖Δ‖₂²` of every layer against epochs; of a deep network, three have a label and a band.

    Args:
        runs: Folders by experiment.
        experiment: Which network.

    Raises:
        ValueError: It has no runs, or they differ in more than the seed.
    """
    found = read_experiment(runs, experiment, figure=ID)
    panels = tuple(_panel(found, circuit) for circuit in net.CIRCUITS)
    num_layers = len(panels[0].traces)
    named = _named(num_layers)
    whose = "" if len(named) == num_layers else ", drawn for layers " + ", ".join(str(i + 1) for i in named)
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Stable rank of the learned change: {_words.network_name(found[0])}",
        caption=(
            f"Stable rank of what training added to each head. {net.rise_words(_curves(found))}"
            f"{net.at_init(found)}Lines: mean over heads "
            f"{net.band_words(found)}{whose}. {_words.describe(found)}"
        ),
        panels=panels,
        rows=1,
        cols=2,
        sources=tuple(run.source for run in found),
        order=Order("layer", tuple((net.depth(i, num_layers), str(i + 1)) for i in named)) if whose else None,
    )


def _curves(found: "Sequence[RunData]") -> "dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]":
    """Steps after the start, and stable ranks, mean over heads and seeds, (S, layers), by circuit."""
    curves = {}
    for circuit in net.CIRCUITS:
        ranks = read_alike(found, "stable_rank", circuit)
        later = ranks[0].steps > 0
        means = np.mean([part.values[later, :, :, 0].mean(-1) for part in ranks], axis=0)
        curves[circuit] = (ranks[0].steps[later], means)
    return curves


def _named(num_layers: int) -> list[int]:
    """Layers with a label and a band: all, or the first, the middle one and the last.

    >>> _named(3), _named(12)
    ([0, 1, 2], [0, 5, 11])
    """
    return list(range(num_layers)) if num_layers <= _MOST_NAMED else net.spread_layers(num_layers)


def _panel(found: "Sequence[RunData]", circuit: str) -> Panel:
    ranks = read_alike(found, "stable_rank", circuit)
    steps = ranks[0].steps
    moved = steps > 0  # at the start nothing has changed
    times = net.epochs(found[0], steps[moved])
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
                low=numbers(np.maximum(low, 1.0)) if is_named else None,  # no matrix has less
                high=high if is_named else None,
                label=name if is_named else "",
                group=name,
                level=net.depth(layer, num_layers),
                at_end=is_named,
            )
        )
    return Panel(
        net.CIRCUITS[circuit],
        Axis(net.time_label(found[0]), low=0, high=float(times[-1])),
        Axis("stable rank", low=1),
        tuple(traces),
    )
