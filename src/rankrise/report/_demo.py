"""The demo: one small page with the α slider and the film of a spectrum, for someone who installs nothing.

The numbers of real runs are inside the page, so that the page can be written again from itself when its looks change.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankrise.figures import FigureData, build_figure
from rankrise.report._json import figure_json
from rankrise.report._page import asset, render
from rankrise.report._summary import environment_rows

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', flags=re.S)
_SHOWN = ("rankrise", "python", "processor", "packages")


def demo_data(
    runs: Mapping[str, Sequence[Path]], environment: Mapping[str, object], *, experiment: str = "vit-digits"
) -> dict[str, Any]:
    """The numbers of the demo, as JSON values.

    Args:
        runs: Folders by experiment: the family `toy-flow`, `toy-stages`, and `experiment`.
        environment: Of the machine they were made on.
        experiment: Of the film.

    Raises:
        ValueError: Runs are missing.
    """
    toy = build_figure("toy_scales", runs)
    film = build_figure("spectrum_over_training", runs, experiment=experiment)
    made_on = [row for row in environment_rows(environment) if row[0] in _SHOWN]
    return {
        "toy": {**figure_json(toy), "run": _run(toy), "sources": toy.sources},
        "film": {**figure_json(film), "run": _run(film), "sources": film.sources},
        "environment": made_on,
    }


def _run(figure: FigureData) -> str:
    """What was run: the last sentence of a caption."""
    return figure.caption[figure.caption.index("Run: ") :]


def write_demo(path: str | os.PathLike[str], data: Mapping[str, Any]) -> Path:
    """Write the page.

    Args:
        path: The file.
        data: Of `demo_data`, or of `read_demo`.

    Returns:
        The path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(data))  # tuples are lists, as they are when the page is read again
    page = render(
        "demo.html", styles=("page.css", "demo.css"), scripts=(asset("chart.js") + asset("demo.js"),), data=plain
    )
    target.write_text(page, encoding="utf-8")
    return target


def read_demo(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The numbers inside a demo page.

    Raises:
        ValueError: It is no such page.
    """
    found = _DATA.search(Path(path).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path} must be a page of `write_demo`; it holds no data. Pass another file.")
    data: dict[str, Any] = json.loads(found[1])
    return data
