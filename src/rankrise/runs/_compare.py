"""Several runs side by side, each under its own label; they are never averaged."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rankrise._doors import plot_comparison
from rankrise.runs._curve import Curve
from rankrise.runs._find import differing_fields, open_run, spec_fields
from rankrise.runs._overview import headline
from rankrise.runs._run_data import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OneRun: TypeAlias = "RunData | str | os.PathLike[str]"


@dataclass(frozen=True)
class Comparison:
    """Several runs, each under its own label.

    Args:
        runs: Runs by label, in the order in which they are drawn.
    """

    runs: Mapping[str, RunData]

    def __repr__(self) -> str:
        width = max(len(label) for label in self.runs)
        return "\n".join(f"{label:<{width}}  {headline(run.progress())}" for label, run in self.runs.items())

    def curve(
        self, quantity: str, *, circuit: str | None = None, layer: int | None = None, head: int | None = None
    ) -> dict[str, Curve]:
        """One quantity of every run, by label; the arguments are those of `RunData.curve`.

        Raises:
            NotMeasurable: A run has no such quantity, circuit, layer or head.
        """
        return {label: run.curve(quantity, circuit=circuit, layer=layer, head=head) for label, run in self.runs.items()}

    def plot(self, figure: str = "training_curves", **options: Any) -> "Figure":
        """Draw a figure of all runs with matplotlib; `layer=2` shows one layer of each.

        Raises:
            NotMeasurable: A run lacks what the figure shows, or the figure shows one run only.
            ValueError: The figure or an option is unknown.
            ModuleNotFoundError: matplotlib is not installed.
        """
        return plot_comparison(self, figure, options)


def compare(runs: Iterable[OneRun] | Mapping[str, OneRun]) -> Comparison:
    """Put several runs side by side.

    Args:
        runs: Run directories or opened runs; or a mapping that gives each of them a label. Without labels a run is
            named after the field of its spec in which the runs differ, or after its folder.

    Raises:
        ValueError: There are no runs, or `runs` is one path.
        FileNotFoundError: A folder holds no run.

    >>> compare([])
    Traceback (most recent call last):
    ValueError: `runs` must hold at least one run; got none.
    """
    if isinstance(runs, str | os.PathLike):
        raise ValueError(f"`runs` must be a list of runs, or runs by label; got one path. Write [{os.fspath(runs)!r}].")
    if isinstance(runs, Mapping):
        opened = {str(label): _opened(run) for label, run in runs.items()}
    else:
        found = [_opened(run) for run in runs]
        opened = dict(zip(_labels(found), found, strict=True))
    if not opened:
        raise ValueError("`runs` must hold at least one run; got none.")
    return Comparison(opened)


def _opened(run: OneRun) -> RunData:
    return run if isinstance(run, RunData) else open_run(run)


def _labels(runs: list[RunData]) -> list[str]:
    """A label for each run: the one field in which all differ, or else the end of the path that tells them apart."""
    fields = [spec_fields(run.spec or run.config) for run in runs]
    for name in differing_fields(runs) if all(run.spec for run in runs) else _differing(fields):
        values = [str(found[name]) for found in fields if name in found]
        if len(values) == len(set(values)) == len(runs):
            return [f"{name.rpartition('.')[2]} = {value}" for value in values]
    return _ends(runs)


def _differing(fields: list[dict[str, object]]) -> list[str]:
    names = dict.fromkeys(name for found in fields for name in found)
    return [name for name in names if len({str(found.get(name)) for found in fields}) > 1]


def _ends(runs: list[RunData]) -> list[str]:
    """As many parts of the end of each path as make all of them different; numbered if the same run is given twice."""
    paths = [Path(os.path.abspath(run.folder)) for run in runs]
    for num in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = ["/".join(path.parts[-num:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({number})" for number, path in enumerate(paths, 1)]
