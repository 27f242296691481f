"""`rankrise figure`: the figures of the paper as files, drawn from finished runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankrise._extras import require
from rankrise.cli._errors import sentence
from rankrise.cli._output import folder
from rankrise.cli._results import pointer_to_show
from rankrise.cli._run import Scale

if TYPE_CHECKING:
    from rankrise.view import FigureData

_FORMATS = ("svg", "png", "pdf", "csv")


def figure(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="toy_scales, stable_rank_over_training, …; or all.")],
    experiment: Annotated[
        list[str] | None, typer.Option(help="Network to draw; repeatable. [default: every network that has runs]")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("figures"),
    formats: Annotated[str, typer.Option("--format", help="One or more of svg, png, pdf, csv.")] = "svg,png,csv",
    scale: Annotated[
        Scale | None,
        typer.Option(help="Only runs of `reproduce` at this scale. [default: the largest there is]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of lines.")] = False,
) -> None:
    """Draw figures of finished runs; nothing is trained. The numbers behind each figure are written too."""
    kinds = kinds_of(formats)
    folder(out, "--out")
    if set(kinds) != {"csv"}:
        require("Drawing a figure", "matplotlib", otherwise="or ask for --format csv")
    from rankrise.lab.experiments import runs_by_experiment
    from rankrise.lab.figures import figure_ids, takes_experiment

    try:
        wanted = list(figure_ids()) if ids == ["all"] else list(dict.fromkeys(ids))
        for figure_id in wanted:
            takes_experiment(figure_id)  # refuses an unknown figure
    except ValueError as error:
        raise typer.BadParameter(f"{sentence(error)}{_of_any_run(ids)}") from error
    found = runs_by_experiment(runs, scale=None if scale is None else scale.value)
    if not found and (hint := pointer_to_show(runs)):
        raise ValueError(f"`--runs` must hold finished runs of experiments; {runs} holds none. {hint}")
    _check_experiments(experiment or [], found, runs)
    records = []
    for drawn in _figures(wanted, experiment or [], found):
        files = [save(drawn, out / f"{drawn.name}.{kind}") for kind in kinds]
        records.append(
            {
                "name": drawn.name,
                "title": drawn.title,
                "caption": drawn.caption,
                "sources": list(drawn.sources),
                "files": [str(path) for path in files],
            }
        )
    if as_json:
        typer.echo(json.dumps(records, indent=1))
    else:
        for record in records:
            typer.echo(f"{record['name']}: {record['caption']}\n")
    typer.echo(f"wrote {', '.join(str(path) for record in records for path in record['files'])}", err=True)


def _of_any_run(ids: Sequence[str]) -> str:
    """A sentence that names `rankrise plot` if a figure is one that it draws; otherwise empty."""
    from rankrise.view import RUN_FIGURES

    name = next((name for name in ids if name in RUN_FIGURES), "")
    return f" `rankrise plot {name} RUN` draws {name} of any run." if name else ""


def kinds_of(formats: str) -> list[str]:
    """The kinds of files that `--format` names.

    Raises:
        typer.BadParameter: A kind is unknown, or there is none.
    """
    kinds = list(dict.fromkeys(word.strip().lower() for word in formats.split(",") if word.strip()))
    strange = [kind for kind in kinds if kind not in _FORMATS]
    if strange or not kinds:
        raise typer.BadParameter(f"`--format` must be of {', '.join(_FORMATS)}; got {(strange or [formats])[0]!r}.")
    return kinds


def _check_experiments(names: Sequence[str], found: Mapping[str, Sequence[Path]], runs: Path) -> None:
    import difflib

    from rankrise.lab.experiments import experiments, network_of

    bases = {network_of(name) for name in found}
    for name in names:
        if name not in bases and name not in found:
            close = difflib.get_close_matches(name, sorted(bases | set(found)), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            make = f" Make some: rankrise run {name}" if name in experiments() else ""
            raise typer.BadParameter(
                f"`--experiment` must have finished runs in {runs}; {name!r} has none.{hint} "
                f"There are: {', '.join(found) or 'none at all'}.{make}"
            )


def _figures(ids: Sequence[str], experiments: Sequence[str], found: Mapping[str, Sequence[Path]]) -> "list[FigureData]":
    """Return the figures that were asked for; if no network was named, those of every network that has the runs.

    Raises:
        ValueError: A figure cannot be made; the message says which experiment to run.
    """
    from rankrise.lab.figures import build_figure, build_figures, takes_experiment

    gallery = None
    drawn: list[FigureData] = []
    for figure_id in ids:
        if not takes_experiment(figure_id):
            drawn.append(build_figure(figure_id, found))
        elif experiments:
            drawn += [build_figure(figure_id, found, experiment=name) for name in experiments]
        else:
            gallery = build_figures(found) if gallery is None else gallery
            some = [figure for figure in gallery.figures if figure.id == figure_id]
            drawn += some or [build_figure(figure_id, found, experiment="vit-digits")]
    return drawn


def save(figure: "FigureData", path: Path) -> Path:
    """Write a figure to a file, in the format that the ending of its name says."""
    from rankrise.store import replacing
    from rankrise.view import draw, to_csv

    if path.suffix != ".csv":
        return draw(figure, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, "figure") as temporary:
        temporary.write_text(to_csv(figure), encoding="utf-8")
    return path
