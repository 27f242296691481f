"""What commands print on stderr while they work and when they are stopped, and checks of the paths that they write."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import typer

_KINDS = {".png", ".svg", ".pdf", ".csv", ".html", ".json"}  # endings that a path has if it is meant to be a file


def progress() -> Callable[[str], None]:
    """Return a function that writes lines to stderr, at most one a second; on a terminal each overwrites the last."""
    last = time.monotonic()
    on_terminal = sys.stderr.isatty()

    def report(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 1:
            last = time.monotonic()
            typer.echo(f"\r{text}\x1b[K" if on_terminal else text, err=True, nl=not on_terminal)

    return report


def file(path: Path, option: str) -> None:
    """Refuse a path where no file can be written. Call this before any work is done for the file.

    Raises:
        typer.BadParameter: The path is a folder, or its folder does not exist or is not writable.
    """
    above = path.absolute().parent
    if path.is_dir():
        raise typer.BadParameter(f"`{option}` must be a file; {path} is a folder. Name a file in it.")
    if not above.is_dir():
        raise typer.BadParameter(f"The folder of {path} must exist. Make it first.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"`{option}` must be a place to write to; {above} is not. Name another.")


def folder(path: Path, option: str) -> None:
    """Refuse a folder if the path, or a part of it, is a file. Call this before any work is done for the folder.

    Raises:
        typer.BadParameter: The path, or a part of it, is a file, or a new path is named as if it were to be one.
    """
    if path.suffix in _KINDS and not path.exists():
        raise typer.BadParameter(
            f"`{option}` must be a folder; {path} has the name of a file. Name the folder that the files go to."
        )
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise typer.BadParameter(
                f"`{option}` must be a folder; {place} is a file. Move it, or name another folder."
            )


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command with a sentence, also between two trainings."""

    def stop(number: int, frame: FrameType | None) -> None:
        typer.echo("rankrise: stopped; run the same command again to go on.", err=True)
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
