"""The matplotlib renderer: valid files, the same bytes, every figure, any name."""

import xml.etree.ElementTree as ET

import matplotlib as mpl
import matplotlib.text
import pytest
from PIL import Image
from tests.lab.figures.runs import network_run, toy_runs
from tests.lab.figures.test_networks import INITIAL, NAME, RANKS, SPECTRA, scale_runs

from rankrise.lab.figures import build_figure
from rankrise.view import Axis, FigureData, Panel, Trace, _draw, draw, save_figure
from rankrise.view._colours import colours, shade
from rankrise.view._draw import apart
from rankrise.view._notation import to_mathtext, to_plotly

TOY = ("toy_stages", "toy_scales", "toy_robustness")
NETWORK = ("spectrum_over_training", "perturbation_vs_init", "stable_rank_over_training", "stable_rank_by_head")
SCALES = ("components_by_scale", "stable_rank_by_scale")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    network = {NAME: [network_run(out, NAME, ranks=RANKS, spectra=SPECTRA, initial=INITIAL)]}
    return toy_runs(out) | network | scale_runs(out)


@pytest.mark.parametrize("figure_id", TOY + NETWORK + SCALES)
def test_every_figure_can_be_drawn(figure_id, runs, tmp_path):
    figure = build_figure(figure_id, runs, **({} if figure_id in TOY else {"experiment": NAME}))
    svg, png, csv = save_figure(figure, tmp_path)
    assert ET.parse(svg).getroot().tag.endswith("svg")
    with Image.open(png) as image:
        assert image.size[0] == 1680  # twice the width of a README
    assert csv.read_text().count("\n") == figure.num_points + 1 + sum(len(p.marks) for p in figure.panels)


def test_the_same_figure_gives_the_same_bytes(runs, tmp_path):
    figure = build_figure("stable_rank_over_training", runs, experiment=NAME)
    for ending in ("svg", "png"):
        first, second = (draw(figure, tmp_path / f"{n}.{ending}").read_bytes() for n in (1, 2))
        assert first == second
        assert b"matplotlib.org" not in first or b"<dc:date>" not in first


def test_style_of_the_user_is_neither_used_nor_changed(runs, tmp_path):
    figure = build_figure("stable_rank_over_training", runs, experiment=NAME)
    before = draw(figure, tmp_path / "a.svg").read_bytes()
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30}):
        assert draw(figure, tmp_path / "b.svg").read_bytes() == before
        assert mpl.rcParams["font.size"] == 30


def test_other_endings_are_refused(tmp_path):
    figure = FigureData("a", "", "", (Panel("", Axis(""), Axis("")),), 1, 1, ())
    with pytest.raises(ValueError, match=r"`path` must end in \.svg, \.png, \.pdf; got 'a\.jpg'"):
        draw(figure, tmp_path / "a.jpg")


@pytest.mark.parametrize("name", ["$\\frac", "a$b$", "_K", "<b>&", "x_1_2", "W_K", "\\", "$$", "{", "^"])
def test_any_name_can_be_drawn(name, tmp_path):
    trace = Trace((0.0, 1.0), (0.0, 1.0), name, group=name, at_end=True)
    panel = Panel(name, Axis(name), Axis(name), (trace, Trace((0.0,), (0.0,), name)))
    svg = draw(FigureData("a", name, name, (panel,), 1, 1, ()), tmp_path / "a.svg")
    ET.parse(svg)


def test_labels_in_two_notations():
    assert to_mathtext("Δ(W_K W_Qᵀ) of vit_cifar_10") == "Δ($W_{K}$ $W_{Q}$ᵀ) of vit_cifar_10"
    assert to_plotly('<img src=x onerror="alert(1)">') == '&lt;img src=x onerror="alert(1)"&gt;'


def test_groups_keep_their_colour_and_do_not_share_it():
    groups = ["limit", "init", "one", "two", "three"]
    traces = tuple(Trace((0.0,), (0.0,), group=g) for g in groups)
    found = colours(FigureData("a", "", "", (Panel("", Axis(""), Axis(""), traces),), 1, 1, ()))
    assert found["limit"] == "#D55E00"
    assert len(set(found.values())) == len(groups)


def test_order_goes_from_light_to_dark():
    brightness = [sum(int(shade(i / 20)[k : k + 2], 16) for k in (1, 3, 5)) for i in range(21)]
    luminance = [0.2 * int(c[1:3], 16) + 0.7 * int(c[3:5], 16) + 0.1 * int(c[5:], 16) for c in map(shade, (0, 0.5, 1))]
    assert luminance == sorted(luminance, reverse=True)
    assert brightness[0] > brightness[-1]


def test_labels_that_touch_move_apart_and_stay_inside():
    found = apart([5.0, 5.0, 5.0, 99.0], gap=10.0, low=0.0, high=100.0)
    assert found == [0.0, 10.0, 20.0, 99.0]
    assert apart([100.0, 100.0], gap=10.0, low=0.0, high=100.0) == [90.0, 100.0]


@pytest.mark.parametrize(("gap", "num_lines"), [(0.01, 2), (2.0, 0)])
def test_a_label_that_had_to_move_has_a_line_to_its_curve(gap, num_lines):
    traces = tuple(Trace((0.0, 1.0), (0.0, 3 + i * gap), f"layer {i}", group=str(i), at_end=True) for i in range(2))
    panel = Panel("", Axis("", low=0, high=1), Axis("", low=0, high=6), traces)
    with mpl.rc_context({**dict(mpl.rcParamsDefault), **_draw._STYLE}):
        picture = _draw._picture(FigureData("a", "", "", (panel,), 1, 1, ()))
    labels = [text for text in picture.axes[0].texts if text.get_text().startswith("layer")]
    assert len(labels) == 2
    assert sum(label.arrow_patch is not None for label in labels) == num_lines
    assert all(label.xy == (1.0, 3 + i * gap) for i, label in enumerate(labels))  # where the curve ends


@pytest.mark.parametrize("figure_id", ["stable_rank_over_training", "toy_stages"])
def test_nothing_is_cut_off(figure_id, runs):
    figure = build_figure(figure_id, runs, **({} if figure_id in TOY else {"experiment": NAME}))
    with mpl.rc_context({**dict(mpl.rcParamsDefault), **_draw._STYLE}):
        picture = _draw._picture(figure)
        texts = [t for t in picture.findobj(mpl.text.Text) if t.get_visible() and t.get_text()]
        edges = [t.get_window_extent() for t in texts]
    assert len(texts) > 20
    assert min(box.x0 for box in edges) >= 0
    assert max(box.x1 for box in edges) <= picture.bbox.width
    assert max(box.y1 for box in edges) <= picture.bbox.height
