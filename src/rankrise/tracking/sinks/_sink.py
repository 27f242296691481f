"""Copies of the numbers to a dashboard; the run directory has them all anyway."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Sink(Protocol):
    """Anything that takes named numbers at a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show `values`, e.g. `{"attn/L03/H05/kq/stable_rank": 1.7, "loss": 0.4}`."""

    def close(self) -> None:
        """Nothing more will come."""


def check_sinks(sinks: object) -> None:
    """Refuse what is no list of sinks, or holds a class instead of an object.

    >>> check_sinks([])
    """
    if not isinstance(sinks, Sequence):
        raise ValueError(f"`sinks` must be a list of sinks; got {sinks!r}.")
    for sink in sinks:
        if isinstance(sink, type) or not (
            callable(getattr(sink, "log", None)) and callable(getattr(sink, "close", None))
        ):
            raise ValueError(f"A sink must be an object with `log(step, values)` and `close()`; got {sink!r}.")


def tag(layer: int, head: int, circuit: str, quantity: str) -> str:
    """The name of a number on a dashboard.

    >>> tag(3, 5, "kq", "stable_rank"), tag(3, -1, "q", "stable_rank"), tag(-1, -1, "", "loss")
    ('attn/L03/H05/kq/stable_rank', 'attn/L03/q/stable_rank', 'loss')
    """
    where = f"attn/L{layer:02d}/" if layer >= 0 else ""
    where += f"H{head:02d}/" if head >= 0 else ""
    return f"{where}{circuit}/{quantity}" if circuit else f"{where}{quantity}"
