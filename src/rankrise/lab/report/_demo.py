"""The demo: one small page with the α slider and the film of a spectrum, for someone who installs nothing."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankrise.lab.figures import build_figure
from rankrise.lab.report._environments import environment_of
from rankrise.lab.report._summary import environment_rows
from rankrise.view import asset, figure_json, render

_ASSETS = Path(__file__).parent / "assets"
_SHOWN = ("rankrise", "python", "accelerator", "packages")


def demo_data(runs: Mapping[str, Sequence[Path]], *, experiment: str = "vit-cifar10") -> dict[str, Any]:
    """The numbers of the demo, as JSON values.

    Args:
        runs: Folders by experiment: the family `toy-flow`, `toy-stages`, and `experiment`.
        experiment: Of the film; where it was run is said below the page.

    Raises:
        ValueError: Runs are missing.
    """
    toy = build_figure("toy_scales", runs)
    film = build_figure("spectrum_over_training", runs, experiment=experiment)
    environment = environment_of({experiment: runs[experiment]})
    return {
        "toy": {**figure_json(toy), "run": toy.run_sentence, "sources": toy.sources},
        "film": {**figure_json(film), "run": film.run_sentence, "sources": film.sources},
        "environment": [row for row in environment_rows(environment) if row[0] in _SHOWN],
    }


def write_demo(path: str | os.PathLike[str], data: Mapping[str, Any]) -> Path:
    """Write the page.

    Args:
        path: The file.
        data: Of `demo_data`.

    Returns:
        The path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("demo.css", "demo.js"))
    page = render(
        _ASSETS / "demo.html", styles=(asset("page.css"), style), scripts=(asset("chart.js") + script,), data=data
    )
    target.write_text(page, encoding="utf-8")
    return target
