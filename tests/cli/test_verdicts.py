"""Claims on a terminal: tested ones as a table, the others by reason."""

from dataclasses import replace

from rankrise.cli._results import verdict_table
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
