"""The answer of the prediction study: losses by method, and paired differences with their intervals."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from studies.prediction_spec import METHODS
from studies.prediction_stages import StageRecord, chosen_rate, is_bracketed, read_stages, validation_losses

from rankrise.store import load_run, load_spec

_ROWS = {
    "pretrain": "before tuning",
    "tune": "full fine-tune",
    "advised": "LoRA, advised ranks",
    "uniform": "LoRA, one rank",
    "adalora": "AdaLoRA",
}


@dataclass(frozen=True)
class PairedDifference:
    """Mean of first − second over repetitions, with the 95% interval of Student's t; negative: the first is better."""

    first: str
    second: str
    mean: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or `undecided` where the interval contains 0."""
        return "better" if self.high < 0 else "worse" if self.low > 0 else "undecided"


@dataclass(frozen=True)
class MethodResult:
    """One row: test losses of the repetitions, in nats a token."""

    stage: str  # "pretrain", "tune", or a method
    test_losses: tuple[float, ...]
    learning_rate: float | None = None  # chosen by repetition 0
    is_bracketed: bool = True  # whether a lower and a higher rate were tried
    parameters: float | None = None  # mean over repetitions

    @property
    def mean(self) -> float:
        """Of the test losses."""
        return math.fsum(self.test_losses) / len(self.test_losses)


@dataclass(frozen=True)
class Prediction:
    """The result of a run: five rows, and advised − uniform, advised − AdaLoRA."""

    methods: tuple[MethodResult, ...]
    differences: tuple[PairedDifference, ...]
    tried: dict[str, dict[float, float]]  # method: learning rate: validation loss of repetition 0
    library: dict[str, Any]
    num_planned: int  # repetitions; more than there are if the run was cut off

    def to_json(self) -> dict[str, Any]:
        """JSON values; a loss that is not finite is None."""
        tried = {name: {repr(rate): _finite(v) for rate, v in losses.items()} for name, losses in self.tried.items()}
        return {
            "methods": [asdict(method) | {"mean": method.mean} for method in self.methods],
            "differences": [asdict(pair) | {"verdict": pair.verdict} for pair in self.differences],
            "validation_losses": tried,
            "library": self.library,
            "num_planned": self.num_planned,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Prediction":
        """What `to_json` gave, back."""
        methods = [{k: v for k, v in row.items() if k != "mean"} for row in record["methods"]]
        pairs = [{k: v for k, v in row.items() if k != "verdict"} for row in record["differences"]]
        return cls(
            tuple(MethodResult(**row | {"test_losses": tuple(row["test_losses"])}) for row in methods),
            tuple(PairedDifference(**row) for row in pairs),
            {
                name: {float(rate): math.nan if v is None else v for rate, v in losses.items()}
                for name, losses in record["validation_losses"].items()
            },
            record["library"],
            record["num_planned"],
        )


def paired_difference(first: str, second: str, a: Sequence[float], b: Sequence[float]) -> PairedDifference:
    """`mean(a − b) ± t₀.₉₇₅,ₙ₋₁ s / √n` with s the deviation of the differences.

    Args:
        first: Name of a.
        second: Name of b.
        a: One number for each repetition.
        b: Likewise, in the same order.

    Raises:
        ValueError: Fewer than two pairs, or other numbers of them.

    >>> pair = paired_difference("a", "b", [1.0, 2.0, 3.0], [1.5, 2.4, 3.6])
    >>> f"{pair.mean:.3f} [{pair.low:.3f}, {pair.high:.3f}] {pair.verdict}"
    '-0.500 [-0.748, -0.252] better'
    """
    from scipy import stats

    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"A paired difference must have two pairs or more; got {len(a)} and {len(b)} numbers.")
    each = [x - y for x, y in zip(a, b, strict=True)]
    n, mean = len(each), math.fsum(each) / len(each)
    deviation = math.sqrt(math.fsum((d - mean) ** 2 for d in each) / (n - 1))
    half = float(stats.t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return PairedDifference(first, second, mean, mean - half, mean + half, n)


def read_prediction(path: str | os.PathLike[str], *, unfinished: bool = False) -> Prediction:
    """The result of a run.

    Args:
        path: Its folder.
        unfinished: Take a run that was cut off, with the repetitions that are whole.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The run is not of this study, or is not finished; or fewer than two repetitions are whole.
    """
    spec = load_spec(path)
    if spec.get("kind") != "prediction":
        raise ValueError(f"{path} must hold a run of lora-prediction; it holds another. Name that run.")
    done = read_stages(load_run(path))
    num_planned = int(spec["config"]["spec"]["num_seeds"])
    whole = [n for n in range(1, num_planned + 1) if {r.stage for r in done if r.repetition == n} >= _ROWS.keys()]
    if len(whole) < num_planned and not unfinished:
        raise ValueError(
            f"The run in {path} must be finished; {len(whole)} of {num_planned} repetitions are whole. "
            "Start it again to go on."
        )
    done = [record for record in done if record.repetition in (0, *whole)]
    methods = tuple(_method(stage, done) for stage in _ROWS)
    losses = {row.stage: row.test_losses for row in methods}
    pairs = [paired_difference("advised", other, losses["advised"], losses[other]) for other in METHODS[1:]]
    tried: dict[str, dict[float, float]] = {method: validation_losses(done, method) for method in METHODS}
    return Prediction(methods, tuple(pairs), tried, spec["library"], num_planned)


def _method(stage: str, done: Sequence[StageRecord]) -> MethodResult:
    """Of the repetitions that are reported, in their order."""
    found = sorted((r for r in done if r.stage == stage and r.repetition), key=lambda r: r.repetition)
    losses = tuple(record.scalars["test_loss"] for record in found)
    if stage not in METHODS or not found:
        return MethodResult(stage, losses)
    parameters = math.fsum(record.scalars["parameters"] for record in found) / len(found)
    tried = validation_losses(done, stage)
    return MethodResult(stage, losses, chosen_rate(done, stage), is_bracketed(tried), parameters)


def prediction_lines(result: Prediction) -> list[str]:
    """The result as tables in Markdown, and a sentence for each comparison."""
    lines = ["| | held-out loss, nats a token | parameters | learning rate |", "|---|---|---|---|"]
    for row in result.methods:
        losses = f"{row.mean:.4f} ({min(row.test_losses):.4f} to {max(row.test_losses):.4f})"
        parameters = "" if row.parameters is None else f"{row.parameters:,.0f}"
        rate = "" if row.learning_rate is None else f"{row.learning_rate:g}"
        edge = "" if row.is_bracketed else ", the last that was tried"
        lines.append(f"| {_ROWS[row.stage]} | {losses} | {parameters} | {rate}{edge} |")
    lines += ["", "| paired difference | mean | 95% interval | seeds | verdict |", "|---|---|---|---|---|"]
    for pair in result.differences:
        interval = f"{pair.low:+.4f} to {pair.high:+.4f}"
        name = f"advised − {'AdaLoRA' if pair.second == 'adalora' else pair.second}"
        lines.append(f"| {name} | {pair.mean:+.4f} | {interval} | {pair.n} | {_VERDICTS[pair.verdict]} |")
    num = result.differences[0].n
    if num < result.num_planned:
        lines += ["", f"The run was cut off: {num} of {result.num_planned} planned seeds are whole."]
    return lines


_VERDICTS = {
    "better": "advised is better",
    "worse": "advised is worse",
    "undecided": "undecided: the interval contains 0",
}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
