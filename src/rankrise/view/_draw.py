"""Figures drawn with matplotlib, as SVG, PNG or PDF; the same figure gives the same bytes every time."""

import io
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rankrise._extras import require
from rankrise.store import replacing
from rankrise.view._colours import VIRIDIS, colour_of, colours, ink_on, shade
from rankrise.view._figure import Axis, FigureData, Panel, Trace
from rankrise.view._notation import to_mathtext

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 8.4  # inches; 840 pixels, the width of a README
_HEIGHTS = {1: 3.5, 2: 5.3, 3: 6.9, 4: 8.4}  # by rows
_DPI = 200
_LABEL_SIZE = 8.0  # points
_LABEL_GAP = 9.5  # points between baselines
_LABEL_NEAR = 2.0  # points that a label may move without a line to its curve
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.8,
    "axes.labelcolor": "#222222",
    "text.color": "#222222",
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "xtick.labelcolor": "#444444",
    "ytick.labelcolor": "#444444",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "rankrise",
    "svg.fonttype": "path",
    "path.simplify": True,
}
_KINDS: dict[str, dict[str, Any]] = {  # no file holds a date or a version, so that its bytes do not change
    ".svg": {"metadata": {"Date": None, "Creator": None}},
    ".png": {"metadata": {"Software": None}, "dpi": _DPI},
    ".pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
}
_DASHES: dict[str, Any] = {"dashed": (0, (4, 2)), "steps": (0, (4, 1.6)), "dotted": (0, (1, 1.6))}


def draw(figure: FigureData, path: str | os.PathLike[str]) -> Path:
    """Draw a figure to a file, in the format that the ending of its name says.

    Args:
        figure: What to draw.
        path: A file that ends in .svg, .png or .pdf. Its folder is made if it does not exist.

    Returns:
        The path of the file.

    Raises:
        ValueError: The path has another ending.
    """
    target = Path(path)
    draw_files(figure, target)
    return target


def picture(figure: FigureData) -> "Figure":
    """Draw a figure for a notebook or for further work with matplotlib; pyplot does not know it.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    require("Drawing a figure", "matplotlib")
    import matplotlib as mpl

    with mpl.rc_context(cast("Any", {**dict(mpl.rcParamsDefault), **_STYLE, "backend": "Agg"})):
        return _picture(figure)


def draw_files(figure: FigureData, *targets: Path) -> list[bytes]:
    """Draw a figure to several files, and return the bytes of each. The arguments and refusals are those of `draw`."""
    require("Drawing a figure", "matplotlib")
    import matplotlib as mpl

    for target in targets:
        if target.suffix not in _KINDS:
            raise ValueError(f"`path` must end in {', '.join(_KINDS)}; got {target.name!r}. Change the ending.")
    written = []
    with mpl.rc_context(cast("Any", {**dict(mpl.rcParamsDefault), **_STYLE, "backend": "Agg"})):
        picture = _picture(figure)
        for target in targets:
            buffer = io.BytesIO()
            picture.savefig(buffer, format=target.suffix[1:], **_KINDS[target.suffix])
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target, "figure") as temporary:
                temporary.write_bytes(buffer.getvalue())
            written.append(buffer.getvalue())
    return written


def _picture(figure: FigureData) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
    picture = _shown_in_notebooks(Figure)(figsize=(_WIDTH, _HEIGHTS.get(figure.rows, 2.1 * figure.rows)), layout=layout)
    grid = picture.add_gridspec(figure.rows, figure.cols)
    place, all_axes, found = 0, [], colours(figure)
    top = max((max(row) for panel in figure.panels if panel.cells for row in panel.cells.values), default=1.0)
    for panel in figure.panels:
        row, col = divmod(place, figure.cols)
        axes = picture.add_subplot(grid[row, col : col + panel.span])
        _draw_panel(axes, panel, found, top)
        all_axes.append(axes)
        place += panel.span
    _quiet_inner_labels(figure, all_axes)
    _add_legend(picture, figure, found)
    if figure.order is not None:
        _add_scale(picture, figure, all_axes)
    picture.suptitle(to_mathtext(figure.title), x=0.008, ha="left", fontsize=11.5, fontweight="bold")
    layout.execute(picture)
    for axes, panel in zip(all_axes, figure.panels, strict=True):
        _spread_labels(axes, panel, found)
    layout.execute(picture)  # lays the figure out again, with room for the labels
    picture.set_layout_engine(None)  # keeps this layout for every format; with "none" each would be drawn twice
    return picture


def _shown_in_notebooks(base: "type[Figure]") -> "type[Figure]":
    """A matplotlib figure that a notebook shows without pyplot."""

    class Picture(base):  # type: ignore[misc, valid-type]
        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=_DPI / 2)
            return out.getvalue()

    return Picture


def _draw_panel(axes: "Axes", panel: Panel, found: dict[str, str], top: float) -> None:
    axes.set_title(to_mathtext(panel.title))
    if panel.cells is not None:
        _draw_cells(axes, panel, top)
        return
    for mark in panel.marks:
        axes.axvline(mark.x, color="#dddddd", lw=0.7, zorder=0)
    for trace in panel.traces:
        _draw_trace(axes, trace, colour_of(trace, found), len(panel.traces))
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _set_axis(axes, name, axis)
    axes.grid(axis="y", color="#eeeeee", lw=0.6)
    axes.set_axisbelow(True)


def _draw_trace(axes: "Axes", trace: Trace, colour: str, num: int) -> None:
    """Draw one trace. Curves are thinner and bands paler if a panel has many; traces without a level lie on top."""
    width = 1.7 if num <= 8 else 1.2
    layer = 3.0 if trace.level is None else 2.0 + trace.level
    if trace.style == "points":
        errors = None
        if trace.low is not None and trace.high is not None:
            pairs = zip(trace.y, trace.low, trace.high, strict=True)
            errors = list(zip(*((y - low, high - y) for y, low, high in pairs), strict=True))
        axes.errorbar(
            trace.x, trace.y, errors, fmt="o-", color=colour, ms=4.5, lw=1.2, elinewidth=1.0, capsize=2.5, zorder=layer
        )
        return
    if trace.low is not None and trace.high is not None:
        axes.fill_between(trace.x, trace.low, trace.high, color=colour, alpha=min(0.14, 0.6 / num), lw=0, zorder=1.5)
    steps = "steps-post" if trace.style == "steps" else "default"
    dashes = _DASHES.get(trace.style, "-")
    if trace.style == "steps":  # the limit must be visible over the curves that converge to it
        layer, width = 4.0, 1.3
    elif trace.style == "dashed":
        width *= 0.8  # narrower, so that a curve below it shows at its edges
    axes.plot(trace.x, trace.y, color=colour, lw=width, ls=dashes, drawstyle=steps, zorder=layer)


def _set_axis(axes: "Axes", name: str, axis: Axis) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    getattr(axes, f"set_{name}label")(to_mathtext(axis.label))
    side = getattr(axes, f"{name}axis")
    if axis.log:
        getattr(axes, f"set_{name}scale")("log")
    if axis.ticks is not None:
        side.set_major_locator(FixedLocator(axis.ticks))
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_locator(NullLocator())
    keyword = {"x": ("left", "right"), "y": ("bottom", "top")}[name]
    limits = {k: v for k, v in zip(keyword, (axis.low, axis.high), strict=True) if v is not None}
    if limits and len(set(limits.values())) == len(limits):
        getattr(axes, f"set_{name}lim")(**limits)


def _draw_cells(axes: "Axes", panel: Panel, top: float) -> None:
    """Draw a heat map whose colours go from 1 to `top`, with the numbers written into its cells."""
    from matplotlib.colors import LinearSegmentedColormap

    cells = panel.cells
    assert cells is not None
    colour_map = LinearSegmentedColormap.from_list("rankrise", VIRIDIS)
    axes.imshow(cells.values, cmap=colour_map, aspect="auto", vmin=1, vmax=top)
    axes.set(xlabel=to_mathtext(panel.x.label), ylabel=to_mathtext(panel.y.label))
    axes.set_xticks(range(len(cells.cols)), cells.cols)
    axes.set_yticks(range(len(cells.rows)), cells.rows)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for i, row in enumerate(cells.values):
        for j, value in enumerate(row):
            colour = ink_on(shade(min(max((value - 1) / max(top - 1, 1e-9), 0.0), 1.0)))
            axes.text(j, i, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=8)


def _quiet_inner_labels(figure: FigureData, all_axes: "list[Axes]") -> None:
    """Name axes that neighbours share only once: below a column, and on the left of a row."""
    starts = itertools.accumulate((panel.span for panel in figure.panels), initial=0)
    places = [divmod(start, figure.cols) for start in starts][: len(figure.panels)]
    at = dict(zip(places, figure.panels, strict=True))
    below = {row: next((p.x.label for (r, _), p in at.items() if r == row + 1), None) for row, _ in places}
    for (row, col), axes in zip(places, all_axes, strict=True):
        panel, left = at[row, col], at.get((row, col - 1))
        if below[row] == panel.x.label:
            axes.set_xlabel("")
        if left is not None and left.y.label == panel.y.label:
            axes.set_ylabel("")


def _add_legend(picture: "Figure", figure: FigureData, found: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    named: dict[str, Trace] = {}
    for panel in figure.panels:
        for trace in panel.traces:
            if trace.label and not trace.at_end:
                named.setdefault(trace.label, trace)
    if not named:
        return
    handles = [
        Line2D(
            [],
            [],
            color=colour_of(t, found),
            lw=1.8,
            ls=_DASHES.get(t.style, "-"),
            marker="o" if t.style == "points" else "",
            ms=4.5,
        )
        for t in named.values()
    ]
    picture.legend(
        handles, [to_mathtext(label) for label in named], loc="outside lower left", ncols=min(len(named), 7),
        columnspacing=1.4, handlelength=2.0, borderpad=0.1,
    )  # fmt: skip


def _add_scale(picture: "Figure", figure: FigureData, all_axes: "list[Axes]") -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    assert figure.order is not None
    colour_map = LinearSegmentedColormap.from_list("rankrise", [shade(i / 63) for i in range(64)])
    bar = picture.colorbar(
        ScalarMappable(Normalize(0, 1), colour_map), ax=all_axes, aspect=36, pad=0.015, fraction=0.03
    )
    bar.set_ticks([level for level, _ in figure.order.ticks], labels=[text for _, text in figure.order.ticks])
    bar.set_label(to_mathtext(figure.order.label))
    bar.outline.set_visible(False)


def _spread_labels(axes: "Axes", panel: Panel, found: dict[str, str]) -> None:
    """Write labels at the ends of the traces that ask for it, with a line to each label that had to move."""
    named = [trace for trace in panel.traces if trace.label and trace.at_end]
    if not named:
        return
    points = [axes.transData.transform((trace.x[-1], trace.y[-1]))[1] for trace in named]
    scale = axes.figure.dpi / 72.0
    box = axes.get_window_extent()
    heights = apart(points, gap=_LABEL_GAP * scale, low=box.y0, high=box.y1)
    moves = [(height - point) / scale for height, point in zip(heights, points, strict=True)]
    room = 12 if any(abs(move) > _LABEL_NEAR for move in moves) else 4
    for trace, move in zip(named, moves, strict=True):
        colour = colour_of(trace, found)
        leader = {"arrowstyle": "-", "lw": 0.7, "color": colour, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
        axes.annotate(
            to_mathtext(trace.label),
            (trace.x[-1], trace.y[-1]),
            xytext=(room, move),
            textcoords="offset points",
            fontsize=_LABEL_SIZE,
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops=leader if abs(move) > _LABEL_NEAR else None,
        )


def apart(points: list[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions near `points` in the same order, at least `gap` apart, and within the bounds if there is room.

    >>> apart([0.0, 1.0, 10.0], gap=2.0, low=0.0, high=20.0)
    [0.0, 2.0, 10.0]
    """
    order = sorted(range(len(points)), key=points.__getitem__)
    blocks: list[list[float]] = []  # the middle and the number of labels that touch each other and move as one
    for i in order:
        blocks.append([points[i], 1.0])
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-1][1] + blocks[-2][1]) / 2:
            (m1, n1), (m2, n2) = blocks[-2], blocks.pop()
            blocks[-1] = [(m1 * n1 + m2 * n2) / (n1 + n2), n1 + n2]
        half = gap * (blocks[-1][1] - 1) / 2
        blocks[-1][0] = max(min(blocks[-1][0], high - half), low + half)
    placed = [middle + gap * (k - (num - 1) / 2) for middle, num in blocks for k in range(int(num))]
    found = [0.0] * len(points)
    for i, value in zip(order, placed, strict=True):
        found[i] = value
    return found
