"""A claim, how its number is measured, and the verdict on it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from rankrise.runs import Array

Comparison: TypeAlias = Literal["≤", "≥", "<", ">"]
Bound: TypeAlias = tuple[Comparison, float]


@dataclass(frozen=True)
class Claim:
    """One statement that a number can contradict.

    Attributes:
        id: The name of the claim: what is claimed, @, and what it is claimed of.
        statement: The claim in words.
        reference: Where the paper or the reproduction makes it; "beyond the paper" for our own.
        circuit: What the number is read from: "kq", "vo", both circuits, or the loss.
        layers: Which layers count.
        aggregate: How the number is made from the table: what is averaged, what is compared, where the worst is taken.
        threshold: What the number must be.
        set_after_seeing: Whether the number or the bound was chosen after a look at runs; `aggregate` then says so.
        of: The experiment or the family of experiments that it is claimed of.
        about: The heading under which a report shows the claim: what it is claimed of, or "the toy".
        topic: The question that the claim belongs to, a key of `TOPICS`.
        in_words: The number in a clause for newcomers, with `{value}` in its place; empty for most claims.
    """

    id: str
    statement: str
    reference: str
    circuit: str
    layers: str
    aggregate: str
    threshold: str
    set_after_seeing: bool = False
    of: str = ""
    about: str = ""
    topic: str = ""
    in_words: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    Attributes:
        claim: The claim.
        verdict: "holds", "fails" or "not tested".
        value: The mean over seeds of the claim's number, or the number of the worst seed if the claim says that
            something is so in every seed; None if the claim was not tested.
        low: Lower end of the 95% interval of that mean; None if there is one seed, or if the worst seed decides.
        high: Upper end of that interval.
        n: What the number is made of, such as "3 seeds × 8 heads × 6 layers".
        reason: The number of each seed, and for the worst seed the numbers behind it, layer by layer where there are
            layers; or why the claim was not tested.
        runs: The runs that the number was read from, each as name and hash.
        is_open: Whether the interval contains the bound, so that more seeds could turn the verdict.
        apart: How the runs differ from their experiment at scale `paper`, as "scale smoke"; empty if they do not.
    """

    claim: Claim
    verdict: Literal["holds", "fails", "not tested"]
    value: float | None
    low: float | None
    high: float | None
    n: str
    reason: str
    runs: tuple[str, ...]
    is_open: bool = False
    apart: str = ""

    @property
    def interval(self) -> str:
        """The interval in words, with ? where it contains the bound, as "0.494 to 0.978 ?"; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.3g} to {self.high:.3g}{' ?' if self.is_open else ''}"

    def to_json(self) -> dict[str, Any]:
        """JSON values; a number that is not finite is null."""
        record = asdict(self)
        for name in ("value", "low", "high"):
            number = record[name]
            record[name] = number if number is not None and math.isfinite(number) else None
        return {**record, "runs": list(self.runs)}


@dataclass(frozen=True)
class Finding:
    """The number of one seed, the numbers behind it in words, and how many heads, layers or the like it is made of."""

    value: float
    detail: str
    parts: Mapping[str, int] = field(default_factory=dict)  # {"heads": 8, "layers": 6}


@dataclass(frozen=True)
class Predicate:
    """A claim with the experiments it needs and the function that gives its number.

    `measure` gets one run of each experiment in `needs`, all of one seed. If `at_least` is given, only so many of these
    experiments must have runs, and `measure` gets the runs that are there. `shared` takes the part of a spec that must
    be equal in all of the runs, and `one_of` names that part in words. With `of_every_seed` the claim says that
    something is always so; its worst seed decides, because a mean would hide a seed that contradicts it.
    """

    claim: Claim
    needs: tuple[str, ...]
    measure: Callable[..., Finding]
    comparison: Comparison
    bound: float
    at_least: int | None = None
    shared: Callable[[Mapping[str, Any]], object] | None = None
    one_of: str = ""
    of_every_seed: bool = False

    def worst(self, values: Sequence[float]) -> int:
        """Which number is farthest on the failing side."""
        return values.index(max(values) if self.comparison in "≤<" else min(values))

    def is_met(self, value: float) -> bool:
        """Whether the number is as claimed; NaN never is."""
        return {
            "≤": value <= self.bound,
            "≥": value >= self.bound,
            "<": value < self.bound,
            ">": value > self.bound,
        }[self.comparison]


def predicate(
    topic: str,
    name: str,
    statement: str,
    *,
    of: str,
    reference: str,
    circuit: str,
    layers: str,
    aggregate: str,
    measure: Callable[..., Finding],
    must_be: Bound,
    needs: tuple[str, ...] = (),
    at_least: int | None = None,
    shared: Callable[[Mapping[str, Any]], object] | None = None,
    one_of: str = "",
    of_every_seed: bool = False,
    set_after: str = "",
    about: str = "",
    in_words: str = "",
) -> Predicate:
    """A predicate whose claim says its own threshold, and after what its measure was set (`set_after`, a clause).

    The id of the claim is made of `name` and of what it is claimed of (`of`, an experiment or a family). The claim
    needs the runs of `of` alone unless `needs` names others. `about` is the heading under which reports show the claim;
    the heading is `of` itself unless given.
    """
    comparison, bound = must_be
    aggregate = f"{aggregate}; worst seed" if of_every_seed else aggregate
    text = f"{aggregate} — set after seeing the data: {set_after}" if set_after else aggregate
    claim = Claim(
        id=f"{name}@{of}",
        statement=statement,
        reference=reference,
        circuit=circuit,
        layers=layers,
        aggregate=text,
        threshold=f"{comparison} {bound:g}",
        set_after_seeing=bool(set_after),
        of=of,
        about=about or of,
        topic=topic,
        in_words=in_words,
    )
    return Predicate(claim, needs or (of,), measure, comparison, bound, at_least, shared, one_of, of_every_seed)


def listed(values: Array, form: str = ".2f") -> str:
    """Numbers as text, joined by commas, for a sentence.

    >>> import numpy as np
    >>> listed(np.array([1.0, 2.5]))
    '1.00, 2.50'
    """
    return ", ".join(format(float(value), form) for value in values)
