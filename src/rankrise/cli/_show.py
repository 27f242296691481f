"""`rankrise show`: what runs have learned, in the terminal, as JSON, as a page, as pictures."""

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._extras import require
from rankrise._tables import table
from rankrise.cli._diff import existing
from rankrise.cli._errors import in_shell, sentence
from rankrise.cli._figure import save
from rankrise.cli._output import file, folder
from rankrise.store import replacing
from rankrise.store import show as printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankrise.runs import RunData
    from rankrise.view import RunSummary

_LEFT = ("rank over training", "rises at step")


def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, or folders that hold some.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with all figures to this file.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write all figures to this folder.")] = None,
) -> None:
    """Show what runs have learned, while they train or afterwards: ranks by layer, stages, heads, LoRA ranks."""
    if html is not None:
        file(html, "--html")
        require("`--html`", "jinja2")
    if png is not None:
        folder(png, "--png")
        require("`--png`", "matplotlib")
    existing(*runs)
    found = [run for path in runs for run in opened(path)]
    is_list = len(found) > len(runs) and not as_json
    if is_list and html is None and png is None:
        _print_list(found)
        return
    from rankrise.checkpoints import advise_run
    from rankrise.runs import compare
    from rankrise.view import summarise

    summaries = [summarise(run, advise=advise_run) for run in found]
    if as_json:
        typer.echo(json.dumps([summary.to_json() for summary in summaries], indent=1, allow_nan=False))
    elif is_list:
        _print_list(found)
    else:
        typer.echo("\n\n".join(_run_text(summary) for summary in summaries))
        if len(summaries) > 1:
            labels = compare(found).runs
            _print_comparison(dict(zip(labels, summaries, strict=True)))
    if html is not None:
        _write_page(summaries, html)
    if png is not None:
        _write_pictures(summaries, png)


def opened(path: Path) -> "list[RunData]":
    """The run in a folder, or else all runs below the folder.

    Raises:
        FileNotFoundError: There is none.
    """
    from rankrise.runs import find_runs, open_run
    from rankrise.store import has_run

    if has_run(path):
        return [open_run(path)]
    if not path.is_dir():
        above = f"; the run that it belongs to is {path.parent}" if has_run(path.parent) else ""
        raise FileNotFoundError(f"A run must be a folder; {path} is a file{above}.")
    found = [run.data for run in find_runs(path)]
    if not found:
        raise FileNotFoundError(
            f"A run must be a folder that a tracker or the trainer wrote, with a MANIFEST.json; {path} holds none. "
            'Record one: rankrise.RankTracker(model, out="runs/mine").'
        )
    return found


def _print_list(runs: "Sequence[RunData]") -> None:
    for run in runs:
        try:
            typer.echo(printable(f"{run.folder}  {run.progress().words}"))
        except (OSError, ValueError) as error:
            typer.echo(f"{printable(run.folder)}  damaged: {sentence(error)}")
    typer.echo(f"\n{len(runs)} runs. To see one: rankrise show {in_shell(runs[0].folder)}")


def _run_text(summary: "RunSummary") -> str:
    """What is known of a run, as paragraphs of plain text."""
    from rankrise.view import ENERGY

    parts = [printable(summary.headline)]
    if rows := summary.layer_rows():
        parts.append(
            "The change of W_K W_Qᵀ (kq) and of W_V W_Oᵀ (vo), mean over the heads of each layer; every curve has a "
            "scale of its own:\n"
            f"{table(rows, left=_LEFT)}"
        )
    if heads := summary.head_rows():
        parts.append(
            f"The heads that learned most, by the size of their change (1 × is an average head):\n{table(heads)}"
        )
    elif summary.heads_missing and not summary.is_empty:
        parts.append(sentence(summary.heads_missing))
    if ranks := summary.rank_rows():
        parts.append(f"LoRA ranks that keep {ENERGY:.0%} of the squared change of each matrix:\n{table(ranks)}")
    elif summary.advice_missing and not summary.is_empty:
        parts.append(f"No LoRA ranks: {sentence(summary.advice_missing)}")
    if remarks := summary.remarks():
        parts.append("\n".join(sentence(remark) for remark in remarks))
    return "\n\n".join(parts)


def _print_comparison(summaries: "Mapping[str, RunSummary]") -> None:
    from rankrise.view import compared_ranks

    folders = " ".join(in_shell(summary.run.folder) for summary in summaries.values())
    typer.echo("\nSide by side:")
    for line in compared_ranks(summaries):
        typer.echo(printable(line))
    typer.echo(f"To draw them over each other: rankrise plot training_curves {folders}", err=True)


def _write_page(summaries: "Sequence[RunSummary]", path: Path) -> None:
    from rankrise.view import run_page

    page = run_page(summaries)
    with replacing(path, "page") as temporary:
        temporary.write_text(page, encoding="utf-8")
    typer.echo(f"wrote {path}", err=True)


def _write_pictures(summaries: "Sequence[RunSummary]", out: Path) -> None:
    """Draw every figure; runs whose folders have one name are numbered."""
    from rankrise.view import RUN_FIGURES, run_gallery

    taken: set[Path] = set()
    for summary in summaries:
        gallery = run_gallery(summary.run)
        for name, reason in gallery.missing.items():
            if RUN_FIGURES[name].of != "scales":  # these are never of one run
                typer.echo(f"not drawn: {name}: {sentence(reason)}", err=True)
        for figure in gallery.figures:
            path = _free(out / f"{figure.name}.png", taken)
            typer.echo(f"wrote {save(figure, path)}", err=True)


def _free(path: Path, taken: set[Path]) -> Path:
    """The path, with a number if it is taken."""
    free = next(
        p for n in itertools.count(1) if (p := path if n == 1 else path.with_stem(f"{path.stem}-{n}")) not in taken
    )
    taken.add(free)
    return free
