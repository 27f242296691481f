"""Figures as JSON for the scripts of a page: fractions with five digits, and colours for a light and a dark page."""

import math
from typing import Any

from rankrise.view._colours import colour_of, colours, dark_of
from rankrise.view._figure import Axis, FigureData, Panel, Trace
from rankrise.view._notation import to_plotly

_DIGITS = 5
_LARGEST_WHOLE = 2**53  # a larger whole number is no number of JavaScript


def figure_json(figure: FigureData) -> dict[str, Any]:
    """Everything a script needs to draw a figure; NaN is null.

    `levels` names the ordered curves that a slider goes through, in order; curves without a level stay.
    """
    found = colours(figure)
    control = figure.control
    return {
        "name": figure.name,
        "id": figure.id,
        "title": figure.title,
        "cols": figure.cols,
        "rowNames": figure.row_names,
        "colNames": figure.col_names,
        "panels": [_panel(panel, found) for panel in figure.panels],
        "levels": _levels(figure) if control else [],
        "control": None if control is None else {"label": control.label, "play": control.is_film},
        "order": None if figure.order is None else {"label": figure.order.label, "ticks": figure.order.ticks},
    }


def _levels(figure: FigureData) -> list[str]:
    """The groups of the first panel that have a level, in the order of their levels."""
    placed = {t.group: t.level for t in figure.panels[0].traces if t.level is not None}
    return sorted(placed, key=lambda group: placed[group])


def _panel(panel: Panel, found: dict[str, str]) -> dict[str, Any]:
    cells = panel.cells
    return {
        "title": panel.title,
        "markup": to_plotly(panel.title),
        "x": _axis(panel.x),
        "y": _axis(panel.y),
        "span": panel.span,
        "marks": [short(mark.x) for mark in panel.marks],
        "traces": [_trace(trace, found) for trace in panel.traces],
        "cells": cells
        and {
            "rows": cells.rows,
            "cols": cells.cols,
            "label": cells.label,
            "values": [[short(value) for value in row] for row in cells.values],
        },
    }


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "label": axis.label,
        "markup": to_plotly(axis.label),
        "log": axis.log,
        "low": short(axis.low),
        "high": short(axis.high),
        "ticks": axis.ticks,
    }


def _trace(trace: Trace, found: dict[str, str]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "x": [short(value) for value in trace.x],
        "y": [short(value) for value in trace.y],
        "label": trace.label,
        "markup": to_plotly(trace.label),
        "group": trace.group,
        "style": trace.style,
        "level": trace.level is not None,
        "atEnd": trace.at_end,
        "colour": colour_of(trace, found),
        "dark": dark_of(trace, found),
    }
    if trace.low is not None and trace.high is not None:
        record |= {"low": [short(value) for value in trace.low], "high": [short(value) for value in trace.high]}
    return record


def short(value: float | None) -> float | None:
    """A number with five digits, and a whole number, such as a step, with all of them; None if it is not finite.

    >>> short(1 / 3), short(float("nan")), short(1e-32), short(1234567.0)
    (0.33333, None, 1e-32, 1234567)
    """
    if value is None or not math.isfinite(value):
        return None
    if abs(value) < _LARGEST_WHOLE and value == int(value):
        return int(value)
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if abs(rounded) < _LARGEST_WHOLE and rounded == int(rounded) else rounded
