"""The curves of a run as one piece of HTML for the cell of a notebook, which needs no script and no server."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankrise.runs import RunData
from rankrise.store import Followed
from rankrise.view._colours import OKABE_ITO, colour_ramps, shade
from rankrise.view.live._snapshot import snapshot

_WIDTH, _HEIGHT = 300, 170
_LEFT, _TOP, _RIGHT, _BOTTOM = 44, 22, 8, 20
_NAMES = {"kq": "stable rank of kq", "vo": "stable rank of vo"}
_BRIGHTEST = 0.75  # end of the part of the dark page's ramp that is used: its colours are seen on white as well
_MOST_NAMED = 12  # most layers in the legend


class _Line(NamedTuple):
    name: str
    colour: str
    steps: Sequence[float]
    values: Sequence[float | None]


def run_cell(folder: Path, followed: Followed, *, with_stages: bool = False) -> str:
    """The loss and the stable ranks by layer as HTML; names are escaped.

    Args:
        folder: The run directory.
        followed: What was read of the run.
        with_stages: Whether to look for stages, which may take a second, and to mark them.
    """
    run = RunData.of_followed(folder, followed)
    found = snapshot(run, followed.state, run.stages() if with_stages else None)
    charts = []
    for name in list(found["scalars"])[:1]:
        curve = found["scalars"][name]
        line = _Line(name, OKABE_ITO["blue"], curve["steps"], curve["values"])
        charts.append(_chart(name, [line], _steps(found, "loss", "") if "loss" in name else []))
    legend = ""
    for circuit, curve in found["curves"].get("stable_rank", {}).items():
        lines = [
            _Line(f"layer {layer}", _colour(place, len(curve["layers"])), curve["steps"], curve["values"][place])
            for place, layer in enumerate(curve["layers"])
        ]
        charts.append(_chart(_NAMES[circuit], lines, _steps(found, "rank", circuit)))
        legend = _legend(lines)
    last = "nothing recorded yet" if found["lastStep"] is None else f"step {found['lastStep']}"
    alerts = "".join(f"<div><b>Alert:</b> {html.escape(sentence)}</div>" for sentence in found["alerts"])
    head = f"<div><b>{html.escape(run.source)}</b> · {html.escape(followed.state)} · {last}</div>"
    return f'<div style="font:13px system-ui,sans-serif">{head}{alerts}{"".join(charts)}{legend}</div>'


def _colour(place: int, num: int) -> str:
    return shade(_BRIGHTEST * (place / (num - 1) if num > 1 else 0.5), tuple(colour_ramps()["dark"]))


def _steps(found: dict[str, Any], kind: str, circuit: str) -> list[float]:
    stages = found["stages"] or []
    return [stage["step"] for stage in stages if (stage["kind"], stage["circuit"]) == (kind, circuit)]


def _legend(lines: Sequence[_Line]) -> str:
    keys = "".join(
        f'<span style="margin-right:12px"><span style="color:{line.colour}">■</span> {line.name}</span>'
        for line in lines[:_MOST_NAMED]
    )
    more = f"and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    return f"<div>{keys}{more}</div>"


def _chart(title: str, lines: Sequence[_Line], marks: Sequence[float]) -> str:
    there = [value for line in lines for value in line.values if value is not None]
    steps = [step for line in lines for step in line.steps]
    if not there:
        return ""
    low, high, first, last = min(there), max(there), min(steps), max(steps)
    height, width = _HEIGHT - _TOP - _BOTTOM, _WIDTH - _LEFT - _RIGHT

    def x(step: float) -> float:
        return _LEFT + (step - first) / ((last - first) or 1) * width

    def y(value: float) -> float:
        return _TOP + (1 - (value - low) / ((high - low) or 1)) * height

    def path(line: _Line) -> str:
        found = [(x(s), y(v)) for s, v in zip(line.steps, line.values, strict=True) if v is not None]
        if len(found) == 1:  # a line of one point would not be seen
            return f'<circle cx="{found[0][0]:.1f}" cy="{found[0][1]:.1f}" r="3" fill="{line.colour}"/>'
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in found)
        return f'<polyline fill="none" stroke="{line.colour}" stroke-width="1.6" points="{points}"/>'

    paths = "".join(path(line) for line in lines)
    stages = "".join(
        f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{_TOP}" y2="{_TOP + height}" stroke="{OKABE_ITO["orange"]}" '
        f'stroke-dasharray="2 3"><title>step {step:.0f}</title></line>'
        for step in marks
    )
    axis = (
        f'<path d="M{_LEFT} {_TOP}V{_TOP + height}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor" opacity=".4"/>'
    )
    words = "".join(
        f'<text x="{at_x}" y="{at_y}" text-anchor="{anchor}" fill="currentColor" font-size="11">{text}</text>'
        for at_x, at_y, anchor, text in (
            (_LEFT - 5, _TOP + 8, "end", f"{high:.3g}"),
            (_LEFT - 5, _TOP + height, "end", f"{low:.3g}"),
            (_LEFT, _HEIGHT - 5, "start", f"{first:g}"),
            (_WIDTH - _RIGHT, _HEIGHT - 5, "end", f"{last:g}"),
            (_LEFT, 12, "start", html.escape(title)),
        )
    )
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f"<svg {size}>{axis}{stages}{paths}{words}</svg>"
