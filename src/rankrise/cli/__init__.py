"""The command `rankrise`: data on stdout, progress on stderr, one-line errors."""

from rankrise.cli._main import app as app
from rankrise.cli._main import main as main

__all__ = ["app", "main"]
