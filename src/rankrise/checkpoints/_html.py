"""A diff as one self-contained page: heat maps by layer, curves of a series, spectra, and the tables.

Plain SVG made by a template that escapes everything, as names come from files; no script and nothing loaded.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rankrise.checkpoints import _text
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._names import block_of
from rankrise.checkpoints._result import Diff
from rankrise.checkpoints._rows import Row

if TYPE_CHECKING:
    import jinja2

_CELL = 18
_MOST_ROWS = 2000
_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><title>rankrise diff</title>
<style>
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:12px}
th,td{padding:.15rem .6rem;text-align:right;border-bottom:1px solid #eee;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.wide{overflow-x:auto}.fit{max-width:100%;height:auto}
svg{font:10px system-ui,sans-serif}code{background:#f4f4f4;padding:0 .2rem}
</style></head><body>
<h1>What training changed</h1>
<p>base <code>{{ base }}</code><br>tuned <code>{{ tuned }}</code></p>
{% for line in summary %}<p>{{ line }}</p>{% endfor %}
{% for curve in curves %}
<h2>{{ curve.title }}</h2>
<svg class="fit" width="640" height="220" viewBox="0 0 640 220" role="img" aria-label="{{ curve.title }}">
<line x1="50" y1="190" x2="630" y2="190" stroke="#999"/><line x1="50" y1="10" x2="50" y2="190" stroke="#999"/>
<polyline fill="none" stroke="#2563a8" stroke-width="2" points="{{ curve.points }}"/>
<text x="46" y="190" text-anchor="end">0</text><text x="46" y="18" text-anchor="end">{{ curve.high }}</text>
<text x="50" y="205">step {{ curve.first }}</text><text x="630" y="205" text-anchor="end">{{ curve.last }}</text>
</svg>
{% endfor %}
{% for map in maps %}
<h2>{{ map.title }}</h2>
<div class="wide"><svg width="{{ map.width }}" height="{{ map.height }}" role="img" aria-label="{{ map.title }}">
{% for label in map.labels %}<text x="{{ label.x }}" y="{{ label.y }}" text-anchor="end">{{ label.text }}</text>
{% endfor %}
{% for cell in map.cells %}<rect x="{{ cell.x }}" y="{{ cell.y }}" width="{{ size }}" height="{{ size }}" \
fill="{{ cell.colour }}"><title>{{ cell.text }}</title></rect>{% endfor %}
</svg></div><p>{{ map.scale }}</p>
{% endfor %}
{% for spectrum in spectra %}{% if loop.first %}<h2>Spectra of the largest changes (σ/σ₁, logarithmic)</h2>{% endif %}
<svg class="fit" width="320" height="150" viewBox="0 0 320 150" role="img" aria-label="{{ spectrum.title }}">
<polyline fill="none" stroke="#2563a8" stroke-width="1.5" points="{{ spectrum.points }}"/>
<polyline fill="none" stroke="#bbb" points="10,130 310,130"/>
<text x="10" y="146">{{ spectrum.title }}</text></svg>
{% endfor %}
{% for table in tables %}
<h2>{{ table.title }}</h2>
<div class="wide"><table><tr>{% for key in table.header %}<th>{{ key }}</th>{% endfor %}</tr>
{% for line in table.lines %}<tr>{% for cell in line %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table></div>
{% endfor %}
<p>Measured in {{ seconds }} s{{ ", summary only" if summary_only else "" }}.</p>
</body></html>
"""


def page(diff: Diff) -> str:
    """The whole page."""
    return _template().render(
        base=show(diff.base or "none: adapters hold their change"),
        tuned=", ".join(show(step.path.name) for step in diff.steps[:8]) + (" …" if len(diff.steps) > 8 else ""),
        summary=_text.summary_lines(diff),
        curves=_curves(diff),
        maps=_maps(diff),
        size=_CELL - 1,
        spectra=_spectra(diff),
        tables=_tables(diff),
        seconds=f"{diff.seconds:.1f}",
        summary_only=diff.summary,
    )


@functools.cache
def _template() -> "jinja2.Template":
    import jinja2

    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_TEMPLATE)


def _maps(diff: Diff) -> list[dict[str, Any]]:
    weights = [row for row in diff.weights() if row.layer >= 0 and row.kind != "vector"]
    sized = "Relative size of the change" if any(row.relative is not None for row in weights) else "Size of the change"
    maps = [
        _map(f"{sized}, by layer and weight", weights, _part, _size, logarithmic=True),
        _map("Stable rank of the change, by layer and weight", weights, _part, lambda row: row.stable_rank),
        _map("Directions above the rounding floor", weights, _part, lambda row: row.rank_above_floor),
    ]
    for circuit, title in (("kq", "K Qᵀ"), ("vo", "V Oᵀ")):
        rows = [row for row in diff.circuits() if row.circuit == circuit]
        maps.append(_map(f"{title}: relative size, by layer and head", rows, _head, _size, logarithmic=True))
        maps.append(_map(f"{title}: stable rank, by layer and head", rows, _head, lambda row: row.stable_rank))
    return [found for found in maps if found is not None]


def _map(
    title: str,
    rows: Sequence[Row],
    line: Callable[[Row], str],
    get: Callable[[Row], float | None],
    *,
    logarithmic: bool = False,
) -> dict[str, Any] | None:
    """Layers from left to right, parts or heads from top to bottom; darker is more, grey was not measured."""
    known = [value for row in rows if (value := get(row)) is not None and (value > 0 or not logarithmic)]
    if not known:
        return None
    lines = list(dict.fromkeys(line(row) for row in rows))
    columns = sorted({row.layer for row in rows})
    high = max(known)
    low = min(*known, high / 10) if logarithmic else 0.0  # equal values are one colour, not the noise between them
    left = 12 + 6 * max(len(text) for text in lines)
    cells = []
    for row in rows:
        value = get(row)
        x, y = left + _CELL * columns.index(row.layer), 4 + _CELL * lines.index(line(row))
        text = f"{show(row.name, 80)}: {_text.number(value) if row.status == 'changed' else row.status}"
        cells.append({"x": x, "y": y, "colour": _colour(value, low, high, logarithmic), "text": text})
    labels = [{"x": left - 6, "y": 17 + _CELL * n, "text": text} for n, text in enumerate(lines)]
    bottom = 18 + _CELL * len(lines)
    labels += [
        {"x": left + _CELL * n + 14, "y": bottom, "text": layer}
        for n, layer in enumerate(columns)
        if n % max(1, len(columns) // 24) == 0
    ]
    how = "logarithmic" if logarithmic else "linear"
    scale = f"white {_text.number(low)} to dark {_text.number(high)}, {how}; layers from left to right"
    return {
        "title": title, "cells": cells, "labels": labels, "scale": scale,
        "width": left + _CELL * len(columns) + 8, "height": bottom + 6,
    }  # fmt: skip


def _colour(value: float | None, low: float, high: float, logarithmic: bool) -> str:
    if value is None:
        return "#dddddd"
    if logarithmic:
        value, low, high = (math.log(max(v, low)) for v in (value, low, high))
    share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 1.0
    red, green, blue = (round(light + share * (dark - light)) for light, dark in ((247, 8), (251, 48), (255, 107)))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _curves(diff: Diff) -> list[dict[str, Any]]:
    if not diff.is_series:
        return []
    steps = [step.step for step in diff.steps]
    titles = {
        "relative": "Relative size of the change",
        "norm": "Size of the change",
        "stable_rank": "Mean stable rank",
        "effective_rank": "Mean effective rank",
        "energy_rank_90": "Mean rank of 90% of the energy",
        "rank_above_floor": "Mean rank above the rounding floor",
    }
    found = []
    for name, title in titles.items():
        pairs = [(step, value) for step, value in zip(steps, diff.curves[name], strict=True) if value is not None]
        if len(pairs) < 2 or (name == "norm" and diff.curves["relative"][-1] is not None):
            continue
        high = max(value for _, value in pairs) or 1.0
        span = pairs[-1][0] - pairs[0][0] or 1
        points = " ".join(f"{50 + 580 * (s - pairs[0][0]) / span:.1f},{190 - 175 * v / high:.1f}" for s, v in pairs)
        found.append(
            {
                "title": title,
                "points": points,
                "high": _text.number(high),
                "first": steps[0],
                "last": steps[-1],
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
        ("Steps", _text.curve_table(diff) if diff.is_series else []),
        ("Layers", _text.layer_table(diff)),
        ("Weights", _text.weight_table(diff, everything=True)),
        ("Heads", _text.head_table(diff)),
    ]
    return [
        {"title": title, "header": list(lines[0]), "lines": [list(line.values()) for line in lines[:_MOST_ROWS]]}
        for title, lines in parts
        if lines
    ]


def _size(row: Row) -> float | None:
    return row.relative if row.relative is not None else row.norm


def _part(row: Row) -> str:
    """The name within its layer."""
    return show(row.name.removeprefix(f"{block_of(row.name)}.").removesuffix(".weight"), 40)


def _head(row: Row) -> str:
    return f"head {row.head}"
