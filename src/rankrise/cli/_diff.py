"""`rankrise diff`: what a checkpoint, or a series of them, learned over its base."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._arguments import did_you_mean, hub_hint
from rankrise._extras import require
from rankrise.cli._output import file, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rankrise.checkpoints import Diff, DiffProgress, Plan


def diff(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASE TUNED...",
            help="The base, then what it became: a file, a folder, several, or a folder of numbered checkpoints. "
            "Adapters need no base.",
            show_default=False,
        ),
    ],
    summary: Annotated[
        bool,
        typer.Option("--summary", help="Measure only size, stable rank and floor, as fast as the files can be read."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Match names and shapes, and stop.")] = False,
    heads: Annotated[
        bool, typer.Option("--heads/--no-heads", help="Also measure the two circuits of every head.")
    ] = True,
    num_heads: Annotated[int | None, typer.Option(help="Number of query heads, if no config.json states it.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="List unchanged weights and every head, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write all rows, with whole spectra, to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write heat maps and tables to this file.")] = None,
    device: Annotated[str, typer.Option(help="Where to measure: cpu, cuda.")] = "cpu",
    allow_torch_load: Annotated[
        bool, typer.Option("--allow-torch-load", help="Read .pt, .pth, .bin and .ckpt, with weights_only.")
    ] = False,
) -> None:
    """Show what training changed: size, spectrum, ranks and rounding floor of every weight and every head."""
    for path, option in ((parquet, "--parquet"), (html, "--html")):
        if path is not None:
            file(path, option)
    if html is not None:
        require("`--html`", "jinja2")
    existing(*checkpoints, are_models=True)
    from rankrise import checkpoints as ck
    from rankrise.checkpoints.files import show

    base, tuned = checkpoints[0], checkpoints[1:]
    plan = ck.plan_diff(base, tuned or None, allow_torch_load=allow_torch_load)
    if dry_run:
        _show_plan(plan, as_json)
        return
    for step, preflight in zip(plan.steps, plan.preflights, strict=True):
        if preflight.renamed:
            typer.echo(f"{show(step.path.name)}: {'; '.join(preflight.renamed)}", err=True)
    with _progress_bar() as show_progress:
        found = ck.diff(plan, heads=heads, num_heads=num_heads, summary=summary, device=device, on_module=show_progress)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        typer.echo(ck.diff_text(found, everything=everything))
    _write_files(found, parquet, html)


def existing(*paths: Path, are_models: bool = False) -> None:
    """Refuse a path that does not exist. Call this before importing torch, so that a mistyped path is answered at once.

    Args:
        *paths: What the user named.
        are_models: Whether the paths are those of models, which the user may have meant to read from the hub.

    Raises:
        FileNotFoundError: One of the paths does not exist.
    """
    for path in paths:
        if not os.path.lexists(path) and "@" not in str(path):  # a name with "@" may be one on the hub
            name = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))
            beside = os.listdir(path.parent) if path.parent.is_dir() else []
            hint = did_you_mean(path.name, beside)
            if not hint and are_models:
                hint = hub_hint(path).lstrip()
            raise FileNotFoundError(f"{name} does not exist. {hint}".rstrip())


def _write_files(found: "Diff", parquet: Path | None, html: Path | None) -> None:
    written = []
    if parquet is not None:
        found.write_parquet(parquet)
        written.append(str(parquet))
    if html is not None:
        found.write_html(html)
        written.append(str(html))
    if written:
        typer.echo(f"wrote {', '.join(written)}", err=True)


def _show_plan(plan: "Plan", as_json: bool) -> None:
    problems = [problem for preflight in plan.preflights for problem in preflight.problems]
    if as_json:
        records = [
            {"step": step.step, "path": str(step.path), **preflight.to_json()}
            for step, preflight in zip(plan.steps, plan.preflights, strict=True)
        ]
        typer.echo(json.dumps(records, indent=1))
    else:
        from rankrise.checkpoints.files import show

        for step, preflight in zip(plan.steps, plan.preflights, strict=True):
            if len(plan.steps) > 1:
                typer.echo(f"{show(step.path.name)}:")
            typer.echo(preflight.text())
    if problems:
        raise typer.Exit(1)


@contextlib.contextmanager
def _progress_bar() -> "Iterator[Callable[[DiffProgress], None]]":
    """Show on stderr which weight is read and how long the rest will take: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        report = progress()
        yield lambda state: report(f"{_share(state):4.0%}{_left(state)}  {_printable(state.name)}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = BarColumn(24), TaskProgressColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda state: bar.update(
            task, completed=_share(state), description=f"{_left(state)}  {_printable(state.name)}".lstrip(", ")
        )


def _share(state: "DiffProgress") -> float:
    return state.done / state.total if state.total else 1.0


def _left(state: "DiffProgress") -> str:
    return "" if state.remaining is None else f", about {_duration(state.remaining)} left"


def _printable(name: str) -> str:
    return "".join(c for c in name if c.isprintable())[-48:]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
