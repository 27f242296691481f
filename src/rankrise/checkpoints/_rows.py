"""One row of a diff: what changed in one weight, or in one circuit of one head, and how to put rows in a table."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 32  # singular values in JSON


@dataclass(frozen=True)
class Row:
    """A change and its measures; None where a number was not asked for or does not exist.

    `status` is "changed", "identical" (bit for bit), "unchanged" (equal in value), "not finite" or "empty". `kind` is
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
    status: str
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
    overlap: float | None = None  # cosine between this change and that of the step before
    spectrum: tuple[float, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)

    @property
    def relative(self) -> float | None:
        """`‖Δ‖_F / ‖W0‖_F`; None without a base, or with one that is zero."""
        return self.norm / self.base_norm if self.norm is not None and self.base_norm else None


def record(row: Row) -> dict[str, Any]:
    """A row as plain values, with the leading singular values."""
    values = dataclasses.asdict(row)
    values["shape"] = list(row.shape)
    values["relative"] = row.relative
    values["spectrum"] = list(row.spectrum[:_SHOWN])
    return {key: _plain(value) for key, value in values.items()}


def table(rows: Sequence[Row]) -> "pa.Table":
    """Rows as an Arrow table with nulls where there is no number, and whole spectra."""
    import pyarrow as pa

    counts = ("step", "layer", "head")
    ranks = ("energy_rank_90", "energy_rank_95", "energy_rank_99", "rank_above_floor", "rank_lower", "rank_upper")
    columns: dict[str, pa.Array] = {}
    for name in (*(f.name for f in dataclasses.fields(Row)), "relative", "num_parameters"):
        values = [getattr(row, name) for row in rows]
        if name in ("name", "circuit", "kind", "dtype", "status"):
            kind = pa.string()
        elif name in counts or name in ranks:
            kind = pa.int64() if name == "step" else pa.int32()
        elif name == "num_parameters":
            kind = pa.int64()
        else:
            kind = {"shape": pa.list_(pa.int64()), "spectrum": pa.list_(pa.float64())}.get(name, pa.float64())
        columns[name] = pa.array([list(v) if isinstance(v, tuple) else v for v in values], kind)
    return pa.table(columns)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
