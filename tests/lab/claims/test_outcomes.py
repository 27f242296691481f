"""What came out, in a sentence for each topic: counted from the verdicts, never written down."""

import math
from dataclasses import replace

import pytest

from rankrise.lab.claims import Claim, Verdict, claims, outcomes
from rankrise.lab.claims._outcomes import TOPICS


def verdict(result, *, topic="2", value=0.25, in_words=""):
    claim = Claim("a", "", "", "kq", "", "", "≤ 0.5", of="net", topic=topic, in_words=in_words)
    return Verdict(claim, result, value, None, None, "3 seeds", "", ())


def test_every_claim_belongs_to_a_topic_and_every_topic_but_the_last_has_a_number_in_words():
    assert {claim.topic for claim in claims()} == set(TOPICS)
    assert {claim.topic for claim in claims() if claim.in_words} == set(TOPICS)
    for claim in claims():
        assert not claim.in_words or claim.in_words.format(value=0.123456789) != claim.in_words


def test_outcomes_are_seven_in_the_order_of_the_topics():
    found = outcomes([verdict("holds"), verdict("fails"), verdict("not tested", topic="3", value=None)])
    assert [outcome.title for outcome in found] == list(TOPICS.values())[:7]
    assert len(found) == 7
    assert [outcome.answer for outcome in found].count("not tested") == 6
    assert (found[2].answer, found[2].counts) == ("partly", "1 of 2 claims hold")
    assert found[3].counts == "1 claim was not tested"
    assert sum(outcome.num_untested for outcome in found) == 1


def test_all_topics_beyond_the_paper_are_one_outcome():
    beyond = list(TOPICS)[6:]
    assert beyond[0] == "beyond"
    assert len(beyond) > 1
    found = outcomes([verdict("holds", topic=topic) for topic in beyond])
    assert (found[-1].title, len(found[-1].held)) == ("Beyond the paper", len(beyond))


@pytest.mark.parametrize(
    ("num_held", "num_failed", "answer"), [(3, 0, "yes"), (4, 2, "mostly"), (3, 2, "partly"), (0, 2, "no")]
)
def test_answers(num_held, num_failed, answer):
    found = outcomes([verdict("holds")] * num_held + [verdict("fails")] * num_failed)[2]
    assert found.answer == answer
    assert (
        found.sentence
        == f"The learned change has low rank: {answer}; {num_held} of {num_held + num_failed} claims hold."
    )


def test_the_example_is_the_first_number_that_can_be_said():
    words = "it is {value:.0%} of the start"
    silent, untested = verdict("holds"), verdict("not tested", value=None, in_words=words)
    endless, said = verdict("holds", value=math.inf, in_words=words), verdict("fails", in_words=words)
    found = outcomes([silent, untested, endless, said, replace(said, value=0.5)])[2]
    assert found.example == "It is 25% of the start (net, 3 seeds; this claim fails)."
