"""Write the table of verdicts of docs/reproduce.md again from `results/runs`: `python tools/write_verdicts.py`."""

import re
from pathlib import Path

from rankrise.lab.claims import evaluate_claims
from rankrise.lab.experiments import runs_by_experiment

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproduce.md"
_BLOCK = re.compile(r"(<!-- verdicts: [^>]*-->\n).*?(\n<!-- end of verdicts -->)", flags=re.S)


def verdict_lines() -> list[str]:
    """The table, line by line: every claim that the committed results test."""
    found = evaluate_claims(runs_by_experiment(ROOT / "results" / "runs"))
    verdicts = [verdict for verdict in found if verdict.value is not None]
    lines = ["| verdict | claim | value | 95% interval | must be | n |", "|---|---|---|---|---|---|"]
    for v in verdicts:
        name = f"[{v.claim.id}](claims.md)".replace("|", r"\|")
        word = "**fails**" if v.verdict == "fails" else v.verdict
        lines.append(f"| {word} | {name} | {v.value:.3g} | {v.interval} | {v.claim.threshold} | {v.n} |")
    return lines


def main() -> None:
    """Replace the table on the page."""
    text = PAGE.read_text(encoding="utf-8")
    table = "\n".join(verdict_lines())
    PAGE.write_text(_BLOCK.sub(lambda match: f"{match[1]}\n{table}\n{match[2]}", text), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
