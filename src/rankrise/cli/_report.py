"""`rankrise report`: figures, claims and the page, made from finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from rankrise.cli._output import folder
from rankrise.cli._results import exit_if_strict, pointer_to_show, print_results, require_report, write_results
from rankrise.cli._run import Scale


def report(
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    scale: Annotated[
        Scale | None,
        typer.Option(help="Only runs of `reproduce` at this scale. [default: the largest there is]"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a claim fails.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the table of all claims, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write the report of finished runs; nothing is trained. It also works on results/runs of the repository."""
    folder(out, "--out")
    require_report()
    from rankrise.lab.experiments import runs_by_experiment, unread_runs

    found = runs_by_experiment(runs, scale=None if scale is None else scale.value)
    if not found:
        raise ValueError(
            f"`--runs` must hold finished runs, as runs/<experiment>/<hash>; {runs} holds none. "
            f"{pointer_to_show(runs) or 'Make some: rankrise reproduce'}"
        )
    absent = {} if scale else unread_runs(runs, found)
    results = write_results(found, out, beside=runs, absent=absent, note=lambda text: typer.echo(text, err=True))
    print_results(results, as_json=as_json, verbose=verbose)
    exit_if_strict(results, strict)
