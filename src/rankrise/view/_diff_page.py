"""A diff as one self-contained page: heat maps by layer, curves of a series, spectra, and tables.

The page is plain SVG, without a script, and loads nothing. Its template escapes everything, because names come from
files.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rankrise._extras import require
from rankrise.checkpoints.compare import (
    Diff,
    Row,
    curve_table,
    head_table,
    layer_table,
    number,
    summary_lines,
    weight_table,
)
from rankrise.checkpoints.files import show
from rankrise.checkpoints.match import block_of
from rankrise.view._colours import UNKNOWN, ink_on, shade
from rankrise.view._networks import CIRCUITS

if TYPE_CHECKING:
    import jinja2

_HEIGHT = 19  # pixels of a cell
_WIDE, _NARROW = 40, 18  # pixels of a cell that shows its number, and of one that has no room for it
_MOST_NUMBERS = 24  # layers; with more layers the cells show no numbers
_MOST_ROWS = 2000
_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>rankrise diff</title>
<style>
:root{color-scheme:light dark;--text:#1a1a1a;--page:#fff;--rule:#e4e4e4;--soft:#767676;--code:#f4f4f4;--line:#0b62a4}
@media(prefers-color-scheme:dark){:root{
--text:#e6e6e6;--page:#16181c;--rule:#33363c;--soft:#9a9a9a;--code:#24272d;--line:#5ab4f0}}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;
color:var(--text);background:var(--page)}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:12px}
th,td{padding:.15rem .6rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.figures{display:flex;flex-wrap:wrap;gap:1.5rem 2.5rem}figure{margin:0;max-width:100%}
figcaption{font-weight:600;margin-bottom:.3rem}.note{color:var(--soft);font-size:12px;margin:.2rem 0 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:0}dt{font-weight:600}dd{margin:0}
.wide{overflow-x:auto}.fit{max-width:100%;height:auto}.axis{stroke:var(--rule)}.curve{stroke:var(--line);fill:none}
.dot{fill:var(--line)}svg{font:11px system-ui,sans-serif;fill:currentColor}code{background:var(--code);padding:0 .2rem}
</style></head><body>
<h1>What training changed</h1>
<p>base <code>{{ base }}</code><br>tuned <code>{{ tuned }}</code></p>
{% for line in summary %}<p>{{ line }}</p>{% endfor %}
{% if curves %}<h2>Over the series</h2>{% endif %}
<div class="figures">
{% for curve in curves %}
<figure><figcaption>{{ curve.title }}</figcaption>
<svg class="fit" width="330" height="200" viewBox="0 0 330 200" role="img" aria-label="{{ curve.title }}">
{% for tick in curve.ticks %}<line class="axis" x1="40" y1="{{ tick.y }}" x2="320" y2="{{ tick.y }}"/>\
<text x="35" y="{{ tick.y + 4 }}" text-anchor="end">{{ tick.text }}</text>{% endfor %}
<polyline class="curve" stroke-width="2" points="{{ curve.points }}"/>
{% for dot in curve.dots %}<circle class="dot" cx="{{ dot.x }}" cy="{{ dot.y }}" r="3"><title>{{ dot.text }}</title>\
</circle>{% endfor %}
<text x="40" y="192">step {{ curve.first }}</text><text x="320" y="192" text-anchor="end">{{ curve.last }}</text>
</svg></figure>
{% endfor %}
</div>
{% if maps %}<h2>By layer, from left to right</h2>{% endif %}
<div class="figures">
{% for map in maps %}
<figure><figcaption>{{ map.title }}</figcaption>
<div class="wide"><svg width="{{ map.width }}" height="{{ map.height }}" role="img" aria-label="{{ map.title }}">
{% for label in map.labels %}<text x="{{ label.x }}" y="{{ label.y }}" text-anchor="{{ label.anchor }}">\
{{ label.text }}</text>{% endfor %}
{% for cell in map.cells %}<g><title>{{ cell.text }}</title>\
<rect x="{{ cell.x }}" y="{{ cell.y }}" width="{{ map.cell - 1 }}" height="{{ height - 1 }}" fill="{{ cell.colour }}"/>\
{% if cell.number %}<text x="{{ cell.x + map.cell / 2 }}" y="{{ cell.y + 13 }}" text-anchor="middle" \
fill="{{ cell.ink }}">{{ cell.number }}</text>{% endif %}</g>{% endfor %}
</svg></div><p class="note">{{ map.scale }}</p></figure>
{% endfor %}
</div>
{% if spectra %}<h2>Spectra of the largest changes: σ/σ₁ from 1 down to 10⁻⁶, logarithmic</h2>{% endif %}
<div class="figures">
{% for spectrum in spectra %}
<figure><svg class="fit" width="320" height="150" viewBox="0 0 320 150" role="img" aria-label="{{ spectrum.title }}">
<line class="axis" x1="10" y1="10" x2="310" y2="10"/><line class="axis" x1="10" y1="130" x2="310" y2="130"/>
<polyline class="curve" stroke-width="1.5" points="{{ spectrum.points }}"/>
<text x="10" y="146">{{ spectrum.title }}</text></svg></figure>
{% endfor %}
</div>
<h2>What the columns say</h2>
<dl>{% for word, meaning in legend %}<dt>{{ word }}</dt><dd>{{ meaning }}</dd>{% endfor %}</dl>
{% for table in tables %}
<h2>{{ table.title }}</h2>
<div class="wide"><table><tr>{% for key in table.header %}<th>{{ key }}</th>{% endfor %}</tr>
{% for line in table.lines %}<tr>{% for cell in line %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}
<p>Measured in {{ seconds }} s{{ ", summary only" if summary_only else "" }}.</p>
</body></html>
"""


_LEGEND = (
    ("relative", "size of the change in percent of the weight: ‖Δ‖ / ‖W0‖; norms and biases are left out of a layer's"),
    ("stable rank", "‖Δ‖² / σ₁²: how many directions of equal strength the change would need"),
    ("null", "the stable rank of a random matrix of the same shape; a change far below it is of low rank"),
    ("effective", "the exponential of the entropy of σ / Σσ: like the stable rank, and weak directions count more"),
    ("90% energy", "how many directions hold 90% of the squared change"),
    ("above floor", "directions that rounding to the stored formats cannot have made; the others may be rounding"),
    (
        "alarm: spike",
        "one direction holds more than two thirds of the squared change, at least twice a random change's share",
    ),
    ("alarm: intruder", "a leading direction of the tuned weight that is nearly orthogonal to all of the base's"),
    ("kq, vo", "the two products of a head, W_K W_Qᵀ and W_V W_Oᵀ: what it attends to, and what it writes"),
)


def diff_page(diff: Diff) -> str:
    """A diff of checkpoints as one self-contained page."""
    return _template().render(
        base=show(diff.base or "none: adapters hold their change"),
        tuned=", ".join(show(step.path.name) for step in diff.steps[:8]) + (" …" if len(diff.steps) > 8 else ""),
        summary=summary_lines(diff),
        curves=_curves(diff),
        maps=_maps(diff),
        height=_HEIGHT,
        spectra=_spectra(diff),
        legend=_LEGEND,
        tables=_tables(diff),
        seconds=f"{diff.seconds:.1f}",
        summary_only=diff.summary,
    )


@functools.cache
def _template() -> "jinja2.Template":
    require("Writing a page", "jinja2")
    import jinja2

    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_TEMPLATE)


def _maps(diff: Diff) -> list[dict[str, Any]]:
    weights = [row for row in diff.weights() if row.layer >= 0 and row.kind != "vector"]
    is_relative = any(row.relative is not None for row in weights)
    sized = "Relative size of the change in %" if is_relative else "Size of the change"
    maps = [
        _map(f"{sized}, by layer and weight", weights, _part, _size, logarithmic=True),
        _map("Stable rank of the change, by layer and weight", weights, _part, lambda row: row.stable_rank),
        _map("Directions above the rounding floor", weights, _part, lambda row: row.rank_above_floor),
    ]
    for circuit, words in CIRCUITS.items():
        rows = [row for row in diff.circuits() if row.circuit == circuit]
        maps.append(
            _map(f"{words.product}: relative size in %, by layer and head", rows, _head, _size, logarithmic=True)
        )
        maps.append(_map(f"{words.product}: stable rank, by layer and head", rows, _head, lambda row: row.stable_rank))
    return [found for found in maps if found is not None]


def _map(
    title: str,
    rows: Sequence[Row],
    line: Callable[[Row], str],
    get: Callable[[Row], float | None],
    *,
    logarithmic: bool = False,
) -> dict[str, Any] | None:
    """A heat map of weights or heads by layer, in which darker means more; None if nothing was measured."""
    known = [value for row in rows if (value := get(row)) is not None and (value > 0 or not logarithmic)]
    if not known:
        return None
    lines = list(dict.fromkeys(line(row) for row in rows))
    columns = sorted({row.layer for row in rows})
    high = max(known)
    low = min(*known, high / 10) if logarithmic else 0.0  # values that differ by rounding alone get one colour
    left = 12 + 7 * max(len(text) for text in lines)
    width = _WIDE if len(columns) <= _MOST_NUMBERS else _NARROW
    cells = []
    for row in rows:
        value = get(row)
        x, y = left + width * columns.index(row.layer), 4 + _HEIGHT * lines.index(line(row))
        share = _share(value, low, high, logarithmic)
        colour = UNKNOWN if share is None else shade(share)
        cells.append(
            {
                "x": x,
                "y": y,
                "colour": colour,
                "ink": ink_on(colour),
                "number": _short(value) if width == _WIDE and row.status == "changed" else "",
                "text": f"{show(row.name, 80)}: {number(value) if row.status == 'changed' else row.status}",
            }
        )
    labels = [{"x": left - 6, "y": 17 + _HEIGHT * n, "text": text, "anchor": "end"} for n, text in enumerate(lines)]
    bottom = 20 + _HEIGHT * len(lines)
    labels += [
        {"x": left + width * (n + 0.5), "y": bottom, "text": layer, "anchor": "middle"}
        for n, layer in enumerate(columns)
        if n % max(1, len(columns) // 24) == 0
    ]
    how = "logarithmic" if logarithmic else "linear"
    return {
        "title": title, "cells": cells, "labels": labels, "cell": width,
        "scale": f"light {number(low)} to dark {number(high)}, {how}; grey: not measured",
        "width": left + width * len(columns) + 8, "height": bottom + 6,
    }  # fmt: skip


def _short(value: float | None) -> str:
    """A value as text for a cell, which has room for five characters."""
    if value is None:
        return ""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def _share(value: float | None, low: float, high: float, logarithmic: bool) -> float | None:
    """Where a value lies between the lowest, 0, and the highest, 1; None if it was not measured."""
    if value is None:
        return None
    if logarithmic:
        value, low, high = (math.log(max(v, low)) for v in (value, low, high))
    return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 1.0


def _curves(diff: Diff) -> list[dict[str, Any]]:
    if not diff.is_series:
        return []
    steps = [step.step for step in diff.steps]
    titles = {
        "relative": "Relative size of the change in %",
        "norm": "Size of the change",
        "stable_rank": "Mean stable rank",
        "effective_rank": "Mean effective rank",
        "energy_rank_90": "Mean rank of 90% of the energy",
        "rank_above_floor": "Mean rank above the rounding floor",
    }
    found = []
    for name, title in titles.items():
        unit = 100 if name == "relative" else 1
        curve = zip(steps, diff.curves[name], strict=True)
        pairs = [(step, unit * value) for step, value in curve if value is not None]
        if len(pairs) < 2 or (name == "norm" and diff.curves["relative"][-1] is not None):
            continue
        high = max(value for _, value in pairs) or 1.0
        span = pairs[-1][0] - pairs[0][0] or 1
        places = [(round(46 + 268 * (s - pairs[0][0]) / span, 1), round(170 - 155 * v / high, 1)) for s, v in pairs]
        found.append(
            {
                "title": title,
                "points": " ".join(f"{x},{y}" for x, y in places),
                "dots": [
                    {"x": x, "y": y, "text": f"step {step}: {number(value)}"}
                    for (x, y), (step, value) in zip(places, pairs, strict=True)
                ],
                "ticks": [{"y": 170 - 155 * part, "text": number(high * part)} for part in (0.0, 0.5, 1.0)],
                "first": pairs[0][0],
                "last": pairs[-1][0],
            }
        )
    return found


def _spectra(diff: Diff) -> list[dict[str, str]]:
    rows = [row for row in diff.weights() if len(row.spectrum) > 1 and row.spectrum[0] > 0]
    found = []
    for row in sorted(rows, key=lambda row: -(_size(row) or 0.0))[:6]:
        n = len(row.spectrum) - 1
        logs = [max(-6.0, math.log10(s / row.spectrum[0])) if s > 0 else -6.0 for s in row.spectrum]
        points = " ".join(f"{10 + 300 * i / n:.1f},{10 - 20 * v:.1f}" for i, v in enumerate(logs))
        found.append({"title": show(row.name, 48), "points": points})
    return found


def _tables(diff: Diff) -> list[dict[str, Any]]:
    parts = [
        ("Steps", curve_table(diff) if diff.is_series else []),
        ("Layers", layer_table(diff)),
        ("Weights", weight_table(diff, everything=True)),
        ("Heads", head_table(diff)),
    ]
    return [
        {"title": title, "header": list(lines[0]), "lines": [list(line.values()) for line in lines[:_MOST_ROWS]]}
        for title, lines in parts
        if lines
    ]


def _size(row: Row) -> float | None:
    """In percent of the weight where that is known, else as it is."""
    return 100 * row.relative if row.relative is not None else row.norm


def _part(row: Row) -> str:
    """The name of a weight within its layer."""
    return show(row.name.removeprefix(f"{block_of(row.name)}.").removesuffix(".weight"), 40)


def _head(row: Row) -> str:
    return f"head {row.head}"
