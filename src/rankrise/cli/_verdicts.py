"""Claims and their verdicts as text for the terminal."""

from collections import Counter
from typing import TYPE_CHECKING

from rankrise.cli._output import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankrise.lab.claims import Verdict

_MOST_REASONS = 8


def verdict_table(verdicts: "Sequence[Verdict]") -> str:
    """Return a table of the tested claims, the number of untested claims for each reason, and the totals."""
    rows = [
        {
            "verdict": verdict.verdict,
            "claim": verdict.claim.id,
            "value": f"{verdict.value:.3g}",
            "95% interval": verdict.interval or "-",
            "must be": verdict.claim.threshold,
            "n": verdict.n,
        }
        for verdict in verdicts
        if verdict.value is not None
    ]
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.value is None)
    lines = [table(rows, left=("verdict", "claim", "must be", "n"))] if rows else []
    if any(verdict.is_open for verdict in verdicts):
        lines += ["", "? the interval contains the bound: more seeds could turn the verdict"]
    if reasons:
        lines += ["", "not tested:"] if rows else ["not tested:"]
        lines += [f"{number:>4}  {reason}" for reason, number in reasons.most_common(_MOST_REASONS)]
        others = sum(reasons.values()) - sum(number for _, number in reasons.most_common(_MOST_REASONS))
        lines += [f"{others:>4}  for other reasons; --json has them"] * bool(others)
    return "\n".join([*lines, "", f"{len(verdicts)} claims: {count(verdicts)}."])


def count(verdicts: "Sequence[Verdict]") -> str:
    """Return a sentence with how many claims hold, fail, and are not tested."""
    words = {"holds": "hold", "fails": "fail", "not tested": "not tested"}
    found = Counter(str(verdict.verdict) for verdict in verdicts)
    return ", ".join(f"{found[name]} {word}" for name, word in words.items() if found[name])
