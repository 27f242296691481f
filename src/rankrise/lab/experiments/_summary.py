"""The short answer of a run, read from its table."""

import math
import os
from dataclasses import dataclass
from typing import Any

from rankrise.store import load_run

CIRCUITS = ("kq", "vo")


@dataclass(frozen=True)
class RunSummary:
    """Where a run stands: the last value of every scalar, and the stable ranks of what was learned.

    `stable_ranks["kq"][i]` is the mean over the heads of layer i, counted from 0, of the stable rank of `Δ(W_K W_Qᵀ)`;
    `"vo"` of `Δ(W_V W_Oᵀ)`. NaN where nothing has changed.
    """

    step: int  # of the last row
    scalars: dict[str, float]
    stable_ranks: dict[str, tuple[float, ...]]

    def to_json(self) -> dict[str, Any]:
        """JSON values; a number that is not finite is null."""
        return {
            "step": self.step,
            "scalars": {name: _finite(value) for name, value in self.scalars.items()},
            "stable_ranks": {name: [_finite(value) for value in ranks] for name, ranks in self.stable_ranks.items()},
        }


def summarise_run(path: str | os.PathLike[str]) -> RunSummary:
    """Read the last scalars and stable ranks of a run, finished or not.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: It is damaged, or of an unknown version.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from rankrise.store import create_run, rows
    >>> run = create_run(Path(tempfile.mkdtemp()), spec={}, initial={"w": torch.zeros(1)})
    >>> run.append(rows(1, "loss", [2.5]))
    >>> run.append(rows(2, "loss", [0.5]))
    >>> summarise_run(run.folder)
    RunSummary(step=2, scalars={'loss': 0.5}, stable_ranks={})
    """
    import pyarrow.compute as pc

    table = load_run(path)
    if not table.num_rows:
        return RunSummary(0, {}, {})
    singles = table.filter(pc.equal(table["layer"], -1)).select(["quantity", "value"]).to_pylist()
    ranks = table.filter(pc.equal(table["quantity"], "stable_rank"))
    found = {name: _by_layer(ranks.filter(pc.equal(ranks["circuit"], name))) for name in CIRCUITS}
    return RunSummary(
        step=pc.max(table["step"]).as_py(),
        scalars={row["quantity"]: row["value"] for row in singles},
        stable_ranks={name: means for name, means in found.items() if means},
    )


def _by_layer(ranks: Any) -> tuple[float, ...]:
    """Mean over heads at the last step, layer by layer."""
    import pyarrow.compute as pc

    if not ranks.num_rows:
        return ()
    last = ranks.filter(pc.equal(ranks["step"], pc.max(ranks["step"])))
    means = last.group_by("layer").aggregate([("value", "mean")]).sort_by("layer")
    return tuple(means["value_mean"].to_pylist())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
