"""Claims on a terminal: tested ones as a table, the others by reason."""

from dataclasses import replace
from pathlib import Path

from rankrise.cli._results import Results, closing_lines, verdict_table
from rankrise.lab.claims import Claim, Verdict


def verdict(name, result, value=None, low=None, high=None, reason=""):
    claim = Claim(name, "", "", "kq", "", "", "≤ 0.5")
    return Verdict(claim, result, value, low, high, "3 seeds", reason, ())


def test_table_and_reasons():
    found = [
        verdict("a", "holds", 0.25, 0.2, 0.3),
        verdict("b", "fails", 0.75),
        *(verdict(f"c{n}", "not tested", reason="No data.") for n in range(3)),
    ]
    assert verdict_table(found).splitlines() == [
        "verdict  claim  value  95% interval  must be  n",
        "holds    a       0.25    0.2 to 0.3  ≤ 0.5    3 seeds",
        "fails    b       0.75             -  ≤ 0.5    3 seeds",
        "",
        "not tested:",
        "   3  No data.",
        "",
        "5 claims: 1 hold, 1 fail, 3 not tested.",
    ]


def test_an_interval_that_contains_the_bound_is_marked():
    lines = verdict_table([replace(verdict("a", "holds", 0.4, 0.2, 0.6), is_open=True)]).splitlines()
    assert lines[1] == "holds    a        0.4  0.2 to 0.6 ?  ≤ 0.5    3 seeds"
    assert lines[3] == "? the interval contains the bound: more seeds could turn the verdict"


def test_many_reasons_are_cut_short():
    found = [verdict(f"c{n}", "not tested", reason=f"No run of {n}.") for n in range(20)]
    lines = verdict_table(found).splitlines()
    assert lines[0] == "not tested:"
    assert lines[-3:] == ["  12  for other reasons; --json has them", "", "20 claims: 20 not tested."]


def test_the_end_says_in_ten_lines_what_came_out():
    good = verdict("good@net", "holds", 0.25)
    bad = verdict("bad@net", "fails", 0.75)
    claims = [
        replace(good, claim=replace(good.claim, topic="2", of="net", in_words="it is {value:.0%} of the start's")),
        replace(bad, claim=replace(bad.claim, topic="2", of="net", statement="it is small")),
        replace(verdict("c", "not tested"), claim=replace(good.claim, topic="3")),
    ]
    lines = closing_lines(Results(claims, None, Path("report/index.html"), "1 run at scale smoke: the toy."))
    assert len(lines) == 10
    assert lines[0] == "What was run: 1 run at scale smoke: the toy."
    assert lines[3] == (
        "partly      The learned change has low rank: 1 of 2 claims hold. It is 25% of the start's (net, 3 seeds)."
    )
    assert lines[4] == "not tested  Its rank grows gradually: 1 claim was not tested."
    assert lines[8] == (
        "What fails: 1 claim, the first: it is small (net: 0.75, must be ≤ 0.5). 1 more needs runs that are not here."
    )
    assert lines[9].startswith("Where to look: open report/index.html in a browser;")
