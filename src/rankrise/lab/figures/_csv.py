"""The numbers that are drawn, as CSV."""

import csv
import io
import math

from rankrise.lab.figures._data import FigureData

COLUMNS = ("panel", "curve", "trace", "style", "x", "y", "low", "high")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell of text that begins so


def to_csv(figure: FigureData) -> str:
    """Every point of a figure, one a line: panel, number and name of the curve, style, x, y and the band around y.

    A heat map has the names of its row and column as `trace` and `x`. Marks are traces of style `mark`.

    >>> from rankrise.lab.figures import Axis, Panel, Trace
    >>> panel = Panel("loss", Axis("t"), Axis("loss"), (Trace((0.0,), (0.5,), label="limit"),))
    >>> print(to_csv(FigureData("toy_scales", "", "", (panel,), 1, 1, ())), end="")
    panel,curve,trace,style,x,y,low,high
    loss,0,limit,line,0.0,0.5,,
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
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
    """Text that a spreadsheet shows and does not run: no control characters, no formula.

    >>> safe_cell("=HYPERLINK(1)")
    "'=HYPERLINK(1)"
    """
    plain = "".join(c for c in text if c.isprintable())
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else repr(float(value))
