"""From finished runs to figures, verdicts and the page: what `report` and `reproduce` share."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rankrise._extras import require
from rankrise._tables import table
from rankrise.cli._errors import in_shell
from rankrise.store import show as printable

if TYPE_CHECKING:
    from rankrise.lab.claims import Verdict
    from rankrise.lab.figures import Gallery


_MOST_REASONS = 8


@dataclass(frozen=True)
class Results:
    """Figures and verdicts from the runs, and the page that shows them."""

    verdicts: "Sequence[Verdict]"
    gallery: "Gallery"
    page: Path
    ran: str  # what was run, in a sentence

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        from rankrise.lab.claims import outcomes

        return {
            "report": str(self.page),
            "ran": self.ran,
            "outcomes": [
                {"topic": outcome.title, "answer": outcome.answer, "sentence": outcome.sentence}
                for outcome in outcomes(self.verdicts)
            ],
            "claims": [verdict.to_json() for verdict in self.verdicts],
            "figures": [
                {"name": figure.name, "title": figure.title, "sources": list(figure.sources)}
                for figure in self.gallery.figures
            ],
            "not drawn": self.gallery.missing,
        }


def require_report() -> None:
    """Refuse early, before any run, what the report needs at the end.

    Raises:
        ModuleNotFoundError: A package is missing.
    """
    require("The report", "jinja2", "matplotlib")


def write_results(
    runs: Mapping[str, Sequence[Path]],
    out: Path,
    *,
    beside: Path,
    absent: Mapping[str, str],
    note: Callable[[str], None],
) -> Results:
    """Judge every claim, write the verdicts `beside` the runs, draw every figure that can be drawn, write the report.

    A folder of runs that cannot be written, such as one on a read-only disk, gets no verdicts.
    """
    from rankrise.lab.claims import evaluate_claims, write_verdicts
    from rankrise.lab.experiments import is_full
    from rankrise.lab.figures import build_figures
    from rankrise.lab.report import environment_of, ran, write_report

    verdicts: Sequence[Any] = evaluate_claims(runs, absent=absent)
    try:
        write_verdicts(beside, verdicts)
    except OSError as error:
        note(f"no verdicts.json in {printable(beside)}: {error.strerror or error}")
    gallery = build_figures(runs)
    note(f"drawing {len(gallery.figures)} figures")
    for name, reason in gallery.missing.items():
        note(f"not drawn: {name}: {reason}")
    try:
        page = write_report(out, gallery.figures, verdicts, runs, environment_of(runs))
    except OSError as error:
        if is_full(error):
            raise OSError(f"The disk of {out} is full: make room, and run the same command again.") from error
        raise
    return Results(verdicts, gallery, page, ran(runs, verdicts))


def print_results(
    results: Results, *, as_json: bool, verbose: bool = False, more: Mapping[str, Any] | None = None
) -> None:
    """Print what came out on stdout in a few lines, and the path of the page as the last line on stderr.

    Args:
        results: What `write_results` returned.
        as_json: Print one JSON object instead.
        verbose: Print the table of all claims first.
        more: What the JSON object holds beside the results.
    """
    if as_json:
        typer.echo(json.dumps({**(more or {}), **results.to_json()}, indent=1, allow_nan=False))
    else:
        if verbose:
            typer.echo(f"{verdict_table(results.verdicts)}\n")
        typer.echo("\n".join(closing_lines(results)))
    typer.echo(f"wrote {results.page}", err=True)


def closing_lines(results: Results) -> list[str]:
    """What was run, what came out of each topic, what fails, and where to look: ten lines."""
    from rankrise.lab.claims import outcomes

    found = outcomes(results.verdicts)
    answers = [
        f"{outcome.answer:<10}  {outcome.title}: {outcome.counts}. {outcome.example}".rstrip() for outcome in found
    ]
    return [
        f"What was run: {results.ran}",
        *answers,
        _failing([v for outcome in found for v in outcome.failed], sum(outcome.num_untested for outcome in found)),
        f"Where to look: open {printable(results.page)} in a browser; `--verbose` prints every claim with its number.",
    ]


def _failing(failed: "Sequence[Verdict]", num_untested: int) -> str:
    """How many claims fail, with the first of them in words, and how many were not tested."""
    needs = "needs" if num_untested == 1 else "need"
    untested = f" {num_untested} more {needs} runs that are not here." if num_untested else ""
    if not failed:
        return f"What fails: no claim.{untested}"
    first = failed[0]
    num = f"{len(failed)} claim{'' if len(failed) == 1 else 's'}"
    text = f"{first.claim.statement} ({first.claim.of}: {first.value:.3g}, must be {first.claim.threshold})"
    return f"What fails: {num}, the first: {text}.{untested}"


def exit_if_strict(results: Results, strict: bool) -> None:
    """Exit with 1 if `--strict` is given and a claim fails."""
    if strict and any(verdict.verdict == "fails" for verdict in results.verdicts):
        raise typer.Exit(1)


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


def pointer_to_show(path: Path) -> str:
    """Sentences that name the commands for a tracker's own runs; empty if a folder holds none."""
    from rankrise.runs import find_runs

    own = [run for run in find_runs(path) if run.state != "damaged" and not run.data.spec]
    if not own:
        return ""
    name = in_shell(own[0].folder)
    return (
        f"It holds runs of a tracker, which belong to no experiment: `rankrise show {name}` shows one, "
        f"`rankrise plot training_curves {name}` draws it."
    )
