"""How a failure reaches the user: one sentence on stderr, a traceback only with `--debug`."""

import sys
import traceback

import typer

_is_debugging = False


def read_debug_flag() -> bool:
    """Take `--debug` out of the command line, wherever it stands, and remember it."""
    global _is_debugging
    _is_debugging = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    return _is_debugging


def sentence(error: BaseException) -> str:
    """The message of an exception on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def show(error: BaseException, *, about: str = "") -> None:
    """Say on stderr what failed."""
    if _is_debugging:
        traceback.print_exception(error)
    typer.echo(f"rankrise: {about}{': ' if about else ''}{sentence(error)}", err=True)
