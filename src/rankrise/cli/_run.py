"""`rankrise run`: experiments by name, or specs from files, one after another."""

import enum
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._tables import table
from rankrise.cli._errors import sentence
from rankrise.cli._runs import run_plans

if TYPE_CHECKING:
    from rankrise.lab.experiments import NamedSpec, PlannedRun


class Scale(enum.StrEnum):
    """The size of an experiment."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Experiments; `rankrise list` shows them.")
    ] = None,
    scale: Annotated[
        Scale | None,
        typer.Option(help="smoke: seconds; small: a CPU, under an hour; paper: a GPU. [default: small]"),
    ] = None,
    spec: Annotated[
        list[Path] | None, typer.Option(help="A spec of your own, or a run's spec.json; repeatable.")
    ] = None,
    seed: Annotated[
        list[str] | None, typer.Option(metavar="N|A-B", help="Seed, or a range of them; repeatable. [default: 0]")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of epochs instead of the spec's, for a quick look.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets. [default: data]", envvar="RANKRISE_DATA")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; each is <out>/<name>/<hash of its spec>.")] = Path(
        "runs"
    ),
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. [default: the best there is]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of tables.")] = False,
) -> None:
    """Train experiments, tracking every head, and print what came out.

    A finished run is skipped, and a run that was cut off goes on where it was: run the same command again after a stop.
    Every run is a folder whose spec.json is enough to repeat it. The command works under torchrun.
    """
    seeds = _seeds(seed or [])
    if not names and not spec:
        raise typer.BadParameter("Name an experiment, or pass --spec: `rankrise list` shows the names.")
    if scale is not None and not names:
        message = "`--scale` is ignored: it chooses among the specs of a named experiment, and `--spec` is one already."
        typer.echo(f"rankrise: warning: {message}", err=True)
    size = (scale or Scale.small).value
    plans = _plan(names or [], spec or [], seeds, scale=size, epochs=epochs, data=data, out=out)
    if dry_run:
        _print_plans(plans, as_json)
        if any(plan.problem for plan in plans):
            raise typer.Exit(1)
        return
    from rankrise.lab.experiments import joined_processes

    with joined_processes(device):
        code = run_plans(plans, device=device, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _seeds(words: list[str]) -> list[int | None]:
    """Return the seeds of words such as `["0-2", "7"]`, here 0, 1, 2, 7; without words, the seed of the spec."""
    seeds: list[int | None] = []
    for word in words:
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", word, flags=re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last - first >= 1000:
            raise typer.BadParameter(
                f"`--seed` must be a whole number, or a range such as 0-2 of at most 1000; got {word!r}."
            )
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds)) or [None]


def _plan(
    names: list[str],
    files: list[Path],
    seeds: list[int | None],
    *,
    scale: str,
    epochs: int | None,
    data: Path | None,
    out: Path,
) -> "list[PlannedRun]":
    """Plan every run that is asked for, each once; all are checked before the first begins."""
    from rankrise.lab.experiments import find_experiment, plan_run, read_spec

    try:
        for name in names:
            find_experiment(name)
        specs = [read_spec(path) for path in files]
    except (ValueError, OSError) as error:
        raise typer.BadParameter(sentence(error)) from error
    wanted: list[str | NamedSpec] = [*names, *specs]
    plans = [
        plan_run(what, scale=scale, seed=seed, epochs=epochs, data=data, out=out) for what in wanted for seed in seeds
    ]
    return list({plan.folder: plan for plan in plans}.values())


_FATES = {"new": "run", "unfinished": "resumed", "done": "skipped"}


def _print_plans(plans: "list[PlannedRun]", as_json: bool) -> None:
    rows = [
        {
            "name": plan.name,
            "hash": plan.hash,
            "seed": plan.spec.seed,
            "state": plan.state,
            "would be": "refused" if plan.problem else _FATES[plan.state],
        }
        for plan in plans
    ]
    if as_json:
        more = [{"folder": str(plan.folder), "problem": plan.problem} for plan in plans]
        typer.echo(json.dumps([row | extra for row, extra in zip(rows, more, strict=True)], indent=1))
        return
    typer.echo(table(rows, left=("name", "hash", "state", "would be")))
    for problem in dict.fromkeys(plan.problem for plan in plans if plan.problem):
        typer.echo(problem)
