"""The report: one page with everything that was run, what came out, and the figures."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankrise.lab.report._summary import VerdictLike, claim_groups, counts, environment_rows, run_rows, verdict_rows
from rankrise.store import replacing
from rankrise.view import FigureData, asset, colour_ramps, figure_json, plotly_script, render, save_figure

_ASSETS = Path(__file__).parent / "assets"


def write_report(
    out: str | os.PathLike[str],
    figures: Sequence[FigureData],
    verdicts: Sequence[VerdictLike],
    runs: Mapping[str, Sequence[Path]],
    environment: Mapping[str, object],
    *,
    title: str = "rankrise: reproduction report",
) -> Path:
    """Write `index.html`, which opens offline and needs no other file, and below `figures/` every figure as files.

    Each file is replaced as a whole: two processes that write the same report leave a whole one.
    With plotly installed the figures can be zoomed and hovered; without, they are SVG, and the page says so.

    Args:
        out: A folder; made if it is not there.
        figures: In the order of the page.
        verdicts: Of `rankrise.lab.claims`.
        runs: Folders by experiment; linked to.
        environment: Of `rankrise.store.environment()`, or of the machine the runs were made on.
        title: Of the page.

    Returns:
        The path of the page.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    saved = [save_figure(figure, folder / "figures") for figure in figures]
    plotly = plotly_script()
    pictures = [None if plotly else _inline(svg.read_text(encoding="utf-8")) for svg, _, _ in saved]
    page = render(
        _ASSETS / "report.html",
        styles=(asset("page.css"), (_ASSETS / "report.css").read_text(encoding="utf-8")),
        scripts=() if plotly is None else (plotly, asset("figures.js")),
        data={"figures": [figure_json(figure) for figure in figures], "ramps": colour_ramps()} if plotly else None,
        title=title,
        is_interactive=plotly is not None,
        figures=[_words(figure, picture) for figure, picture in zip(figures, pictures, strict=True)],
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


def _words(figure: FigureData, picture: Any) -> dict[str, Any]:
    """What the template writes of a figure."""
    return {
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
    """A file of matplotlib as an element: glyphs are paths, so that labels are no markup."""
    from markupsafe import Markup

    return Markup(svg[svg.index("<svg") :])
