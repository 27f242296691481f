"""What the alerts of a tracker found: rows of the table of a run, and a sentence for each of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise.store._table import schema
from rankrise.store._untrusted import show

if TYPE_CHECKING:
    import pyarrow as pa

READY = ("rank_collapse", "rank_one_spike", "stalled_head")  # rules of `rankrise.tracking`, whose alerts have sentences


@dataclass(frozen=True)
class Alert:
    """Something that a rule found at one place of the model.

    Attributes:
        name: The name of the rule.
        step: When it was found.
        layer: The layer, counted from 0.
        head: The head, counted from 0; -1 for the layer as a whole.
        circuit: "kq" or "vo"; empty if both are meant.
        value: The number that is out of order.
        reference: The number that it is compared with.
    """

    name: str
    step: int
    layer: int
    head: int
    circuit: str
    value: float
    reference: float

    @property
    def place(self) -> str:
        """`layer 2 head 1 (kq)`."""
        head = f" head {self.head}" if self.head >= 0 else ""
        return f"layer {self.layer}{head}{f' ({show(self.circuit)})' if self.circuit else ''}"

    @property
    def sentence(self) -> str:
        """What happened, where and when, in one sentence.

        >>> Alert("rank_collapse", 400, 2, -1, "kq", 1.5, 4.0).sentence.partition(": ")[0].partition(" within")[0]
        'At step 400 the effective rank of the change of layer 2 (kq) has collapsed from 4.00 to 1.50'
        """
        now, before = self.value, self.reference
        told = {
            "rank_collapse": f"the effective rank of the change of {self.place} has collapsed from {before:.2f} to "
            f"{now:.2f} within a few measurements (mean over its heads).",
            "rank_one_spike": f"the change of {self.place} has a spike of rank 1: its largest singular value jumped "
            f"from {before:.3g} to {now:.3g}, and one direction now carries nearly all of it.",
            "stalled_head": f"{self.place} has stopped learning: its change moved by {100 * now:.2g}% over the last "
            f"measurements, that of the median head by {100 * before:.2g}%.",
        }
        text = told.get(self.name, f"`{show(self.name)}` was found at {self.place}: {now:.4g}, against {before:.4g}.")
        return f"At step {self.step} {text}"


def read_alerts(table: "pa.Table", names: Sequence[str] = ()) -> tuple[Alert, ...]:
    """The alerts that a table holds, in the order in which they were raised.

    Args:
        table: The table of a run.
        names: Names of rules that are not among the ready ones.

    >>> read_alerts(schema().empty_table())
    ()
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = table.filter(pc.is_in(table["quantity"].cast(pa.string()), pa.array([*READY, *names]))).to_pylist()
    found: dict[tuple[str, int, int, int, str], dict[int, float]] = {}
    for row in rows:
        key = (row["quantity"], row["step"], row["layer"], row["head"], row["circuit"])
        found.setdefault(key, {})[row["index"]] = row["value"]
    return tuple(Alert(*key, value=v.get(0, math.nan), reference=v.get(1, math.nan)) for key, v in found.items())


def alert_rows(alerts: Sequence[Alert]) -> "pa.RecordBatch":
    """Two rows of the table for each alert: its value at index 0, its reference at index 1."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(
        [
            {
                "step": alert.step, "layer": alert.layer, "head": alert.head, "circuit": alert.circuit,
                "quantity": alert.name, "index": index, "value": value,
            }
            for alert in alerts
            for index, value in enumerate((alert.value, alert.reference))
        ],
        schema=schema(),
    )  # fmt: skip
