"""Figure data: checks, registry and CSV."""

import csv
import io

import pytest

from rankrise.lab.figures import build_figure, figure_ids
from rankrise.view import Axis, Cells, FigureData, Mark, Panel, Trace, to_csv

PANEL = Panel("loss", Axis("t"), Axis("loss"))


def test_parts_of_a_trace_must_have_one_length():
    with pytest.raises(ValueError, match=r"of one length; got 2, 1"):
        Trace((0, 1), (0,))
    with pytest.raises(ValueError, match=r"both edges of its band"):
        Trace((0,), (0,), low=(0,))
    with pytest.raises(ValueError, match=r"`level` must be from 0 to 1; got 2"):
        Trace((0,), (0,), level=2)
    with pytest.raises(ValueError, match=r"`style` must be one of line, dashed"):
        Trace((0,), (0,), style="wavy")


def test_panels_must_fit_the_grid():
    with pytest.raises(ValueError, match=r"must fit a grid of 1 × 1; they take 2 places"):
        FigureData("x", "", "", (PANEL, PANEL), 1, 1, ())
    with pytest.raises(ValueError, match=r"they take 0"):
        FigureData("x", "", "", (), 1, 1, ())


def test_cells_must_be_a_table():
    with pytest.raises(ValueError, match=r"must be 1 rows of 2"):
        Cells(("layer 1",), ("1", "2"), ((1.0,),), "rank")


def test_all_figures_of_the_paper_are_there():
    assert figure_ids()[:8] == (
        "toy_stages",
        "toy_scales",
        "toy_robustness",
        "spectrum_over_training",
        "components_by_scale",
        "stable_rank_by_scale",
        "perturbation_vs_init",
        "stable_rank_over_training",
    )


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"must get options it knows; got 'colour'\. It has: num_coordinates"):
        build_figure("toy_scales", {}, colour="red")
    with pytest.raises(ValueError, match=r"must be told of which network; pass experiment='vit-digits'"):
        build_figure("stable_rank_over_training", {})


def test_files_of_one_figure_for_two_networks_have_two_names():
    names = {FigureData("a", "", "", (PANEL,), 1, 1, (), experiment=e).name for e in ("", "vit-cifar10", "vit-digits")}
    assert names == {"a", "a-vit-cifar10", "a-vit-digits"}


def test_csv_holds_every_number():
    trace = Trace((0.1, 1.0), (2.0, float("nan")), "layer 1", low=(1.0, 1.0), high=(3.0, 3.0))
    cells = Cells(("layer 1",), ("1", "2"), ((1.0, 2.0),), "rank")
    panels = (Panel("p", Axis("x"), Axis("y"), (trace,), (Mark(5.0),)), Panel("h", Axis(""), Axis(""), cells=cells))
    lines = list(csv.reader(io.StringIO(to_csv(FigureData("a", "", "", panels, 1, 2, ())))))
    assert lines[1:] == [
        ["p", "0", "layer 1", "line", "0.1", "2.0", "1.0", "3.0"],
        ["p", "0", "layer 1", "line", "1.0", "", "1.0", "3.0"],
        ["p", "", "", "mark", "5.0", "", "", ""],
        ["h", "", "layer 1", "cells", "1", "1.0", "", ""],
        ["h", "", "layer 1", "cells", "2", "2.0", "", ""],
    ]


@pytest.mark.parametrize("name", ["=1+1", "@SUM(A1)", "+1", "-1\x00", "a\nb"])
def test_csv_runs_nothing(name):
    figure = FigureData("a", "", "", (Panel(name, Axis(""), Axis(""), (Trace((0.0,), (0.0,), name),)),), 1, 1, ())
    cell = next(iter(list(csv.reader(io.StringIO(to_csv(figure))))[1:]))[0]
    assert not cell.startswith(("=", "+", "-", "@"))
    assert cell.isprintable()


def test_figures_are_values():
    assert Trace((0.0,), (1.0,)) == Trace((0.0,), (1.0,))
    assert hash(PANEL) == hash(Panel("loss", Axis("t"), Axis("loss")))
