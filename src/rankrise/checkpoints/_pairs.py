"""What a pre-flight finds: pairs of weights, and lists of what is left out or wrong."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankrise.checkpoints._adapters import LowRankDelta
from rankrise.checkpoints._names import VOCABULARY
from rankrise.checkpoints._safetensors import TensorInfo

_LISTS = ("missing", "extra", "reshaped", "tied", "non_float", "buffers")


@dataclass(frozen=True)
class Pair:
    """One weight in both checkpoints: two tensors, or what adapters add to a weight that the base has or has not."""

    name: str  # common to both
    base_name: str | None  # in the base's file; None where the base is an adapter
    tuned_name: str | None  # in the tuned file; None where `delta` is the change
    shape: tuple[int, ...]  # that is compared: the first rows, where one of them has more
    delta: LowRankDelta | None = None  # what the tuned adapter adds
    base_delta: LowRankDelta | None = None  # what the base, an adapter too, adds
    copy: str | None = None  # the base's weight as the adapter's file has it as well, which must be the base's

    def is_resized(self, base: Mapping[str, TensorInfo], tuned: Mapping[str, TensorInfo]) -> bool:
        """Whether one of the two files has more rows than are compared."""
        stored = ((base, self.base_name), (tuned, self.tuned_name))
        return any(name is not None and tensors[name].shape != self.shape for tensors, name in stored)


@dataclass(frozen=True)
class Preflight:
    """What can be compared, and what cannot; every list holds common names or sentences."""

    pairs: tuple[Pair, ...]
    renamed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # in the base only
    extra: tuple[str, ...] = ()  # in the tuned only
    reshaped: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    non_float: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()  # masks and tables that only one of them saves
    same_file: bool = False
    notes: tuple[str, ...] = ()
    base_names: Mapping[str, str] = field(default_factory=dict, repr=False)  # of an adapter's base, by common name
    problems: tuple[str, ...] = ()  # errors that make the answer wrong

    def check(self) -> None:
        """Refuse what would give a wrong answer.

        Raises:
            ValueError: There is a problem; says the first.
        """
        if self.problems:
            more = f" ({len(self.problems) - 1} more: --dry-run lists them)" if len(self.problems) > 1 else ""
            raise ValueError(f"{self.problems[0]}{more}")

    def to_json(self) -> dict[str, Any]:
        """The lists as plain values."""
        return {
            "matched": len(self.pairs),
            **{name: list(getattr(self, name)) for name in (*_LISTS, "renamed", "notes", "problems")},
            "same_file": self.same_file,
        }

    def text(self) -> str:
        """The lists as a person reads them, problems last."""
        lines = [f"matched    {len(self.pairs)} tensors, {_millions(self.pairs)} parameters"]
        lines += [f"renamed    {line}" for line in self.renamed]
        for label in _LISTS:
            names: tuple[str, ...] = getattr(self, label)
            if names:
                lines.append(f"{label.replace('_', '-'):<10} {len(names)}: {some(names)}")
        if self.same_file:
            lines.append("identical  both are the same file")
        lines += [f"note       {line}" for line in self.notes]
        lines += [f"problem    {line}" for line in self.problems]
        return "\n".join(lines)


def common_shape(name: str, one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape both have; of embeddings, which may be given more rows, the rows both have; else None.

    >>> common_shape("lm_head.weight", (100, 64), (108, 64)), common_shape("mlp.up.weight", (100, 64), (108, 64))
    ((100, 64), None)
    """
    if one == other:
        return one
    if name.endswith(VOCABULARY) and len(one) == len(other) == 2 and one[1] == other[1]:
        return min(one[0], other[0]), one[1]
    return None


def some(names: Iterable[str], count: int = 4) -> str:
    """The first few of a list of names."""
    names = list(names)
    return ", ".join(names[:count]) + (" …" if len(names) > count else "") if names else "nothing"


def _millions(pairs: Iterable[Pair]) -> str:
    total = 0
    for pair in pairs:
        size = 1
        for length in pair.shape:
            size *= length
        total += size
    return f"{total:,}" if total < 1e6 else f"{total / 1e6:,.1f} M"
