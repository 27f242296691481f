"""What came out, for a reader who knows no claim by its name: one sentence for each question that the claims ask."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rankrise.lab.claims._claim import Verdict

TOPICS = {  # in the order of the paper and then beyond it; the keys are `Claim.topic`
    "1": "The toy learns in stages",
    "assumptions": "The theorem's assumptions hold on the toy",
    "2": "The learned change has low rank",
    "3": "Its rank grows gradually",
    "4": "Smaller initial weights give lower rank",
    "5": "What the CENG501 reproduction reports",
    "beyond": "Beyond the paper",
    "full": "Heads with full matrices learn in stages at predicted times",
    "questions": "Readers' questions are answered as expected",
    "gauges": "Collapse, slingshots and laziness come where the gauges say",
}
_OF_PAPER = ("1", "assumptions", "2", "3", "4", "5")


@dataclass(frozen=True)
class Outcome:
    """What the verdicts say of one topic.

    Attributes:
        title: The topic, as a statement.
        answer: "yes" if every tested claim holds, "mostly" if at least two thirds do, "partly", "no", or "not tested".
        held: The verdicts that hold.
        failed: The verdicts that fail.
        num_untested: How many claims of the topic were not tested.
        example: The first number that can be said in words, and where it was measured; empty if there is none.
    """

    title: str
    answer: str
    held: tuple[Verdict, ...]
    failed: tuple[Verdict, ...]
    num_untested: int
    example: str

    @property
    def counts(self) -> str:
        """How many of the tested claims hold, in words."""
        tested = len(self.held) + len(self.failed)
        if tested:
            return f"{len(self.held)} of {tested} claims hold"
        return "1 claim was not tested" if self.num_untested == 1 else f"{self.num_untested} claims were not tested"

    @property
    def sentence(self) -> str:
        """The topic, the answer, the counts, and a number in words."""
        return f"{self.title}: {self.answer}; {self.counts}.{f' {self.example}' if self.example else ''}"


def outcomes(verdicts: Sequence[Verdict]) -> list[Outcome]:
    """One outcome for each topic of the paper and one for all that is beyond it, computed from the verdicts alone.

    What is beyond the paper has one outcome, so that a summary keeps its length whatever topics are added.

    Args:
        verdicts: What `evaluate_claims` returned.

    >>> [outcome.answer for outcome in outcomes([])][:2]
    ['not tested', 'not tested']
    """
    of_paper = [_outcome(TOPICS[topic], [v for v in verdicts if v.claim.topic == topic]) for topic in _OF_PAPER]
    return [*of_paper, _outcome(TOPICS["beyond"], [v for v in verdicts if v.claim.topic not in _OF_PAPER])]


def _outcome(title: str, verdicts: Sequence[Verdict]) -> Outcome:
    held, failed, untested = (
        tuple(v for v in verdicts if v.verdict == name) for name in ("holds", "fails", "not tested")
    )
    return Outcome(title, _answer(len(held), len(failed)), held, failed, len(untested), _example(verdicts))


def _answer(num_held: int, num_failed: int) -> str:
    """The answer in a word.

    >>> _answer(3, 0), _answer(4, 2), _answer(1, 2), _answer(0, 1), _answer(0, 0)
    ('yes', 'mostly', 'partly', 'no', 'not tested')
    """
    tested = num_held + num_failed
    if not tested:
        return "not tested"
    if not num_failed:
        return "yes"
    if 3 * num_held >= 2 * tested:
        return "mostly"
    return "partly" if num_held else "no"


def _example(verdicts: Sequence[Verdict]) -> str:
    """The first number that can be said in words, as a sentence that names where it was measured."""
    for v in verdicts:
        if v.claim.in_words and v.value is not None and math.isfinite(v.value):
            clause = v.claim.in_words.format(value=v.value)
            where = ", ".join(part for part in (v.claim.of, v.n) if part)
            return f"{clause[0].upper()}{clause[1:]} ({where}{'; this claim fails' if v.verdict == 'fails' else ''})."
    return ""
