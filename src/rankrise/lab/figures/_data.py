"""What a figure is before anyone draws it: numbers with labels, frozen.

A renderer decides colours, sizes and fonts. What a colour stands for is decided here: `group` names what a trace
belongs to, the same name has the same colour in all panels, and `level` places it where things have an order (time, α,
depth).
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Style: TypeAlias = Literal["line", "dashed", "dotted", "steps", "points"]
Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Trace:
    """One curve.

    Args:
        x: Where.
        y: What; NaN leaves a gap.
        label: What the reader calls it; empty for none.
        group: What decides its colour: "layer 3", "α = 10⁻⁸", "limit".
        style: How it is drawn; `steps` holds each value until the next x, `points` are joined by a thin line.
        level: Place in an order from 0 to 1; None where the groups have none.
        low: Lower edge of a band around y.
        high: Upper edge.
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
    """What an axis measures, and whether its ticks are powers."""

    label: str
    log: bool = False
    low: float | None = None  # the data decide where it is None
    high: float | None = None
    ticks: Numbers | None = None  # the renderer decides where it is None


@dataclass(frozen=True)
class Mark:
    """A thin vertical line: where something happens."""

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
    """One pair of axes: traces, or cells."""

    title: str
    x: Axis
    y: Axis
    traces: tuple[Trace, ...] = ()
    marks: tuple[Mark, ...] = ()
    cells: Cells | None = None
    span: int = 1  # columns it takes


@dataclass(frozen=True)
class Order:
    """What `level` stands for where there are too many to label each: a scale of colours beside the figure."""

    label: str
    ticks: tuple[tuple[float, str], ...]  # level, text


@dataclass(frozen=True)
class FigureData:
    """A figure: panels on a grid, filled row by row, and the words around it.

    Args:
        id: Which figure of the paper this is, as in `figure_ids()`.
        title: One line.
        caption: What to see, and what was run.
        panels: From the top left.
        rows: Of the grid.
        cols: Of the grid.
        sources: The runs behind it, "experiment/hash".
        experiment: Which network it is of; empty for the toy.
        order: A scale of colours for all panels.
    """

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    rows: int
    cols: int
    sources: tuple[str, ...]
    experiment: str = ""
    order: Order | None = None

    def __post_init__(self) -> None:
        used = sum(panel.span for panel in self.panels)
        if not 0 < used <= self.rows * self.cols:
            raise ValueError(f"The panels must fit a grid of {self.rows} × {self.cols}; they take {used} places.")

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
    """A tuple of floats of anything one-dimensional.

    >>> numbers(range(3))
    (0.0, 1.0, 2.0)
    """
    return tuple(float(v) for v in values)  # type: ignore[attr-defined]


def is_finite(value: float | None) -> bool:
    """Whether there is a number at all.

    >>> is_finite(None), is_finite(float("nan")), is_finite(2.0)
    (False, False, True)
    """
    return value is not None and math.isfinite(value)
