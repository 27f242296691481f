"""How failures and warnings reach the user: one sentence on stderr, a traceback only with `--debug`."""

import contextlib
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import TextIO

import typer

from rankrise.store import NO_LIMITS
from rankrise.store import show as printable

_is_debugging = False


def read_flags() -> bool:
    """Take `--debug` and `--no-limits` out of the command line, wherever they stand; return whether to debug."""
    global _is_debugging
    _is_debugging = "--debug" in sys.argv
    if "--no-limits" in sys.argv:
        os.environ[NO_LIMITS] = "1"  # processes that this one starts inherit it
    sys.argv = [word for word in sys.argv if word not in ("--debug", "--no-limits")]
    return _is_debugging


def sentence(error: BaseException | str) -> str:
    """Return the message of an exception on one line, without characters that a terminal would obey."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def in_shell(path: object) -> str:
    """Return a path as it is typed in a shell, without characters that a terminal would obey.

    >>> in_shell("runs/mine"), in_shell("runs/my run")
    ('runs/mine', "'runs/my run'")
    """
    return shlex.quote(printable(path))


def print_error(error: BaseException, *, about: str = "") -> None:
    """Say on stderr what failed."""
    if _is_debugging:
        traceback.print_exception(error)
    typer.echo(f"rankrise: {about}{': ' if about else ''}{sentence(error)}", err=True)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one line on stderr; in a distributed run, only those of the first process."""

    def say(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if is_main_process():
            typer.echo(f"rankrise: warning: {sentence(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def is_main_process() -> bool:
    """Whether this process writes to the terminal: the only one, or under `torchrun` the one whose `RANK` is 0."""
    return os.environ.get("RANK", "0") == "0"
