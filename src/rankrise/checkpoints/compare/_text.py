"""A diff as a person reads it in a terminal: the summary first, then a table by layer, then heads."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rankrise._tables import table
from rankrise.checkpoints.compare._result import Diff, Row, Total, relative_size
from rankrise.checkpoints.files import show

_MOST_ROWS = 60
_LEFT = ("weight", "shape", "dtype", "layer", "attention")
# Whole words of a name: T5 calls the last layer of its feed-forward `DenseReluDense.wo`, and `network` has a `wo` too.
_ATTENTION = re.compile(
    r"att(n|ention)|(^|[._])(query|key|value|qkv)([._]|$)|(^|\.)([qkvo]_(proj|lin|head)|to_[qkv]|w[qkvo]|wqkv)(\.|$)",
    re.IGNORECASE,
)
_FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward|densereludense|experts?\.", re.IGNORECASE)
_COLUMNS = ("step", "relative", "stable_rank", "effective_rank", "energy_rank_90", "rank_above_floor", "overlap")


def diff_text(diff: Diff, *, everything: bool = False) -> str:
    """A diff as it is printed: the summary, the curve of a series, layers, weights, heads.

    Args:
        diff: What `diff` returned.
        everything: Also list unchanged weights, and all of long tables.
    """
    parts = ["\n".join(summary_lines(diff))]
    if diff.is_series:
        parts.append(table(curve_table(diff)))
        if diff.stages is not None:
            parts.append("\n".join(f"stage at step {s.midpoint:.6g}" for s in diff.stages.stages) or "no stages")
    if everything or not diff.is_identical:
        for lines in (layer_table(diff), weight_table(diff, everything=everything), head_table(diff)):
            shown = lines if everything else lines[:_MOST_ROWS]
            if shown:
                more = len(lines) - len(shown)
                parts.append(table(shown, left=_LEFT) + (f"\n… and {more} more: --all lists them" if more else ""))
    return "\n\n".join(parts)


def summary_lines(diff: Diff) -> list[str]:
    """What changed most, where, in total, and what could not be read."""
    total = diff.totals[-1]
    lines = [_headline(diff, total)]
    rows = [row for row in diff.weights() if row.status == "changed"]
    if rows and not diff.is_identical:
        most = sorted(rows, key=_size, reverse=True)[:5]
        lines.append("changed most: " + ", ".join(f"{show(row.name, 80)} {_sized(row)}" for row in most))
        by_kind = _groups(rows)
        if len(by_kind) > 1:
            shares = ", ".join(f"{kind} {share:.0%}" for kind, share in by_kind[:6])
            lines.append(f"where (share of the squared change): {shares}")
    lines += _alarm_lines(diff)
    if total.num_not_finite:
        names = [show(row.name, 60) for row in diff.weights() if not row.is_finite]
        lines.append(f"not finite: {len(names)} weights hold NaN or infinity, such as {names[0]}")
    lines += [f"note: {note}" for note in diff.notes]
    return lines


def weight_table(diff: Diff, *, step: int | None = None, everything: bool = False) -> list[dict[str, str]]:
    """A line for every weight that changed or could not be read, in the order of the layers."""
    rows = [row for row in diff.weights(step) if everything or row.status not in ("identical", "unchanged")]
    return _without_empty([_line(row, diff.summary) for row in rows])


def layer_table(diff: Diff, step: int | None = None) -> list[dict[str, str]]:
    """A line for every layer: size of the change and mean ranks of its matrices."""
    layers: dict[int, list[Row]] = {}
    for row in diff.weights(step):
        layers.setdefault(row.layer, []).append(row)
    lines = []
    for layer in sorted(layers, key=lambda n: (n < 0, n)):
        rows = layers[layer]
        matrices = [row for row in rows if row.kind != "vector" and row.status == "changed"]
        lines.append(
            {
                "layer": "other" if layer < 0 else str(layer),
                "weights": str(len(rows)),
                "changed": str(sum(row.status == "changed" for row in rows)),
                "relative": percent(relative_size(rows)),
                "norm": number(_norm(rows)),
                "stable rank": number(_mean(row.stable_rank for row in matrices)),
                **({} if diff.summary else {"effective": number(_mean(row.effective_rank for row in matrices))}),
                "above floor": number(_mean(row.rank_above_floor for row in matrices)),
            }
        )
    return _without_empty(lines)


def head_table(diff: Diff, step: int | None = None) -> list[dict[str, str]]:
    """A line for every head: both circuits. Where a model has several towers, each line names the attention.

    Layers of attention are numbered through, so that the first layer of a second tower is not layer 0.
    """
    heads: dict[tuple[int, int], dict[str, Row]] = {}
    for row in diff.circuits(step):
        heads.setdefault((row.layer, row.head), {})[row.circuit] = row
    has_towers = len({re.sub(r"\d+", "#", row.name) for rows in heads.values() for row in rows.values()}) > 1
    lines = []
    for (layer, head), rows in sorted(heads.items()):
        name = {"attention": show(next(iter(rows.values())).name, 64)} if has_towers else {}
        line = {"layer": str(layer), **name, "head": str(head)}
        for circuit, row in sorted(rows.items()):
            line |= {
                f"{circuit} relative": percent(row.relative) if row.status == "changed" else row.status,
                f"{circuit} stable": number(row.stable_rank),
                f"{circuit} 90%": number(row.energy_rank_90),
                f"{circuit} null": number(row.null_stable_rank),
                f"{circuit} above floor": number(row.rank_above_floor),
            }
        lines.append(line)
    return _without_empty(lines)


def curve_table(diff: Diff) -> list[dict[str, str]]:
    """A line for every step."""
    columns = [name for name in _COLUMNS[1:] if any(value is not None for value in diff.curves[name])]
    if "relative" not in columns:
        columns.insert(0, "norm")
    shown = {name: percent if name == "relative" else number for name in columns}
    return [
        {"step": str(step.step)} | {_title(name): shown[name](diff.curves[name][i]) for name in columns}
        for i, step in enumerate(diff.steps)
    ]


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share in percent with three digits, or a dash.

    >>> percent(0.04567), percent(1.5), percent(None)
    ('4.57%', '150%', '-')
    """
    return "-" if value is None or value != value else f"{100 * value:.3g}%"


def changed_by(value: float) -> str:
    """The one number that says how much a model changed, in the words of `diff` and `lora`.

    >>> changed_by(0.02)
    'the matrices changed by 2%'
    """
    return f"the matrices changed by {percent(value)}"


def _headline(diff: Diff, total: Total) -> str:
    if diff.is_identical:
        return f"identical: none of {total.num_tensors} weights differs ({total.num_parameters:,} parameters)"
    size = f"‖Δ‖ = {number(total.norm)}"
    if total.relative is not None:
        between = any(pair.base_delta is not None for pair in diff.preflights[-1].pairs)
        size = f"{changed_by(total.relative)}{' of what the base adapter adds' if between else ''}; {size}"
    return f"{total.num_changed} of {total.num_tensors} weights changed ({total.num_parameters:,} parameters); {size}"


def _line(row: Row, summary: bool) -> dict[str, str]:
    changed = row.status == "changed"
    values: dict[str, Any] = {
        "weight": show(row.name, 64),
        "shape": "×".join(map(str, row.shape)) or "1",
        "dtype": row.dtype,
        "relative": percent(row.relative) if changed else row.status,
        "norm": number(row.norm),
        "stable rank": number(row.stable_rank),
    }
    if not summary:
        values |= {
            "null": number(row.null_stable_rank),
            "effective": number(row.effective_rank),
            "90% energy": number(row.energy_rank_90),
        }
    at_least = "≥" if summary and row.rank_above_floor is not None and row.rank_above_floor >= 8 else ""
    return values | {"above floor": at_least + number(row.rank_above_floor), "alarm": _alarm(row)}


def _alarm(row: Row) -> str:
    found = ["spike"] if row.has_spike else []
    if row.intruders:
        found.append(f"{row.intruders} intruder{'s' if row.intruders > 1 else ''}")
    return ", ".join(found) or "-"


def _alarm_lines(diff: Diff) -> list[str]:
    """Spikes of rank 1 and intruder dimensions, each beside what a random change of the same size would show."""
    rows = diff.weights()
    lines = []
    judged = [row for row in rows if row.has_spike is not None]
    spikes = sorted((row for row in judged if row.has_spike), key=lambda row: row.stable_rank or 0.0)
    if spikes:
        most = spikes[0]
        null = 1 / (most.null_stable_rank or 1.0)
        lines.append(
            f"alarm: a spike of rank 1 in {len(spikes)} of {len(judged)} matrices: one direction holds more than two "
            f"thirds of the squared change, {percent(1 / (most.stable_rank or 1.0))} in {show(most.name, 80)}, where a "
            f"random change has {percent(null)}"
        )
    compared = [row for row in rows if row.least_cosine is not None]
    new = sorted((row for row in compared if row.intruders), key=lambda row: row.least_cosine or 0.0)
    if new:
        most = new[0]
        lines.append(
            f"alarm: intruder dimensions in {len(new)} of {len(compared)} matrices: leading directions of the tuned "
            f"weight that are new to the base, {most.intruders} in {show(most.name, 80)} (cosine "
            f"{number(most.least_cosine)} with the base's leading directions, where a random change of this size "
            f"leaves {number(most.null_least_cosine)})"
        )
    if judged and not lines:
        against = f", and none of {len(compared)} an intruder dimension" if compared else ""
        lines.append(f"alarms: none of {len(judged)} matrices has a spike of rank 1{against}")
    return lines


def _title(name: str) -> str:
    return {"overlap": "cosine", "energy_rank_90": "90% energy", "rank_above_floor": "above floor"}.get(
        name, name.replace("_", " ")
    )


def _size(row: Row) -> float:
    return row.relative if row.relative is not None else row.norm or 0.0


def _sized(row: Row) -> str:
    return percent(row.relative) if row.relative is not None else f"‖Δ‖ {number(row.norm)}"


def _norm(rows: Sequence[Row]) -> float | None:
    known = [row.norm for row in rows if row.norm is not None]
    return sum(norm**2 for norm in known) ** 0.5 if known else None


def _without_empty(lines: list[dict[str, str]]) -> list[dict[str, str]]:
    """Leave out columns that hold nothing, and absolute sizes where there are relative ones."""
    kept = [key for key in (lines[0] if lines else {}) if any(line[key] != "-" for line in lines)]
    if "relative" in kept and any(line["relative"][:1].isdigit() for line in lines):
        kept.remove("norm")
    return [{key: line[key] for key in kept} for line in lines]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _groups(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """Shares of the squared change by the part of the model, largest first."""
    squares: dict[str, float] = {}
    for row in rows:
        squares[_part(row)] = squares.get(_part(row), 0.0) + (row.norm or 0.0) ** 2
    total = sum(squares.values())
    return sorted(((part, square / total) for part, square in squares.items()), key=lambda s: -s[1]) if total else []


def _part(row: Row) -> str:
    if row.kind == "vector":
        return "norms and biases"
    if row.layer < 0:
        return "embeddings and heads"
    return "attention" if _ATTENTION.search(row.name) and not _FEED_FORWARD.search(row.name) else "mlp"
