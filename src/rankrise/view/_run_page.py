"""Any run, or several, as one self-contained page: what was learned, every figure that can be made, and advice."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankrise.runs import NotMeasurable, compare
from rankrise.view._colours import colour_ramps
from rankrise.view._draw import draw
from rankrise.view._figure import FigureData
from rankrise.view._json import figure_json
from rankrise.view._page import asset, plotly_script, render
from rankrise.view._run_figures import RUN_FIGURES, figure_of_comparison, figure_of_run
from rankrise.view._run_summary import ENERGY, RunSummary, compared_ranks

if TYPE_CHECKING:
    from rankrise.runs import Comparison, RunData

_TEMPLATE = Path(__file__).parent / "assets" / "run.html"


class RunGallery(NamedTuple):
    """The figures of a run, or of several side by side.

    Attributes:
        figures: Those that could be made.
        missing: Why a figure could not be made, by its name.
    """

    figures: tuple[FigureData, ...]
    missing: Mapping[str, str]


def run_gallery(run: "RunData") -> RunGallery:
    """Make every figure of one run that can be made."""
    return _gallery({name: lambda name=name: figure_of_run(name, run) for name in RUN_FIGURES})


def comparison_gallery(comparison: "Comparison") -> RunGallery:
    """Make every figure of several runs side by side that can be made."""
    several = [name for name, figure in RUN_FIGURES.items() if figure.of != "one"]
    return _gallery({name: lambda name=name: figure_of_comparison(name, comparison) for name in several})


def _gallery(builders: Mapping[str, Any]) -> RunGallery:
    figures, missing = [], {}
    for name, build in builders.items():
        try:
            figures.append(build())
        except NotMeasurable as error:
            missing[name] = str(error)
    return RunGallery(tuple(figures), missing)


def run_page(summaries: Sequence[RunSummary]) -> str:
    """One page that opens offline, with the tables and figures of runs and, if there are several, their comparison.

    The figures can be zoomed and hovered if plotly is installed; otherwise matplotlib draws them.

    Args:
        summaries: What `summarise` returned, one for each run.

    Raises:
        ModuleNotFoundError: jinja2 is not installed, or neither plotly nor matplotlib is.
    """
    plotly = plotly_script()
    drawn: list[FigureData] = []
    labels = compare([summary.run for summary in summaries])
    sections = []
    for summary in summaries:
        gallery = run_gallery(summary.run)
        sections.append({**_words(summary), **_pictures(gallery, drawn, is_interactive=plotly is not None)})
    beside = None
    if len(summaries) > 1:
        lines = compared_ranks(dict(zip(labels.runs, summaries, strict=True)))
        beside = {"lines": lines, **_pictures(comparison_gallery(labels), drawn, is_interactive=plotly is not None)}
    return render(
        _TEMPLATE,
        styles=(asset("page.css"), asset("figures.css"), asset("run.css")),
        scripts=() if plotly is None else (plotly, asset("figures.js")),
        data={"figures": [figure_json(figure) for figure in drawn], "ramps": colour_ramps()} if plotly else None,
        title=summaries[0].overview.source if len(summaries) == 1 else f"{len(summaries)} runs",
        is_interactive=plotly is not None,
        energy=f"{ENERGY:.0%}",
        sections=sections,
        beside=beside,
    )


def _words(summary: RunSummary) -> dict[str, Any]:
    """What the template writes about a run beside its figures."""
    return {
        "source": summary.overview.source,
        "headline": summary.overview.words,
        "is_empty": summary.is_empty,
        "layers": summary.layer_rows(),
        "heads": summary.head_rows(),
        "heads_missing": summary.heads_missing,
        "ranks": summary.rank_rows(),
        "ranks_missing": summary.advice_missing,
        "remarks": summary.remarks(),
    }


def _pictures(gallery: RunGallery, drawn: list[FigureData], *, is_interactive: bool) -> dict[str, Any]:
    """What the template writes about figures; each is appended to `drawn`, where the script finds it by its place."""
    figures = []
    for figure in gallery.figures:
        figures.append(
            {
                "place": len(drawn),
                "title": figure.title,
                "look_at": figure.look_at,
                "caption": figure.caption,
                "picture": None if is_interactive else _inline(figure),
            }
        )
        drawn.append(figure)
    return {"figures": figures, "missing": gallery.missing}


def _inline(figure: FigureData) -> Any:
    """A figure drawn by matplotlib as an element of the page; its labels are paths, so they hold no markup."""
    from markupsafe import Markup

    with tempfile.TemporaryDirectory() as folder:
        svg = draw(figure, Path(folder) / "figure.svg").read_text(encoding="utf-8")
    return Markup(svg[svg.index("<svg") :])
