"""The one exception to "imports only go down": what methods of lower packages call to reach `rankrise.view`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.figure import Figure

    from rankrise.checkpoints import Diff
    from rankrise.runs import Comparison, RunData
    from rankrise.store import Followed
    from rankrise.theory import Flow, Stages


def diff_page(diff: "Diff") -> str:
    """Return the page of a diff of checkpoints, for `Diff.write_html`."""
    from rankrise.view import diff_page as page

    return page(diff)


def plot_run(run: "RunData", figure_id: str, options: "Mapping[str, object]") -> "Figure":
    """Draw a figure of one run, for `RunData.plot`."""
    from rankrise.view import figure_of_run, picture

    return picture(figure_of_run(figure_id, run, **options))


def plot_comparison(comparison: "Comparison", figure_id: str, options: "Mapping[str, object]") -> "Figure":
    """Draw a figure of several runs, for `Comparison.plot`."""
    from rankrise.view import figure_of_comparison, picture

    return picture(figure_of_comparison(figure_id, comparison, **options))


def plot_stages(stages: "Stages | None", flow: "Flow | None") -> "Figure":
    """Draw stages and a flow over one another, for `Stages.plot` and `Flow.plot`."""
    from rankrise.view import picture, stages_figure

    return picture(stages_figure(stages, flow))


def run_cell(folder: "Path", followed: "Followed", *, with_stages: bool) -> str:
    """Return the curves of a run as HTML for a notebook, for `RankTracker.live`."""
    from rankrise.view.live import run_cell as cell

    return cell(folder, followed, with_stages=with_stages)
