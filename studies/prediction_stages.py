"""Stages of the prediction study, to rows of the run's table and back; and which learning rate to try next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from studies.prediction_spec import METHODS

from rankrise.store import rows, scalar_rows

if TYPE_CHECKING:
    import pyarrow as pa

STAGES: tuple[str, ...] = ("pretrain", "tune", *METHODS)
_HEAD = ("repetition", "stage")
_MOST_ADDED = 4  # learning rates beyond the grid


@dataclass(frozen=True)
class StageRecord:
    """One stage that is whole."""

    step: int  # its position among all
    repetition: int
    stage: str  # of `STAGES`
    scalars: dict[str, float]
    ranks: dict[str, int]  # by module: `blocks.<layer>.<name>`


def stage_rows(record: StageRecord) -> "pa.RecordBatch":
    """One block, so that a stage is read back whole or not at all."""
    import pyarrow as pa

    scalars = {"repetition": record.repetition, "stage": STAGES.index(record.stage), **record.scalars}
    blocks = [scalar_rows([(record.step, name, float(value)) for name, value in scalars.items()])]
    for module, rank in record.ranks.items():
        _, layer, name = module.split(".", 2)
        blocks.append(rows(record.step, "rank", [rank], circuit=name, layers=[int(layer)]))
    return pa.Table.from_batches(blocks).combine_chunks().to_batches()[0]


def read_stages(table: "pa.Table") -> list[StageRecord]:
    """All stages of a table, in their order."""
    scalars: dict[int, dict[str, float]] = {}
    ranks: dict[int, dict[str, int]] = {}
    for row in table.to_pylist():
        if row["layer"] < 0:
            scalars.setdefault(row["step"], {})[row["quantity"]] = row["value"]
        else:
            module = f"blocks.{row['layer']}.{row['circuit']}"
            ranks.setdefault(row["step"], {})[module] = int(row["value"])
    return [
        StageRecord(
            step,
            int(found["repetition"]),
            STAGES[int(found["stage"])],
            {name: value for name, value in found.items() if name not in _HEAD},
            ranks.get(step, {}),
        )
        for step, found in sorted(scalars.items())
    ]


def last_step(table: "pa.Table") -> int:
    """Of the last stage; -1 for none."""
    import pyarrow.compute as pc

    return -1 if not table.num_rows else int(pc.max(table["step"]).as_py())


def validation_losses(done: Sequence[StageRecord], method: str) -> dict[float, float]:
    """What repetition 0 found, by learning rate."""
    found = [r for r in done if (r.repetition, r.stage) == (0, method)]
    return {r.scalars["learning_rate"]: r.scalars["validation_loss"] for r in found}


def chosen_rate(done: Sequence[StageRecord], method: str) -> float:
    """The learning rate with the least validation loss in repetition 0."""
    return best_rate(validation_losses(done, method))


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate with the least loss; one that diverged is never best.

    >>> best_rate({1e-3: 2.0, 2e-3: 1.5, 4e-3: float("nan")})
    0.002
    """
    return min(losses, key=lambda rate: (_finite(losses[rate]), rate))


def is_bracketed(losses: Mapping[float, float]) -> bool:
    """Whether the best rate lies between two that were tried."""
    return min(losses) < best_rate(losses) < max(losses)


def next_rate(losses: Mapping[float, float], grid: Sequence[float]) -> float | None:
    """The rate to try after those with a loss: the grid, then one more beyond the edge where the best lies.

    Args:
        losses: The loss of every rate that was tried, by rate.
        grid: The rates to try first, rising.

    Returns:
        A rate; None when the best is bracketed, or four were added.

    >>> next_rate({1e-3: 2.0}, (1e-3, 2e-3))
    0.002
    >>> next_rate({1e-3: 2.0, 2e-3: 1.5}, (1e-3, 2e-3))
    0.004
    >>> next_rate({1e-3: 2.0, 2e-3: 1.5, 4e-3: 3.0}, (1e-3, 2e-3)) is None
    True
    """
    for rate in grid:
        if rate not in losses:
            return rate
    if is_bracketed(losses) or len(losses) >= len(grid) + _MOST_ADDED:
        return None
    best = best_rate(losses)
    return best * grid[-1] / grid[-2] if best == max(losses) else best * grid[0] / grid[1]


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
