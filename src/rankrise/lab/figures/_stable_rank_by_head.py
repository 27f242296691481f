"""Final stable rank of both changes, head by layer: what the means of the other figures are means of."""

import numpy as np

from rankrise.lab.figures import _networks as net
from rankrise.lab.figures import _words
from rankrise.lab.figures._data import Axis, Cells, FigureData, Panel, numbers
from rankrise.lab.figures._runs import Runs, read_alike, read_experiment

ID = "stable_rank_by_head"


def build(runs: Runs, *, experiment: str) -> FigureData:
    """A heat map of the last stable rank of each head; of several seeds, their mean.

    Args:
        runs: Folders by experiment.
        experiment: Which network.

    Raises:
        ValueError: It has no runs, or they differ in more than the seed.
    """
    found = read_experiment(runs, experiment, figure=ID)
    panels = []
    for circuit, title in net.CIRCUITS.items():
        means = np.mean([part.values[-1, :, :, 0] for part in read_alike(found, "stable_rank", circuit)], axis=0)
        cells = Cells(
            rows=tuple(f"layer {i + 1}" for i in range(means.shape[0])),
            cols=tuple(f"{h + 1}" for h in range(means.shape[1])),
            values=tuple(numbers(row) for row in means),
            label="stable rank",
        )
        panels.append(Panel(title, Axis("head"), Axis(""), cells=cells))
    ends = [value for panel in panels if panel.cells for row in panel.cells.values for value in row]
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Stable rank of the learned change, head by head: {_words.network_name(found[0])}",
        caption=(
            f"Stable rank of the change at the end of training, from {min(ends):.1f} to {max(ends):.1f}. "
            f"The other figures show means over rows of these. {_words.describe(found)}"
        ),
        panels=tuple(panels),
        rows=1,
        cols=2,
        sources=tuple(run.source for run in found),
    )
