"""`rankrise reproduce`: every run, figure and claim of a scale, end to end."""

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankrise._tables import table
from rankrise.cli._errors import sentence
from rankrise.cli._output import folder, stoppable
from rankrise.cli._results import exit_if_strict, print_results, require_report, write_results
from rankrise.cli._run import Scale
from rankrise.cli._sweep import carry_out_together, the_workers
from rankrise.cli._watch import PlanWatch

if TYPE_CHECKING:
    from rankrise.lab.experiments import Attempt, PlannedRun, Reproduction
    from rankrise.lab.sweep import Workers


def reproduce(
    scale: Annotated[
        Scale,
        typer.Option(help="smoke: minutes on two cores; small: under an hour there; paper: three hours on a GPU."),
    ] = Scale.smoke,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets. [default: data]", envvar="RANKRISE_DATA")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs; finished runs are kept.")] = Path("runs"),
    seeds: Annotated[
        int | None, typer.Option(min=1, max=100, help="Seeds of every network. [default: the plan's, 1 or 3]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. [default: the best there is]")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Do the runs as a sweep, on so many processes. [default: one after another]"
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Do them on a Dask cluster, such as tls://login1:8786.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 also if a claim fails.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the table of all claims, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Run everything the paper's figures and claims need, draw the figures, judge the claims, write the report.

    A finished run is not repeated, and a run that was cut off goes on where it was: run the same command again after a
    stop. Runs are done one after another, or several at a time with --workers. An experiment without data is left out,
    and its claims are not tested. If a run fails or diverges, the report still shows the others, but the command exits
    with 1. A claim that fails is a result, not a failure: see --strict.
    """
    folder(runs, "--runs")
    folder(out, "--out")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter("Must be one process; use torchrun with `rankrise run`, then reproduce alone.")
    from rankrise.lab.experiments import plan_reproduction

    plan = plan_reproduction(scale.value, data=data, out=runs, num_seeds=seeds)
    if dry_run:
        _print_plan(plan, runs, device, as_json)
        return
    require_report()
    team = _team(workers, scheduler)
    with stoppable():
        _carry_out(plan, runs, out, device, team, strict=strict, verbose=verbose, as_json=as_json)


def _team(workers: int | None, scheduler: str | None) -> "Workers | None":
    """The workers that do the runs; None if this process does them one after another, without Dask."""
    if workers is None and scheduler is None:
        return None
    task, otherwise = "`rankrise reproduce` on several workers", "or leave --workers out, for one run after another"
    return the_workers(workers, "auto", scheduler, task=task, otherwise=otherwise)


def _carry_out(
    plan: "Reproduction",
    runs: Path,
    out: Path,
    device: str | None,
    team: "Workers | None",
    *,
    strict: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    from rankrise.lab.experiments import carry_out

    watch = PlanWatch()
    _announce(plan, runs, device, watch)
    if team is None:
        attempts = carry_out(plan.runs, out=runs, device=device, watch=watch)
    else:
        attempts = carry_out_together(list(plan.runs), runs, team, device)
    stopped = next((attempt for attempt in attempts if attempt.fate == "stopped"), None)
    if stopped is not None:
        typer.echo("rankrise: stopped; run the same command again to go on.", err=True)
        raise typer.Exit(128 + (stopped.signal or signal.SIGTERM))
    if any(attempt.fate == "full" for attempt in attempts):
        raise OSError(f"The disk of {runs} is full: make room, and run the same command again to go on.")
    results = write_results(plan.finished(), out, beside=runs, absent=_absent(plan, attempts), note=watch.note)
    print_results(
        results,
        as_json=as_json,
        verbose=verbose,
        more={"scale": plan.scale, "runs": [_attempt_record(a.run, a) for a in attempts]},
    )
    failed = [f"{a.run.name}/{a.run.hash}" for a in attempts if a.fate in ("failed", "diverged")]
    if failed:
        what = f"{failed[0]} has" if len(failed) == 1 else f"{len(failed)} runs have"
        typer.echo(f"rankrise: {what} failed, as said above; run the same command again to try once more.", err=True)
        raise typer.Exit(1)
    exit_if_strict(results, strict)


def _absent(plan: "Reproduction", attempts: "list[Attempt]") -> dict[str, str]:
    """Return why experiments have no run, including those that failed just now."""
    ends = ("failed", "diverged")
    failed = {a.run.name: f"{a.run.name}/{a.run.hash} {a.fate}." for a in attempts if a.fate in ends}
    return {**failed, **plan.absences()}


def _announce(plan: "Reproduction", out: Path, device: str | None, watch: PlanWatch) -> None:
    """Say what is going to happen before anything happens."""
    watch.note(f"scale {plan.scale}: {_counts(plan, out, device)}")
    for problem, names in _problems(plan).items():
        watch.note(f"left out: {', '.join(names)}. {problem}")


def _counts(plan: "Reproduction", out: Path, device: str | None) -> str:
    from rankrise.lab.experiments import estimate_seconds
    from rankrise.lab.training import duration

    fates = Counter(_fate(run) for run in plan.runs)
    left = estimate_seconds(plan.runs, out=out, device=device)
    parts = [f"{fates[fate]} {fate}" for fate in ("done", "to resume", "to run", "left out") if fates[fate]]
    time = f", about {duration(left)}" if left else ""
    num = len(plan.runs)
    return f"{num} run{'' if num == 1 else 's'}: {', '.join(parts)}{time}"


def _fate(run: "PlannedRun") -> str:
    if run.problem:
        return "left out"
    return {"done": "done", "unfinished": "to resume"}.get(run.state, "to run")


def _problems(plan: "Reproduction") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in plan.runs:
        if run.problem:
            names = found.setdefault(sentence(ValueError(run.problem)), [])
            names += [run.name] * (run.name not in names)
    for name, reason in plan.by_hand.items():
        if name not in plan.finished():
            found.setdefault(f"{reason}.", []).append(name)
    return found


def _attempt_record(run: "PlannedRun", attempt: "Attempt | None" = None) -> dict[str, Any]:
    record = {"name": run.name, "hash": run.hash, "seed": run.spec.seed, "folder": str(run.folder)}
    if attempt is None:
        return {**record, "would be": _fate(run), "problem": run.problem}
    return {**record, "fate": attempt.fate, "seconds": round(attempt.seconds, 2), "message": attempt.message}


def _print_plan(plan: "Reproduction", out: Path, device: str | None, as_json: bool) -> None:
    from rankrise.lab.experiments import estimate_seconds

    if as_json:
        record = {
            "scale": plan.scale,
            "estimated_seconds": round(estimate_seconds(plan.runs, out=out, device=device)),
            "runs": [_attempt_record(run) for run in plan.runs],
            "by hand": dict(plan.by_hand),
        }
        typer.echo(json.dumps(record, indent=1))
        return
    rows = [{"name": run.name, "hash": run.hash, "seed": run.spec.seed, "would be": _fate(run)} for run in plan.runs]
    typer.echo(table(rows, left=("name", "hash", "would be")))
    typer.echo(f"\n{_counts(plan, out, device)}")
    for problem, names in _problems(plan).items():
        typer.echo(f"left out: {', '.join(names)}. {problem}")
