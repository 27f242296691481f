"""The entry point: the list of commands, and how a failure reaches the user.

Exit codes: 0 finished, 1 failed, 2 wrong usage. A traceback is shown only with `--debug`.
"""

import sys
from typing import Annotated

import typer

import rankrise
from rankrise.cli import (
    _diff,
    _env,
    _figure,
    _function,
    _latent,
    _list,
    _lora,
    _plot,
    _report,
    _reproduce,
    _resize,
    _run,
    _serve,
    _show,
    _stages,
    _sweep,
)
from rankrise.cli._errors import plain_warnings, print_error, read_flags

app = typer.Typer(
    name="rankrise",
    help="See, predict and use the gradual rank increase of transformers.",
    epilog="Example: rankrise reproduce",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("reproduce", epilog="Example: rankrise reproduce --scale paper --data data")(_reproduce.reproduce)
app.command("diff", epilog="Example: rankrise diff base/ tuned/ --html diff.html")(_diff.diff)
app.command("env", epilog="Example: rankrise env --json > env.json")(_env.env)
app.command("function", epilog="Example: rankrise function base/ tuned/ --data sample.txt")(_function.function)
app.command("latent", epilog="Example: rankrise latent data.npy --steps 5000 --figure latent.svg")(_latent.latent)
app.command("list", epilog="Example: rankrise list --data data --out runs")(_list.list_experiments)
app.command("lora", epilog="Example: rankrise lora base/ tuned/ --out adapter --energy 0.95 --verify")(_lora.lora)
app.command("resize", epilog="Example: rankrise resize adapter/ --out smaller --energy 0.95")(_resize.resize)
app.command("run", epilog="Example: rankrise run vit-digits --seed 0-2")(_run.run)
app.command("sweep", epilog="Example: rankrise sweep vit-digits --grid model.init_scale=1,0.3,0.1 --seeds 5")(
    _sweep.sweep
)
app.command(
    "figure", epilog="Example: rankrise figure stable_rank_over_training --experiment vit-digits --format svg,csv"
)(_figure.figure)
app.command("show", epilog="Example: rankrise show runs/mine --html mine.html")(_show.show)
app.command("serve", epilog="Example: rankrise serve runs --open")(_serve.serve)
app.command("plot", epilog="Example: rankrise plot training_curves runs/mine runs/other --format png")(_plot.plot)
app.command("report", epilog="Example: rankrise report --runs results/runs --out recorded")(_report.report)
app.command("stages", epilog="Example: rankrise stages --dim 4 --alpha 1e-32 --log10-alpha -1000000")(_stages.stages)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rankrise {rankrise.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    no_limits: Annotated[
        bool, typer.Option("--no-limits", help="Read files of any size; only for files that you trust.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; turn an exception into one sentence on stderr and exit code 1."""
    debug = read_flags()
    try:
        with plain_warnings():
            app()
    except SystemExit as end:
        if _is_interruption(end):  # typer turns Ctrl-C into exit code 130 and prints nothing
            typer.echo("rankrise: stopped by the user.", err=True)
        raise
    except Exception as error:
        if debug:
            raise
        print_error(error)
        sys.exit(1)


def _is_interruption(end: BaseException) -> bool:
    """Whether an exit was caused by Ctrl-C."""
    cause = end.__cause__ or end.__context__
    return isinstance(end, KeyboardInterrupt) or (cause is not None and _is_interruption(cause))
