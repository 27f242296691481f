"""Stable rank of both changes over training, mean ± sd, layer by layer: [v1] 12, 14, 16; [v2] 4."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.figures import _networks as net
from rankrise.figures._data import Axis, FigureData, Panel, Trace, numbers
from rankrise.figures._runs import RunData, Runs, read_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

ID = "stable_rank_over_training"


def build(runs: Runs, *, experiment: str) -> FigureData:
    """`‖Δ‖_F² / ‖Δ‖₂²` of every layer against epochs.

    Args:
        runs: Folders by experiment.
        experiment: Which network.

    Raises:
        ValueError: It has no runs, or they differ in more than the seed.
    """
    found = read_experiment(runs, experiment, figure=ID)
    panels = tuple(_panel(found, circuit) for circuit in net.CIRCUITS)
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Stable rank of the learned change: {net.network_name(found[0])}",
        caption=(
            "Stable rank of what training added to each head. From the first measurement to the last it rises in "
            f"{net.count_rising(panels)} layers. {net.at_init(found)}Lines: mean over heads "
            f"{net.band_words(found)}. {net.describe(found)}"
        ),
        panels=panels,
        rows=1,
        cols=2,
        sources=tuple(run.source for run in found),
    )


def _panel(found: "Sequence[RunData]", circuit: str) -> Panel:
    ranks = [run.dense("stable_rank", circuit) for run in found]
    steps = ranks[0].steps
    moved = steps > 0  # at the start nothing has changed
    times = net.epochs(found[0], steps[moved])
    num_layers = ranks[0].values.shape[1]
    traces = []
    for layer in range(num_layers):
        mean, low, high = net.mean_and_band([r.values[moved, layer, :, 0] for r in ranks])
        name = net.layer_name(layer)
        traces.append(
            Trace(
                x=numbers(times),
                y=mean,
                low=numbers(np.maximum(low, 1.0)),  # no matrix has less
                high=high,
                label=name,
                group=name,
                level=net.depth(layer, num_layers),
                at_end=True,
            )
        )
    return Panel(
        net.CIRCUITS[circuit],
        Axis(net.time_label(found[0]), low=0, high=float(times[-1])),
        Axis("stable rank", low=1),
        tuple(traces),
    )
