"""What a run has learned as rows of text: what `rankrise show` prints and the page of a run shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankrise.runs import NotMeasurable, headline, sparkline, whole_numbers
from rankrise.view._networks import CIRCUITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankrise.checkpoints import Advice
    from rankrise.runs import HeadChange, Overview, RunData, RunStage

ENERGY = 0.9  # share of the squared change of every matrix that the advised ranks keep
_MOST_STAGES = 6  # most stages of a layer that a cell of the table lists
_MOST_ALERTS = 10  # most alerts that are shown, because a run may have one for every head
_ROLES = ("q", "k", "v", "o")


@dataclass(frozen=True)
class RunSummary:
    """What a run has learned, read once.

    Attributes:
        run: The run.
        overview: What was tracked, the ranks now, and the stages.
        heads: The heads from the one that learned most; empty if they cannot be ranked.
        heads_missing: Why the heads cannot be ranked; empty if they can.
        advice: The LoRA ranks that keep a share `ENERGY` of every matrix; None if they are not known.
        advice_missing: Why no ranks are known; empty if they are.
        is_broken: Whether the last measurement of the loss or of a rank is not finite.
    """

    run: "RunData"
    overview: "Overview"
    heads: "tuple[HeadChange, ...]"
    heads_missing: str
    advice: "Advice | None"
    advice_missing: str
    is_broken: bool

    @property
    def headline(self) -> str:
        """What was tracked and how far the run is, in one line."""
        return headline(self.overview)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been recorded yet."""
        return self.overview.last_step < 0

    def layer_rows(self) -> list[dict[str, str]]:
        """For each circuit of each layer its rank and size now, the course of its rank, and its stages."""
        return [
            {
                "layer": str(row.layer),
                "circuit": row.circuit,
                "stable rank": _number(row.rank, ".2f"),
                "size of change": _number(row.norm, ".3g"),
                "rank over training": sparkline(row.curve),
                "rises at step": _steps(row.stages),
            }
            for row in self.overview.rows
        ]

    def head_rows(self, most: int = 10) -> list[dict[str, str]]:
        """The heads that learned most: how much in units of an average head, and the ranks of both circuits."""
        return [
            {
                "layer": str(change.layer),
                "head": str(change.head),
                "learned": f"{change.learned:.2f} ×",
                **{f"size of {name}": _number(change.norms.get(name), ".3g") for name in CIRCUITS},
                **{f"rank of {name}": _number(change.ranks.get(name), ".2f") for name in CIRCUITS},
            }
            for change in self.heads[:most]
        ]

    def rank_rows(self) -> list[dict[str, str]]:
        """The advised LoRA ranks of the matrices q, k, v, o of each layer; a fused matrix has one rank in its cells."""
        if self.advice is None:
            return []
        ranks = {module.name: module.rank for module in self.advice.modules}
        rows = []
        for layer in self.run.tracked_layers:
            views = layer["views"]
            names = {role: views[role]["parameter"].removesuffix(".weight") for role in _ROLES if role in views}
            cells = {role: str(ranks.get(names[role], "-")) if role in names else "-" for role in _ROLES}
            rows.append({"layer": str(layer["index"]), **cells})
        return rows

    def remarks(self) -> list[str]:
        """Sentences below the tables: alerts, drops of the loss, numbers that are not finite, notes of the tracker."""
        found = [f"Alert: {sentence}" for sentence in self.alert_sentences()]
        if self.is_empty:
            found.append("Nothing has been recorded yet: the tracker writes its first rows when it first measures.")
        drops = [stage for stage in self.overview.stages if stage.kind == "loss"]
        if drops:
            found.append(f"The loss drops at step {_steps(drops)}.")
        if self.is_broken:
            found.append(
                "The last loss or ranks are not finite: the training diverged. The ranks are the last that were."
            )
        if others := _others(self.run):
            found.append(f"Recorded too, at the end: {', '.join(others)}.")
        return [*found, *self.overview.notes]

    def alert_sentences(self) -> list[str]:
        """The first alerts of the run, each in a sentence, and how many more there are."""
        alerts = self.overview.alerts
        shown = [alert.sentence for alert in alerts[:_MOST_ALERTS]]
        return [*shown, f"There are {len(alerts) - len(shown)} more alerts."] if len(alerts) > len(shown) else shown

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values; a number that is not finite is None."""
        record = {
            "folder": str(self.run.folder),
            "headline": self.headline,
            **asdict(self.overview),
            "alerts": [{**asdict(alert), "sentence": alert.sentence} for alert in self.overview.alerts],
            "is_broken": self.is_broken,
            "heads": [asdict(change) for change in self.heads],
            "heads_missing": self.heads_missing,
            "advice": None if self.advice is None else self.advice.to_json(),
            "advice_missing": self.advice_missing,
        }
        found: dict[str, Any] = _finite(record)
        return found


def summarise(run: "RunData", *, advise: "Callable[..., Advice]") -> RunSummary:
    """Read what a run has learned; what was not measured is left empty, with the reason.

    Args:
        run: A run in any state.
        advise: `rankrise.checkpoints.advise_run`, passed in because checkpoints draw their own page with this package.

    Raises:
        ValueError: A file of the run is damaged.
    """
    overview = run.overview()
    heads: tuple[HeadChange, ...] = ()
    heads_missing = ""
    try:
        heads = run.heads()
    except NotMeasurable as error:
        heads_missing = str(error)
    advice, advice_missing = _advice(run, advise)
    return RunSummary(run, overview, heads, heads_missing, advice, advice_missing, _is_broken(run, overview))


def compared_ranks(summaries: Mapping[str, RunSummary]) -> list[str]:
    """A line for each circuit that puts the ranks of several runs side by side: the means over layers and heads."""
    lines = []
    for circuit in CIRCUITS:
        found = []
        for label, summary in summaries.items():
            rows = [row for row in summary.overview.rows if row.circuit == circuit and math.isfinite(row.rank)]
            rank = f"{np.mean([row.rank for row in rows]):.2f}" if rows else "not measured"
            found.append(f"{label}: {rank}")
        lines.append(f"stable rank of {circuit}, mean over layers: {'; '.join(found)}")
    return lines


def _advice(run: "RunData", advise: "Callable[..., Advice]") -> "tuple[Advice | None, str]":
    if not run.tracked_layers:
        return None, "LoRA ranks are advised for attention, and no attention was tracked."
    try:
        return advise(run.folder, energy=ENERGY), ""
    except (OSError, ValueError) as error:
        return None, str(error)


def _is_broken(run: "RunData", overview: "Overview") -> bool:
    lost = [row for row in overview.rows if row.curve and not math.isfinite(row.curve[-1])]
    has_loss = any(run.has(name) for name in ("loss", "train_loss"))
    return (overview.last_step > 0 and bool(lost)) or (has_loss and not math.isfinite(overview.loss))


def _others(run: "RunData") -> list[str]:
    """Return the last values of what the user logged beside the loss and of what probes read, with their names."""
    curves = {name: curve.values for name, curve in whole_numbers(run).items() if name not in ("loss", "train_loss")}
    found = {name: values[np.isfinite(values)] for name, values in curves.items()}
    if run.has("attention_entropy_share", "kq"):
        share = run.curve("attention_entropy_share", circuit="kq").values[-1]
        found["attention_entropy_share of the lowest head"] = np.sort(share[np.isfinite(share)])[:1]
    return [f"{name} {_all_digits(values[-1])}" for name, values in found.items() if len(values)]


def _all_digits(value: float) -> str:
    """A count with all its digits, and anything else with four."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _steps(stages: "Sequence[RunStage]") -> str:
    steps = [f"{stage.step:.0f}" for stage in stages[:_MOST_STAGES]]
    return ", ".join([*steps, "…"] if len(stages) > _MOST_STAGES else steps)


def _finite(value: Any) -> Any:
    """A value of JSON without NaN and infinities."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
