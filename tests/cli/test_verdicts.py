"""Claims on a terminal: tested ones as a table, the others by reason."""

from rankrise.cli._verdicts import verdict_table
from rankrise.experiments.claims import Claim, Verdict


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


def test_many_reasons_are_cut_short():
    found = [verdict(f"c{n}", "not tested", reason=f"No run of {n}.") for n in range(20)]
    lines = verdict_table(found).splitlines()
    assert lines[0] == "not tested:"
    assert lines[-3:] == ["  12  for other reasons; --json has them", "", "20 claims: 20 not tested."]
