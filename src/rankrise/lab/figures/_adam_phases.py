"""Where Adam has stages: for each β₂ a table over ε and α, of how many coordinates are active at half of the fall."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.claims import adam_cases
from rankrise.lab.figures import _toy_paths as toy
from rankrise.lab.figures._descriptions import describe
from rankrise.lab.figures._runs import read_experiment
from rankrise.view import Axis, Cells, FigureData, Panel, numbers

if TYPE_CHECKING:
    from rankrise.lab.figures._runs import Runs

ID = "adam_phases"
_EXPERIMENT = "toy-adam-phases"
_SHARE = "% of coordinates active at half of the fall"


def build(runs: "Runs") -> FigureData:
    """A table for each β₂; numbers are means over seeds.

    Args:
        runs: Folders by experiment: `toy-adam-phases`.

    Raises:
        ValueError: There are no runs.
    """
    found = read_experiment(runs, _EXPERIMENT, figure=ID)
    spec = found[0].spec
    shares = 100 * np.mean([adam_cases(run) for run in found], axis=0)  # (β₂, ε, α), in %
    rows = tuple(f"{epsilon:g}" for epsilon in spec["epsilons"])
    columns = tuple(toy.alpha(value) for value in spec["log10_alphas"])
    panels = [
        Panel(
            f"β₂ = {beta2:g}",
            Axis("initial scale"),
            Axis("Adam's ε"),
            cells=Cells(rows, columns, tuple(numbers(row) for row in table), _SHARE),
        )
        for beta2, table in zip(spec["beta2s"], shares, strict=True)
    ]
    return FigureData(
        id=ID,
        title="Adam learns everything at once, unless its ε is large",
        text=(
            "A head with 8 weights, trained by Adam from small weights. Each number is the percentage of the "
            "coordinates that are active when half of the fall of the loss is done: 100 where all start at once, and "
            "small where they are learned one after another, as by the flow. Gradients are of the size of the weights; "
            "while they are far below ε, Adam is descent with momentum."
        ),
        run=describe(found).words,
        panels=tuple(panels),
        rows=1,
        cols=len(panels),
        sources=tuple(run.source for run in found),
    )
