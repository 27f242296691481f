"""What `diff` returns: one row for every weight and every circuit, totals, curves, and ways to write them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rankrise.checkpoints.compare._sources import Step
from rankrise.checkpoints.files import show
from rankrise.checkpoints.match import Preflight
from rankrise.signals import Stages, detect_stages
from rankrise.store import replacing

if TYPE_CHECKING:
    import pyarrow as pa

NotFinite = Literal[
    "not finite",
    "not finite: base",
    "not finite: tuned",
    "not finite: base and tuned",
    "not finite: the change squared",
]
Status = Literal["changed", "identical", "unchanged", "empty"] | NotFinite
_NOT_FINITE: tuple[Status, ...] = get_args(NotFinite)
_SHOWN = 32  # singular values in JSON


@dataclass(frozen=True)
class Row:
    """A change and its measures; None where a number was not asked for or does not exist.

    `status` is "changed", "identical" (bit for bit), "unchanged" (equal in value), "empty" or "not finite", if known
    with the side that holds NaN or infinity (`is_finite` says whether a row is one of the latter). `kind` is
    "matrix", "vector", "adapter" (scale·BA) or "circuit". Of a summary, `rank_above_floor` is a lower bound up to 8.
    """

    step: int
    name: str
    layer: int  # from 0, -1 outside the layers
    head: int  # from 0, -1 for a whole weight
    circuit: str  # "kq", "vo", or empty for a weight
    kind: str
    shape: tuple[int, ...]
    dtype: str
    status: Status
    norm: float | None = None  # ‖Δ‖_F
    base_norm: float | None = None  # ‖W0‖_F
    spectral_norm: float | None = None
    stable_rank: float | None = None
    effective_rank: float | None = None
    energy_rank_90: int | None = None
    energy_rank_95: int | None = None
    energy_rank_99: int | None = None
    rank_above_floor: int | None = None
    rank_lower: int | None = None
    rank_upper: int | None = None
    null_stable_rank: float | None = None
    null_effective_rank: float | None = None
    null_energy_rank_90: float | None = None
    intruders: int | None = None  # leading directions of the tuned weight that are new to the base
    least_cosine: float | None = None  # least cosine of a leading direction with the base's leading directions
    null_least_cosine: float | None = None  # the same of a random change of this size; None where there is no candidate
    overlap: float | None = None  # cosine between this change and that of the step before
    spectrum: tuple[float, ...] = ()

    @property
    def has_spike(self) -> bool | None:
        """Whether one direction holds more than two thirds of the squared change, twice a random one's share or more.

        The stable rank ‖Δ‖² / σ₁² is below 1.5 and below half of the null. None where there is no null.
        """
        if self.stable_rank is None or self.null_stable_rank is None:
            return None
        return self.stable_rank < min(1.5, self.null_stable_rank / 2)

    @property
    def num_parameters(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def is_finite(self) -> bool:
        """Whether neither the weights nor the squared change overflow or hold NaN."""
        return self.status not in _NOT_FINITE

    @property
    def relative(self) -> float | None:
        """`‖Δ‖_F / ‖W0‖_F`; None without a base, or with one that is zero."""
        return self.norm / self.base_norm if self.norm is not None and self.base_norm else None


def record(row: Row) -> dict[str, Any]:
    """A row as plain values, with the leading singular values."""
    values = dataclasses.asdict(row)
    values["shape"] = list(row.shape)
    values |= {"relative": row.relative, "has_spike": row.has_spike}
    values["spectrum"] = list(row.spectrum[:_SHOWN])
    return {key: _plain(value) for key, value in values.items()}


def table(rows: Sequence[Row]) -> "pa.Table":
    """Rows as an Arrow table with nulls where there is no number, and whole spectra."""
    import pyarrow as pa

    counts = ("step", "layer", "head")
    ranks = (
        "intruders",
        "energy_rank_90",
        "energy_rank_95",
        "energy_rank_99",
        "rank_above_floor",
        "rank_lower",
        "rank_upper",
    )
    columns: dict[str, pa.Array] = {}
    for name in (*(f.name for f in dataclasses.fields(Row)), "relative", "has_spike", "num_parameters"):
        values = [getattr(row, name) for row in rows]
        if name in ("name", "circuit", "kind", "dtype", "status"):
            kind = pa.string()
        elif name in counts or name in ranks:
            kind = pa.int64() if name == "step" else pa.int32()
        elif name == "has_spike":
            kind = pa.bool_()
        elif name == "num_parameters":
            kind = pa.int64()
        else:
            kind = {"shape": pa.list_(pa.int64()), "spectrum": pa.list_(pa.float64())}.get(name, pa.float64())
        columns[name] = pa.array([list(v) if isinstance(v, tuple) else v for v in values], kind)
    return pa.table(columns)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


_LEAST_FOR_STAGES = 20
CURVES = ("relative", "norm", "stable_rank", "effective_rank", "energy_rank_90", "rank_above_floor", "overlap")


@dataclass(frozen=True)
class Total:
    """The whole change at one step."""

    step: int
    num_tensors: int
    num_changed: int
    num_parameters: int
    norm: float | None  # ‖Δ‖_F over all weights; None where none was measured
    base_norm: float | None  # of the weights that have one
    relative: float | None  # ‖Δ‖_F / ‖W0‖_F over the matrices: norms and biases are left out
    num_not_finite: int


@dataclass(frozen=True, eq=False, repr=False)
class Diff:
    """What one or several checkpoints learned over a base, weight by weight and head by head."""

    base: str | None
    steps: tuple[Step, ...]
    rows: tuple[Row, ...]
    preflights: tuple[Preflight, ...]
    summary: bool
    notes: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        """One line: what was compared, and how much changed."""
        total = self.totals[-1]
        size = "" if total.relative is None else f" by {100 * total.relative:.3g}%"
        steps = f" in {len(self.steps)} steps" if self.is_series else ""
        what = f"{total.num_changed} of {total.num_tensors} weights changed{size}{steps}"
        return f"<Diff of {show(self.base or 'adapters', 60)}: {what}, {len(self.rows)} rows>"

    @property
    def is_series(self) -> bool:
        """Whether there is more than one step."""
        return len(self.steps) > 1

    @property
    def is_identical(self) -> bool:
        """Whether no weight differs at any step."""
        return all(row.status in ("identical", "unchanged", "empty") for row in self.rows)

    def weights(self, step: int | None = None) -> list[Row]:
        """Rows of whole weights, by default of the last step."""
        wanted = self.steps[-1].step if step is None else step
        return [row for row in self.rows if row.step == wanted and row.kind != "circuit"]

    def circuits(self, step: int | None = None) -> list[Row]:
        """Rows of heads, by default of the last step."""
        wanted = self.steps[-1].step if step is None else step
        return [row for row in self.rows if row.step == wanted and row.kind == "circuit"]

    @functools.cached_property
    def totals(self) -> tuple[Total, ...]:
        """The whole change at every step."""
        return tuple(_total(step.step, self.weights(step.step)) for step in self.steps)

    @functools.cached_property
    def curves(self) -> Mapping[str, list[float | None]]:
        """Over the steps: size of the whole change, and ranks averaged over the matrices that changed."""
        curves: dict[str, list[float | None]] = {name: [] for name in CURVES}
        for total in self.totals:
            rows = [row for row in self.weights(total.step) if row.kind in ("matrix", "adapter")]
            curves["relative"].append(total.relative)
            curves["norm"].append(total.norm)
            for name in ("stable_rank", "effective_rank", "energy_rank_90", "rank_above_floor"):
                curves[name].append(_mean(rows, lambda row, name=name: getattr(row, name)))  # type: ignore[misc]
            curves["overlap"].append(self._cosine(total.step))
        return curves

    @property
    def alarms(self) -> dict[str, list[str]]:
        """Names of the weights of the last step with a spike of rank 1, and of those with intruder dimensions."""
        rows = self.weights()
        return {
            "spikes": [row.name for row in rows if row.has_spike],
            "intruders": [row.name for row in rows if row.intruders],
        }

    @functools.cached_property
    def stages(self) -> Stages | None:
        """Stages in the rise of the mean effective rank (stable rank in a summary); None for fewer than 20 steps."""
        curve = self.curves["stable_rank" if self.summary else "effective_rank"]
        if len(self.steps) < _LEAST_FOR_STAGES or any(value is None for value in curve):
            return None
        return detect_stages([step.step for step in self.steps], [-value for value in curve if value is not None])

    def to_json(self) -> dict[str, Any]:
        """Plain values: preflight, totals, curves, stages and rows, each with its 32 leading singular values."""
        preflight = self.preflights[-1]
        return {
            "base": self.base,
            "tuned": [{"step": step.step, "path": str(step.path)} for step in self.steps],
            "summary": self.summary,
            "identical": self.is_identical,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "preflight": preflight.to_json(),
            "alarms": self.alarms,
            "totals": [vars(total) for total in self.totals],
            "curves": {"step": [step.step for step in self.steps], **self.curves} if self.is_series else None,
            "stages": None if self.stages is None else [vars(stage) for stage in self.stages.stages],
            "rows": [record(row) for row in self.rows],
        }

    def to_table(self) -> "pa.Table":
        """All rows as an Arrow table, whole spectra included."""
        return table(self.rows)

    def write_parquet(self, path: str | PathLike[str]) -> None:
        """Write `to_table()`, whole or not at all."""
        import pyarrow.parquet as pq

        with replacing(Path(path), "diff.parquet") as temporary:
            pq.write_table(self.to_table(), temporary)

    def write_html(self, path: str | PathLike[str]) -> None:
        """Write one self-contained page with heat maps and tables, whole or not at all."""
        from rankrise._doors import diff_page

        with replacing(Path(path), "diff.html") as temporary:
            temporary.write_text(diff_page(self), encoding="utf-8")

    def _cosine(self, step: int) -> float | None:
        rows = [row for row in self.weights(step) if row.overlap is not None and row.norm]
        return weighted_cosine([(row.overlap or 0.0, row.norm or 0.0) for row in rows])


def weighted_cosine(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Mean of cosines, each with the square of a norm as its weight; None for no pairs."""
    weight = sum(norm**2 for _, norm in pairs)
    return sum(cosine * norm**2 for cosine, norm in pairs) / weight if weight else None


def relative_size(rows: Sequence[Row]) -> float | None:
    """`‖Δ‖_F / ‖W0‖_F` over the matrices among some rows, or over all where there is no matrix.

    Norms and biases are left out: they are few numbers of another size, near 1 where matrices are near 0.02, so that
    they would hide what the matrices did.
    """
    known = [row for row in rows if row.norm is not None and row.base_norm is not None]
    known = [row for row in known if row.kind != "vector"] or known
    base = math.hypot(*(row.base_norm or 0.0 for row in known))
    return math.hypot(*(row.norm or 0.0 for row in known)) / base if base else None


def _total(step: int, rows: Sequence[Row]) -> Total:
    measured = [row for row in rows if row.norm is not None]
    norm = math.sqrt(sum((row.norm or 0.0) ** 2 for row in measured)) if measured else None
    known = [row for row in measured if row.base_norm is not None]
    base = math.sqrt(sum((row.base_norm or 0.0) ** 2 for row in known)) if known else None
    is_complete = len(known) == len(measured)
    return Total(
        step=step,
        num_tensors=len(rows),
        num_changed=sum(row.status == "changed" for row in rows),
        num_parameters=sum(row.num_parameters for row in rows),
        norm=norm,
        base_norm=base,
        relative=relative_size(measured) if is_complete else None,
        num_not_finite=sum(not row.is_finite for row in rows),
    )


def _mean(rows: Sequence[Row], get: Callable[[Row], float | None]) -> float | None:
    values = [value for row in rows if row.status == "changed" and (value := get(row)) is not None]
    return sum(values) / len(values) if values else None
