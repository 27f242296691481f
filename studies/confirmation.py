"""Claims whose number or bound was set after a look at data, judged again on runs of seeds that nobody had looked at.

    rankrise sweep toy-stages toy-flow-1e-1 toy-flow-1e-2 toy-flow-1e-4 toy-flow-1e-8 toy-flow-1e-16 toy-flow-1e-32 \
        toy-matrix-flow toy-robustness-4.3 toy-robustness-4.4 toy-gd toy-sgd toy-adam toy-relu toy-cross-entropy \
        toy-ceng501 --grid seed=20,21,22 --scale smoke --out fresh
    python studies/confirmation.py results/runs fresh

Prints a table in Markdown: each such claim with its bound, the verdict on the first folder, and that on the second.
The protocol, the table of who used which seeds and the outcome are in docs/log/sweeps.md.
"""

import argparse
from pathlib import Path

from rankrise.lab.claims import Verdict, evaluate_claims
from rankrise.lab.experiments import runs_by_experiment


def verdicts(folder: Path) -> dict[str, Verdict]:
    """The verdicts on the runs of a folder, by the id of their claim, for claims set after a look at data."""
    found = evaluate_claims(runs_by_experiment(folder))
    return {verdict.claim.id: verdict for verdict in found if verdict.claim.set_after_seeing}


def words(verdict: Verdict) -> str:
    """A verdict in a cell of the table."""
    if verdict.value is None:
        return verdict.verdict
    interval = f" ({verdict.interval})" if verdict.interval else ""
    return f"{verdict.verdict}: {verdict.value:.3g}{interval}, {verdict.n}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seen", type=Path)
    parser.add_argument("fresh", type=Path)
    arguments = parser.parse_args()
    seen, fresh = verdicts(arguments.seen), verdicts(arguments.fresh)
    print("| claim | must be | on seeds that were seen | on fresh seeds |\n|---|---|---|---|")
    for name, verdict in fresh.items():
        if verdict.value is not None:
            print(f"| `{name}` | {verdict.claim.threshold} | {words(seen[name])} | {words(verdict)} |")
