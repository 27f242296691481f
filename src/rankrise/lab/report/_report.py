"""The pages of the laboratory: the report of a reproduction, and the demo for someone who installs nothing.

The report is one page with everything that was run, the verdicts and the figures. The demo is a small page with the
slider of α and the film of a spectrum.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankrise.lab.claims import Verdict, outcomes
from rankrise.lab.figures import build_figure
from rankrise.lab.report._summary import (
    claim_groups,
    counts,
    environment_of,
    environment_rows,
    ran,
    run_rows,
    verdict_rows,
)
from rankrise.store import replacing
from rankrise.view import FigureData, Panel, asset, colour_ramps, figure_json, plotly_script, render, save_figure

_ASSETS = Path(__file__).parent / "assets"
_FIRST = ("toy_scales", "stable_rank_over_training", "stable_rank_by_scale")  # the figures that tell the story
_SHOWN = ("rankrise", "python", "accelerator", "packages")  # rows of the environment below the demo


def write_report(
    out: str | os.PathLike[str],
    figures: Sequence[FigureData],
    verdicts: Sequence[Verdict],
    runs: Mapping[str, Sequence[Path]],
    environment: Mapping[str, object],
    *,
    title: str = "rankrise: reproduction report",
) -> Path:
    """Write `index.html`, which opens offline and needs no other file, and below `figures/` every figure as files.

    The page begins with what came out: a sentence for each topic of the claims, and three figures.

    Each file is replaced as a whole, so that two processes that write the same report leave a whole report. If plotly
    is installed, the figures of the page can be zoomed and hovered; otherwise they are SVG, and the page says so.

    Args:
        out: The folder of the report, which is made if it does not exist.
        figures: The figures, in the order of the page.
        verdicts: What `rankrise.lab.claims.evaluate_claims` returned.
        runs: Folders by experiment; the page links to them.
        environment: Hardware and versions of the machine that made the runs, as `environment_of` gives them.
        title: The title of the page.

    Returns:
        The path of the page.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    saved = [save_figure(figure, folder / "figures") for figure in figures]
    plotly = plotly_script()
    pictures = [None if plotly else _inline(svg.read_text(encoding="utf-8")) for svg, _, _ in saved]
    words = [_words(i, figure, picture) for i, (figure, picture) in enumerate(zip(figures, pictures, strict=True))]
    first = _first(figures)
    page = render(
        _ASSETS / "report.html",
        styles=(asset("page.css"), asset("figures.css"), (_ASSETS / "report.css").read_text(encoding="utf-8")),
        scripts=() if plotly is None else (plotly, asset("figures.js")),
        data={"figures": [figure_json(figure) for figure in figures], "ramps": colour_ramps()} if plotly else None,
        title=title,
        is_interactive=plotly is not None,
        ran=ran(runs, verdicts),
        outcomes=outcomes(verdicts) if verdicts else (),
        first=[words[i] for i in first],
        figures=[words[i] for i in range(len(words)) if i not in first],
        groups=claim_groups(verdicts, runs),
        untested=verdict_rows([v for v in verdicts if v.verdict == "not tested"]),
        counts=counts(verdicts),
        experiments=run_rows(runs, folder),
        environment=environment_rows(environment),
    )
    target = folder / "index.html"
    with replacing(target, "report") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def _first(figures: Sequence[FigureData]) -> list[int]:
    """The places of the figures that the page begins with: of each kind in `_FIRST` the first there is."""
    ids = [figure.id for figure in figures]
    return [ids.index(name) for name in _FIRST if name in ids]


def _words(place: int, figure: FigureData, picture: Any) -> dict[str, Any]:
    """What the template writes about a figure; its script finds it by its place."""
    return {
        "place": place,
        "look_at": figure.look_at,
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "sources": figure.sources,
        "picture": picture,
        "files": {kind: f"./figures/{_quoted(figure.name)}.{kind}" for kind in ("csv", "svg", "png")},
    }


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _inline(svg: str) -> Any:
    """The text of an SVG file as an element of the page; its labels are paths, so they hold no markup."""
    from markupsafe import Markup

    return Markup(svg[svg.index("<svg") :])


def demo_data(runs: Mapping[str, Sequence[Path]], *, experiment: str = "vit-cifar10") -> dict[str, Any]:
    """The numbers of the demo, as JSON values.

    Args:
        runs: Folders by experiment: the family `toy-flow`, `toy-stages`, and `experiment`.
        experiment: The experiment of the film; the demo names the machine that ran it.

    Raises:
        ValueError: Runs are missing.
    """
    toy = build_figure("toy_scales", runs)
    film = build_figure("spectrum_over_training", runs, experiment=experiment)
    environment = environment_of({experiment: runs[experiment]})
    return {
        "toy": {**figure_json(toy), "run": toy.run_sentence, "sources": toy.sources},
        "film": {**figure_json(film), "run": film.run_sentence, "sources": film.sources, "layer": _rising(film)},
        "environment": [row for row in environment_rows(environment) if row[0] in _SHOWN],
    }


def _rising(film: FigureData) -> int:
    """The layer whose spectrum fills up most during the film, as its place among the panels of one circuit.

    The measure is Σ (σ_i / σ_1)² over the values that are shown, which is the stable rank if all are.
    """

    def rise(panel: Panel) -> float:
        times = [trace for trace in panel.traces if trace.level is not None]
        first, last = (sum(y * y for y in trace.y) for trace in (times[0], times[-1]))
        return last - first

    layers = range(len(film.panels) // 2)  # the panels of one circuit come before those of the other
    return max(layers, key=lambda layer: rise(film.panels[layer]) + rise(film.panels[layer + len(layers)]))


def write_demo(path: str | os.PathLike[str], data: Mapping[str, Any]) -> Path:
    """Write the page of the demo.

    Args:
        path: The file to write.
        data: What `demo_data` returned.

    Returns:
        The path of the file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("demo.css", "demo.js"))
    page = render(
        _ASSETS / "demo.html", styles=(asset("page.css"), style), scripts=(asset("chart.js") + script,), data=data
    )
    with replacing(target, "report") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target
