"""`rankrise plot`: one figure of any run, or of several side by side, as files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rankrise._extras import require
from rankrise.cli._diff import existing
from rankrise.cli._errors import sentence
from rankrise.cli._figure import kinds_of, save
from rankrise.cli._output import folder
from rankrise.cli._show import opened


def plot(
    figure: Annotated[str, typer.Argument(metavar="FIGURE", help="training_curves, spectrum_over_training, …")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, finished or not.")],
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("figures"),
    formats: Annotated[str, typer.Option("--format", help="One or more of svg, png, pdf, csv.")] = "svg,png,csv",
    layer: Annotated[int | None, typer.Option(help="Of training_curves only this layer, counted from 0.")] = None,
) -> None:
    """Draw a figure of a run of anyone's own loop, or of several runs under their own labels."""
    kinds = kinds_of(formats)
    folder(out, "--out")
    if set(kinds) != {"csv"}:
        require("Drawing a figure", "matplotlib", otherwise="or ask for --format csv")
    from rankrise.runs import compare
    from rankrise.view import RUN_FIGURES, check_run_figure, figure_of_comparison, figure_of_run

    try:
        check_run_figure(figure)
    except ValueError as error:
        first = " The figure comes before the runs." if Path(figure).is_dir() else ""
        raise typer.BadParameter(f"{sentence(error)}{first}") from error
    existing(*runs)
    options: dict[str, Any] = {} if layer is None else {"layer": layer}
    if options and RUN_FIGURES[figure].of != "several":
        raise typer.BadParameter(f"`--layer` must go with training_curves; {figure} shows all layers. Leave it out.")
    found = [run for path in runs for run in opened(path)]
    if len(found) == 1:
        drawn = figure_of_run(figure, found[0], **options)
    else:
        drawn = figure_of_comparison(figure, compare(found), **options)
    files = [save(drawn, out / f"{drawn.name}.{kind}") for kind in kinds]
    typer.echo(f"{drawn.name}: {RUN_FIGURES[figure].look_at} {sentence(drawn.caption)}")
    typer.echo(f"wrote {', '.join(str(path) for path in files)}", err=True)
