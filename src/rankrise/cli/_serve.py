"""`rankrise serve`: a page on this machine that shows every run below a folder while it trains."""

from pathlib import Path
from typing import Annotated

import typer

from rankrise._extras import require
from rankrise.cli._errors import sentence


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder that holds runs, or one run.", show_default=True)
    ] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; with another one, machines that have the token can read runs.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. [default: 8321, or a free one]", min=1, max=65535)
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Show every run below a folder on a page, live while it trains, until Ctrl-C. Only files are read."""
    require("`rankrise serve`", "starlette", "uvicorn")
    if not folder.is_dir():
        missing = "does not exist. Begin a training that writes it, or name another."
        reason = "is a file. Name its folder." if folder.exists() else missing
        raise typer.BadParameter(f"`FOLDER` must be a folder; {sentence(str(folder))} {reason}")
    from rankrise.view.live import serve as show

    def started(url: str) -> None:
        typer.echo(url)
        typer.echo(f"showing the runs in {sentence(str(folder))}; Ctrl-C stops this page and no training", err=True)
        if browser:
            import webbrowser

            webbrowser.open(url)

    show(folder, host=host, port=port, started=started)
