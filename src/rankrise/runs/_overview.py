"""A run in a few lines: what was tracked, how far it is, its ranks now, the stages seen."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rankrise.runs._curve import NotMeasurable
from rankrise.runs._learned import CIRCUITS, RunStage, layer_means

if TYPE_CHECKING:
    from rankrise.runs._run_data import RunData
    from rankrise.tracking import Alert

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class LayerRow:
    """One circuit of one layer.

    Attributes:
        layer: The layer, counted from 0.
        circuit: "kq" or "vo".
        num_heads: Number of heads that were measured.
        rank: Stable rank of the change now, mean over heads; NaN if it was not measured.
        norm: ‖Δ‖_F now, mean over heads; NaN if it was not measured.
        curve: The stable rank over training, mean over heads.
        stages: Rises of that rank.
    """

    layer: int
    circuit: str
    num_heads: int
    rank: float
    norm: float
    curve: tuple[float, ...]
    stages: tuple[RunStage, ...]


@dataclass(frozen=True)
class Progress:
    """What was tracked and how far a run is.

    Attributes:
        source: The name of the run.
        state: "finished", "running", "stopped" or "damaged".
        num_layers: Number of layers with attention that are tracked.
        num_heads: Number of tracked heads of every layer, smallest and largest.
        first_step: The first step that was recorded; -1 if there is none.
        last_step: The last step that was recorded; -1 if there is none.
        num_rows: Number of rows of the table.
        loss: The last loss; NaN if none was recorded.
    """

    source: str
    state: str
    num_layers: int
    num_heads: tuple[int, int]
    first_step: int
    last_step: int
    num_rows: int
    loss: float

    @property
    def words(self) -> str:
        """Say in words what was tracked and how far the run is, without its name.

        >>> Progress("mine", "running", 2, (4, 4), 0, 400, 10, 0.5).words
        'running, 2 layers × 4 heads, steps 0 to 400, loss 0.5'
        """
        low, high = self.num_heads
        heads = f"{low}" if low == high else f"{low} to {high}"
        plural = "" if self.num_layers == 1 else "s"
        what = f"{self.num_layers} layer{plural} × {heads} heads" if self.num_layers else "no attention tracked"
        steps = f"steps {self.first_step} to {self.last_step}" if self.last_step >= 0 else "nothing recorded yet"
        loss = f", loss {self.loss:.4g}" if np.isfinite(self.loss) else ""
        return f"{self.state}, {what}, {steps}{loss}"


@dataclass(frozen=True)
class Overview(Progress):
    """The summary with which `repr` of a run, `rankrise show` and the page of a run begin.

    Attributes:
        rows: One row for each circuit of each layer.
        stages: All stages in order of time.
        notes: The tracker's notes on the model, such as layers that are left out.
        alerts: The alerts of the tracker in order of time.
    """

    rows: tuple[LayerRow, ...]
    stages: tuple[RunStage, ...]
    notes: tuple[str, ...]
    alerts: tuple["Alert", ...] = ()


def progress(run: "RunData") -> Progress:
    """Return how far a run is; this is cheap, because no stages are looked for."""
    heads = [int(layer["num_heads"]) for layer in run.tracked_layers]
    steps = run.table["step"].to_numpy()
    return Progress(
        source=run.source,
        state=run.state,
        num_layers=len(heads),
        num_heads=(min(heads, default=0), max(heads, default=0)),
        first_step=int(steps.min(initial=np.iinfo(np.int64).max)) if len(steps) else -1,
        last_step=int(steps.max(initial=-1)),
        num_rows=run.table.num_rows,
        loss=_last_loss(run),
    )


def overview(run: "RunData") -> Overview:
    """Gather the overview of a run; quantities that were not measured are left empty."""
    stages = run.stages()
    return Overview(
        **vars(progress(run)),
        rows=tuple(row for circuit in CIRCUITS for row in _rows(run, circuit, stages)),
        stages=stages,
        notes=run.notes,
        alerts=run.alerts(),
    )


def _last_loss(run: "RunData") -> float:
    for name in ("loss", "train_loss"):
        if run.has(name):
            return float(run.curve(name).values[-1])
    return float("nan")


def _rows(run: "RunData", circuit: str, stages: Sequence[RunStage]) -> list[LayerRow]:
    try:
        layers, _, ranks = layer_means(run, "stable_rank", circuit)
    except NotMeasurable:
        return []
    try:
        norms = layer_means(run, "frobenius_norm", circuit)[2]
    except NotMeasurable:
        norms = np.full((1, len(layers)), np.nan)
    heads = {int(layer["index"]): int(layer["num_heads"]) for layer in run.tracked_layers}
    return [
        LayerRow(
            layer=layer,
            circuit=circuit,
            num_heads=heads.get(layer, 0),
            rank=_last_finite(ranks[:, column]),
            norm=_last_finite(norms[:, column]),
            curve=tuple(float(value) for value in ranks[:, column]),
            stages=tuple(stage for stage in stages if (stage.layer, stage.circuit) == (layer, circuit)),
        )
        for column, layer in enumerate(layers)
    ]


def _last_finite(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    there = values[np.isfinite(values)]
    return float(there[-1]) if len(there) else float("nan")


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve as a line of text; gaps are blanks.

    >>> sparkline([0.0, 1.0, 2.0, float("nan"), 3.0])
    '▁▃▆ █'
    """
    row = np.asarray(values, dtype=np.float64)
    if len(row) > width:
        edges = np.linspace(0, len(row), width + 1).astype(int)
        row = np.array([_mean_of_finite(row[a:b]) for a, b in itertools.pairwise(edges)])
    there = row[np.isfinite(row)]
    low, span = (there.min(), np.ptp(there)) if len(there) else (0.0, 0.0)
    places = [(value - low) / span * (len(_BARS) - 1) if span else 0.0 for value in row]
    return "".join(" " if np.isnan(place) else _BARS[round(place)] for place in places)


def _mean_of_finite(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else float("nan")


def headline(found: Progress) -> str:
    """The name of the run, what was tracked and how far it is, in one line.

    >>> headline(Progress("mine", "running", 2, (4, 4), 0, 400, 10, 0.5))
    'mine: running, 2 layers × 4 heads, steps 0 to 400, loss 0.5'
    """
    return f"{found.source}: {found.words}"


def overview_text(found: Overview) -> str:
    """The headline, a line for each circuit with its ranks now by layer, and the stages seen."""
    lines = [headline(found)]
    for circuit in CIRCUITS:
        ranks = [f"{row.rank:.2f}" for row in found.rows if row.circuit == circuit]
        if ranks:
            shown = ranks if len(ranks) <= 12 else [*ranks[:6], "…", *ranks[-5:]]
            lines.append(f"  stable rank of Δ {circuit} by layer: {' '.join(shown)}")
    rises = sum(stage.kind == "rank" for stage in found.stages)
    drops = sum(stage.kind == "loss" for stage in found.stages)
    lines.append(f"  stages seen: {rises} rises of a layer's rank, {drops} drops of the loss")
    lines += [f"  alert: {alert.sentence}" for alert in found.alerts]
    return "\n".join(lines)


def overview_html(found: Overview) -> str:
    """The overview as a table for a notebook; names are escaped."""
    from html import escape

    cells = "".join(
        f"<tr><td>{row.layer}</td><td>{escape(row.circuit)}</td><td>{row.rank:.2f}</td><td>{row.norm:.3g}</td>"
        f"<td style='font-family:monospace'>{sparkline(row.curve)}</td>"
        f"<td>{', '.join(f'{stage.step:.0f}' for stage in row.stages)}</td></tr>"
        for row in found.rows
    )
    head = "".join(
        f"<th>{name}</th>" for name in ("layer", "circuit", "stable rank", "‖Δ‖_F", "over training", "stages at step")
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>" if cells else ""
    alerts = "".join(f"<p>Alert: {escape(alert.sentence)}</p>" for alert in found.alerts)
    return f"<p>{escape(headline(found))}</p>{alerts}{table}"
