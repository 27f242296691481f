"""What a figure is before it is drawn: a frozen record of numbers with labels; and the same numbers as CSV.

A renderer decides colours, sizes and fonts. The record decides what a colour stands for: `group` names what a trace
belongs to, and a group has one colour in all panels. `level` is the place of a trace in an order, such as time, α or
depth.
"""

import csv
import hashlib
import io
import math
import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Style: TypeAlias = Literal["line", "dashed", "dotted", "steps", "points"]
Numbers: TypeAlias = tuple[float, ...]
CSV_COLUMNS = ("panel", "curve", "trace", "style", "x", "y", "low", "high")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a cell of text that begins with one of these


@dataclass(frozen=True)
class Trace:
    """One curve.

    Args:
        x: Where each value is drawn.
        y: The values; NaN leaves a gap.
        label: What the reader calls the curve; empty for no label.
        group: What decides the colour of the curve: "layer 3", "α = 10⁻⁸", "limit".
        style: How the curve is drawn; `steps` holds each value until the next x, `points` are joined by a thin line.
        level: Place of the group in an order, from 0 to 1; None if the groups have no order.
        low: Lower edge of a band around y.
        high: Upper edge of that band.
        at_end: Whether the label is written at the curve's end and not in the legend.

    Raises:
        ValueError: The parts are not of one length, or the level is outside 0 to 1.

    >>> Trace(x=(0.0, 1.0), y=(2.0, 3.0), label="layer 1", group="layer 1", level=0.0).style
    'line'
    """

    x: Numbers
    y: Numbers
    label: str = ""
    group: str = ""
    style: Style = "line"
    level: float | None = None
    low: Numbers | None = None
    high: Numbers | None = None
    at_end: bool = False

    def __post_init__(self) -> None:
        parts = [self.y, *(part for part in (self.low, self.high) if part is not None)]
        if any(len(part) != len(self.x) for part in parts) or (self.low is None) != (self.high is None):
            lengths = ", ".join(str(len(part)) for part in (self.x, *parts))
            raise ValueError(f"A trace must have x, y and both edges of its band of one length; got {lengths}.")
        if self.level is not None and not 0 <= self.level <= 1:
            raise ValueError(f"`level` must be from 0 to 1; got {self.level}.")
        if self.style not in get_args(Style):
            raise ValueError(f"`style` must be one of {', '.join(get_args(Style))}; got {self.style!r}.")


@dataclass(frozen=True)
class Axis:
    """What an axis measures, whether it is logarithmic, its ends, and its ticks."""

    label: str
    log: bool = False
    low: float | None = None  # None lets the data decide
    high: float | None = None
    ticks: Numbers | None = None  # None lets the renderer decide


@dataclass(frozen=True)
class Mark:
    """A thin vertical line that shows where something happens."""

    x: float
    label: str = ""


@dataclass(frozen=True)
class Cells:
    """A table of numbers to be drawn as a heat map: a row for each of `rows`, a column for each of `cols`."""

    rows: tuple[str, ...]
    cols: tuple[str, ...]
    values: tuple[Numbers, ...]
    label: str  # what the numbers are

    def __post_init__(self) -> None:
        shape = (len(self.rows), {len(row) for row in self.values})
        if shape != (len(self.values), {len(self.cols)}):
            raise ValueError(f"`values` must be {len(self.rows)} rows of {len(self.cols)}; got {shape}.")


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with traces or with cells."""

    title: str
    x: Axis
    y: Axis
    traces: tuple[Trace, ...] = ()
    marks: tuple[Mark, ...] = ()
    cells: Cells | None = None
    span: int = 1  # columns of the grid that the panel takes


@dataclass(frozen=True)
class Order:
    """A scale of colours beside the figure, which says what `level` stands for if curves are too many to label."""

    label: str
    ticks: tuple[tuple[float, str], ...]  # level, text


@dataclass(frozen=True)
class Control:
    """How a reader of an interactive page goes through the ordered curves of a figure one by one."""

    label: str  # the label of the slider
    is_film: bool = False  # whether the page offers to play them one after another


@dataclass(frozen=True)
class FigureData:
    """A figure: panels on a grid, filled row by row, and the words around it.

    Args:
        id: The kind of figure, such as "stable_rank_over_training".
        title: One line.
        text: What the reader should see, in full sentences.
        panels: The panels, row by row from the top left.
        rows: Number of rows of the grid.
        cols: Number of columns of the grid.
        sources: The runs behind the figure, "experiment/hash".
        experiment: The network that the figure is of; empty where there is only one figure of its id.
        order: A scale of colours for all panels.
        run: What was run, in words without a full stop; empty if it is not said.
        control: How a page lets the reader go through the ordered curves; None if it does not.
        row_names: What all panels of a row show, such as a circuit, for each row; empty if a row has no such thing.
        col_names: What all panels of a column show, such as a layer, for each column; empty if there is no such thing.
        look_at: What to look at, in a sentence. It is no part of the drawing, and therefore not of the fingerprint.
    """

    id: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    rows: int
    cols: int
    sources: tuple[str, ...]
    experiment: str = ""
    order: Order | None = None
    run: str = ""
    control: Control | None = None
    row_names: tuple[str, ...] = ()
    col_names: tuple[str, ...] = ()
    look_at: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        used = sum(panel.span for panel in self.panels)
        if not 0 < used <= self.rows * self.cols:
            raise ValueError(f"The panels must fit a grid of {self.rows} × {self.cols}; they take {used} places.")

    @property
    def caption(self) -> str:
        """The text, and then what was run.

        >>> panel = Panel("", Axis("x"), Axis("y"))
        >>> FigureData("a", "", "Look.", (panel,), 1, 1, (), run="ViT, one seed").caption
        'Look. Run: ViT, one seed.'
        """
        return f"{self.text} {self.run_sentence}".strip()

    @property
    def run_sentence(self) -> str:
        """What was run, as a sentence; empty if it is not said."""
        return f"Run: {self.run}." if self.run else ""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that the record holds: two figures with one fingerprint are drawn alike."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def name(self) -> str:
        """What its files are called: the id, and the experiment where there are several; never a path.

        >>> panel = Panel("", Axis("x"), Axis("y"))
        >>> FigureData("toy_scales", "", "", (panel,), 1, 1, ()).name
        'toy_scales'
        """
        name = f"{self.id}-{self.experiment}" if self.experiment else self.id
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:120].lstrip(".") or "figure"

    @property
    def num_points(self) -> int:
        """How many numbers are drawn."""
        curves = sum(len(trace.x) for panel in self.panels for trace in panel.traces)
        return curves + sum(len(row) for panel in self.panels if panel.cells for row in panel.cells.values)


def numbers(values: object) -> Numbers:
    """The numbers of anything one-dimensional, as a tuple of floats.

    >>> numbers(range(3))
    (0.0, 1.0, 2.0)
    """
    return tuple(float(v) for v in values)  # type: ignore[attr-defined]


def is_finite(value: float | None) -> bool:
    """Whether a value is a number, and neither NaN nor infinite.

    >>> is_finite(None), is_finite(float("nan")), is_finite(2.0)
    (False, False, True)
    """
    return value is not None and math.isfinite(value)


def to_csv(figure: FigureData) -> str:
    """All points of a figure as CSV, a line for each: panel, number and name of the curve, style, x, y, and the band.

    A cell of a heat map has the name of its row as `trace` and that of its column as `x`. A mark is a trace of style
    `mark`.

    >>> panel = Panel("loss", Axis("t"), Axis("loss"), (Trace((0.0,), (0.5,), label="limit"),))
    >>> print(to_csv(FigureData("toy_scales", "", "", (panel,), 1, 1, ())), end="")
    panel,curve,trace,style,x,y,low,high
    loss,0,limit,line,0.0,0.5,,
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for panel in figure.panels:
        title = safe_cell(panel.title)
        for number, trace in enumerate(panel.traces):
            low = trace.low or (None,) * len(trace.x)
            high = trace.high or (None,) * len(trace.x)
            name = safe_cell(trace.label or trace.group)
            for point in zip(trace.x, trace.y, low, high, strict=True):
                writer.writerow([title, number, name, trace.style, *map(_number, point)])
        for mark in panel.marks:
            writer.writerow([title, "", safe_cell(mark.label), "mark", _number(mark.x), "", "", ""])
        if panel.cells is not None:
            for name, values in zip(panel.cells.rows, panel.cells.values, strict=True):
                for col, value in zip(panel.cells.cols, values, strict=True):
                    writer.writerow([title, "", safe_cell(name), "cells", safe_cell(col), _number(value), "", ""])
    return out.getvalue()


def safe_cell(text: str) -> str:
    """Text that a spreadsheet shows and does not run, without control characters and never a formula.

    >>> safe_cell("=HYPERLINK(1)")
    "'=HYPERLINK(1)"
    """
    plain = "".join(c for c in text if c.isprintable())
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(float(value))
