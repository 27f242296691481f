"""The curves of a training in the cell of the notebook that it runs in."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankrise._doors import run_cell
from rankrise.store import RunFollower, UntrustedFolder, show


class LiveCell:
    """A sink that draws the run again in its cell when it is given numbers, at most every few seconds.

    Args:
        folder: The run directory.
        seconds: The least time between two drawings.
        update: Shows HTML in place of what was shown before.
    """

    def __init__(self, folder: Path, seconds: float, update: Callable[[str], None]) -> None:
        self._follower = RunFollower(UntrustedFolder(folder))
        self._folder, self._seconds, self._update = folder, seconds, update
        self._drawn_at = -float("inf")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Draw again, if the last drawing is old enough."""
        if time.monotonic() - self._drawn_at >= self._seconds:
            self._draw()

    def close(self) -> None:
        """Draw the whole run, with its stages."""
        self._draw(with_stages=True)
        self._follower.close()

    def _draw(self, *, with_stages: bool = False) -> None:
        self._update(run_cell(self._folder, self._follower.read(), with_stages=with_stages))
        self._drawn_at = time.monotonic()


def notebook_display() -> Callable[[str], None] | None:
    """Make a place for HTML in the cell that runs now, and return a function that fills it; None outside a notebook."""
    shell: Any = sys.modules.get("IPython")
    if shell is None or getattr(shell.get_ipython(), "kernel", None) is None:
        return None
    import importlib

    display = importlib.import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda text: handle.update(display.HTML(text))


def no_notebook(folder: Path) -> str:
    """Return the message where there is no cell to draw in.

    >>> no_notebook(Path("runs/mine"))
    '`live` draws in a notebook, and this is none. In a terminal: rankrise serve runs/mine'
    """
    return f"`live` draws in a notebook, and this is none. In a terminal: rankrise serve {show(folder)}"
