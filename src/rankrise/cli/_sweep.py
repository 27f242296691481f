"""`rankrise sweep`: a grid of runs on several processes or on a Dask cluster."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._extras import require
from rankrise._tables import table
from rankrise.cli._errors import sentence
from rankrise.cli._output import folder, stoppable
from rankrise.cli._run import Scale
from rankrise.cli._sweep_watch import SweepLines

if TYPE_CHECKING:
    from rankrise.lab.experiments import Attempt, PlannedRun
    from rankrise.lab.sweep import Grid, Workers


def sweep(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Experiments, as `rankrise list` shows them, or one named grid.")
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B", help="Values of a field of the spec, such as model.init_scale; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds 0 to N - 1 of every run. [default: the spec's]")
    ] = None,
    scale: Annotated[
        Scale | None, typer.Option(help="Which spec the grid begins from. [default: small, or the grid's own]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Processes of this machine. [default: its cores]")
    ] = None,
    memory_limit: Annotated[
        str, typer.Option(help="Memory of one worker, such as 4GB; auto shares the machine out, none sets no limit.")
    ] = "auto",
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask cluster instead, such as tls://login1:8786.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets. [default: data]", envvar="RANKRISE_DATA")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; each is <out>/<name>/<hash of its spec>.")] = Path(
        "runs"
    ),
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. [default: the best there is]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """Do every run of a grid: experiments, with every combination of values of some fields, with every seed.

    A finished run is skipped, and a run that was cut off goes on where it was: run the same command again after a stop
    or a crash. A run whose worker dies is tried elsewhere; one that always dies is reported, the others finish, and the
    command exits with 1. Theory is solved inside the workers; a training is a process of its own, with a log.txt.
    """
    folder(out, "--out")
    wanted = _grid(names, grid or [], seeds, scale)
    try:
        plans = wanted.plan(data=data, out=out)
    except ValueError as error:
        raise typer.BadParameter(sentence(error)) from error
    if dry_run:
        _print_plans(plans, as_json)
        if any(plan.problem for plan in plans):
            raise typer.Exit(1)
        return
    workers_of_it = the_workers(workers, memory_limit, scheduler)
    _note_plan(plans, out)
    attempts = carry_out_together(plans, out, workers_of_it, device)
    _print_runs(attempts, out, as_json)
    typer.echo(f"wrote {out}", err=True)
    if any(attempt.fate in ("failed", "diverged", "missing") for attempt in attempts):
        typer.echo("rankrise: some runs failed, as said above; run the same command again to try once more.", err=True)
        raise typer.Exit(1)


def the_workers(
    num: int | None, memory_limit: str, scheduler: str | None, *, task: str = "A sweep", otherwise: str = ""
) -> "Workers":
    """Make the workers that the options ask for.

    Args:
        num: Number of processes of this machine; its cores if None.
        memory_limit: Memory of one of them, "auto" or "none".
        scheduler: Address of a cluster instead.
        task: What needs the workers, for the message.
        otherwise: What the user can do without Dask, for the message.

    Raises:
        ModuleNotFoundError: Dask is not installed.
        typer.BadParameter: The options contradict each other, or the limit is no amount of memory.
    """
    import os

    from rankrise.lab.sweep import Workers

    require(task, "dask", "distributed", "cryptography", otherwise=otherwise)
    if scheduler is not None and num is not None:
        raise typer.BadParameter(
            "`--workers` and `--scheduler` must not be given together; a cluster has its own workers."
        )
    if memory_limit not in ("auto", "none"):
        from dask.utils import parse_bytes

        try:
            parse_bytes(memory_limit)
        except ValueError:
            raise typer.BadParameter(
                f"`--memory-limit` must be an amount of memory; got {memory_limit!r}. Write 4GB, auto or none."
            ) from None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Workers(num or cores, None if memory_limit == "none" else memory_limit, scheduler or "")


def carry_out_together(plans: "list[PlannedRun]", out: Path, workers: "Workers", device: str | None) -> "list[Attempt]":
    """Do runs on workers, and show how far they are; a stop or a full disk ends the command with a sentence."""
    from rankrise.lab.sweep import sweep as do

    with stoppable(), SweepLines() as lines:
        attempts = do(plans, out=out, workers=workers, device=device, watch=lines)
    if any(attempt.fate == "full" for attempt in attempts):
        raise OSError(f"The disk of {out} is full: make room, and run the same command again to go on.")
    return attempts


def _grid(names: list[str], words: list[str], seeds: int | None, scale: Scale | None) -> "Grid":
    """The grid that names and options mean; options change a grid that has a name."""
    from dataclasses import replace

    from rankrise.lab.experiments import find_experiment
    from rankrise.lab.sweep import GRIDS, Grid, read_fields

    if names[0] in GRIDS and len(names) == 1:
        found = GRIDS[names[0]]
    else:
        try:
            for name in names:
                find_experiment(name)
        except ValueError as error:
            grids = f"Grids that have a name: {', '.join(GRIDS)}."
            raise typer.BadParameter(f"{sentence(error)} {grids}") from error
        found = Grid(tuple(names))
    try:
        fields = {**found.fields, **read_fields(words)}
    except ValueError as error:
        raise typer.BadParameter(sentence(error)) from error
    return replace(
        found,
        fields=fields,
        num_seeds=found.num_seeds if seeds is None else seeds,
        scale=found.scale if scale is None else scale.value,
    )


def _print_plans(plans: "list[PlannedRun]", as_json: bool) -> None:
    from rankrise.lab.experiments import to_json

    if as_json:
        records = [
            {"name": p.name, "hash": p.hash, "state": p.state, "problem": p.problem, "spec": to_json(p.spec)}
            for p in plans
        ]
        typer.echo(json.dumps(records, indent=1))
        return
    typer.echo(
        table(
            [{"run": f"{p.name}/{p.hash}", "seed": p.spec.seed, "state": p.state} for p in plans], left=("run", "state")
        )
    )
    counts = Counter("left out" if plan.problem else plan.state for plan in plans)
    typer.echo(f"{len(plans)} runs: {', '.join(f'{number} {state}' for state, number in counts.items())}")
    for problem in dict.fromkeys(plan.problem for plan in plans if plan.problem):
        typer.echo(problem)


def _note_plan(plans: "list[PlannedRun]", out: Path) -> None:
    """Write down which runs are asked for, so that `rr.open_sweep` knows those that have not begun."""
    from rankrise.lab.experiments import to_json
    from rankrise.runs import write_sweep_plan

    write_sweep_plan(out, {f"{plan.name}/{plan.hash}": to_json(plan.spec) for plan in plans})


def _print_runs(attempts: "list[Attempt]", out: Path, as_json: bool) -> None:
    """Print one row for each run on stdout, and the reasons of runs that failed."""
    from rankrise.runs import read_sweep

    found = read_sweep(out, [attempt.run.folder for attempt in attempts])
    if as_json:
        records = [
            {**row.to_json(), "fate": attempt.fate, "seconds": round(attempt.seconds, 2), "message": attempt.message}
            for row, attempt in zip(found.rows, attempts, strict=True)
        ]
        typer.echo(json.dumps(records, indent=1, allow_nan=False))
        return
    typer.echo(repr(found))
