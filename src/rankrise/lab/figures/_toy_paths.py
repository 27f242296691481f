"""What the figures of the toy share: flows by α, Algorithm 1, names of coordinates, and curves with fewer points."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.claims import along, loss_curve
from rankrise.lab.figures._runs import Runs, members_with_runs
from rankrise.runs import RunData
from rankrise.view import CIRCUITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FLOW, STAGES, MATRIX = "toy-flow", "toy-stages", "toy-matrix-flow"
_FLOWS = "toy-flow-1e-2 toy-flow-1e-8 toy-flow-1e-32"  # members of the family that a message tells to run
TIME = "rescaled time  t / log(1/α)"
_LETTERS = {"kq": "a", "vo": "b"}
_SUPERSCRIPTS = str.maketrans("-0123456789.", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹·")


@dataclass(frozen=True)
class Trajectory:
    """The path of a flow or of Algorithm 1: times (T,), losses (T,), and products by circuit, each (T, d)."""

    run: RunData
    times: "NDArray[np.float64]"
    losses: "NDArray[np.float64]"
    products: "dict[str, NDArray[np.float64]]"

    @property
    def log10_alpha(self) -> float:
        """The logarithm of α to base 10; Algorithm 1 has no α."""
        return float(self.run.spec["log10_alpha"])


def read_path(run: RunData, quantity: str = "product") -> Trajectory:
    """A theory run as arrays; `quantity` names the quantity of both circuits that is read."""
    halves = np.split(along(run, quantity), 2, axis=1)
    return Trajectory(run, *loss_curve(run), dict(zip(CIRCUITS, halves, strict=True)))


def read_flows(runs: Runs, *, figure: str) -> list[Trajectory]:
    """Flows of one task and seed, from the largest α to the smallest.

    Raises:
        ValueError: There are no flows, or they are of several tasks.
    """
    return [read_path(run) for run in read_family(runs, FLOW, figure=figure, wanted=_FLOWS)]


def read_family(runs: Runs, family: str, *, figure: str, wanted: str) -> list[RunData]:
    """Return the runs of a family of flows of one task and seed, from the largest α to the smallest.

    Raises:
        ValueError: There are no such runs, or they are of several tasks.
    """
    folders = [folder for n in members_with_runs(runs, family, figure=figure, wanted=wanted) for folder in runs[n]]
    return sorted(_of_one_task(folders, figure), key=lambda run: -float(run.spec["log10_alpha"]))


def _of_one_task(folders: "Sequence[Path]", figure: str) -> list[RunData]:
    found = [RunData(Path(folder)) for folder in folders]
    first = min(run.seed for run in found)
    found = [run for run in found if run.seed == first]
    if any(run.spec.get("task") != found[0].spec.get("task") for run in found):
        raise ValueError(
            f"Flows in `{figure}` must be of one task; got {', '.join(run.source for run in found)}. "
            "Pass those of one scale."
        )
    return found


def read_matrix_flow(runs: Runs, like: RunData, *, figure: str) -> Trajectory:
    """The flow of full matrices on the task of a diagonal flow.

    Raises:
        ValueError: There is no such run; the message says which experiment to run.
    """
    return read_path(find_like(runs, MATRIX, like, figure), "spectrum")


def read_stages(runs: Runs, like: RunData, *, figure: str) -> Trajectory:
    """Algorithm 1 on the task of a flow.

    Raises:
        ValueError: There is no such run; the message says which experiment to run.
    """
    return read_path(find_like(runs, STAGES, like, figure))


def find_like(runs: Runs, name: str, like: RunData, figure: str) -> RunData:
    """Return the run of an experiment that has the task and the seed of another run.

    Raises:
        ValueError: There is no such run; the message says which experiment to run.
    """
    for folder in runs.get(name, ()):
        run = RunData(Path(folder))
        if is_like(run, like):
            return run
    raise ValueError(f"`{figure}` needs a finished run of {name} on the task of the flows. Run it: rankrise run {name}")


def is_like(run: RunData, like: RunData) -> bool:
    """Whether two runs have the same task and the same seed."""
    return run.seed == like.seed and run.spec.get("task") == like.spec.get("task")


def joined(stages: Trajectory) -> list[tuple[str, int]]:
    """The circuit and index of each coordinate, in the order in which Algorithm 1 lets them join."""
    dim = stages.products["kq"].shape[1]
    order = dict.fromkeys(int(i) for i in stages.run.scalar("joined"))
    return [(tuple(CIRCUITS)[i // dim], i % dim) for i in order]


def coordinate(circuit: str, index: int) -> str:
    """The name of a coordinate: a_1 … a_d of w_K ⊙ w_Q, or b_1 … b_d of w_V ⊙ w_O.

    >>> coordinate("vo", 0)
    'b_1'
    """
    return f"{_LETTERS[circuit]}_{index + 1}"


def alpha(log10_alpha: float) -> str:
    """The value of α in the notation of a reader.

    >>> alpha(-8.0), alpha(-0.5)
    ('α = 10⁻⁸', 'α = 10⁻⁰·⁵')
    """
    return f"α = 10{f'{log10_alpha:g}'.translate(_SUPERSCRIPTS)}"


def thin(x: "NDArray[np.float64]", y: "NDArray[np.float64]", tolerance: float = 1e-3) -> "NDArray[np.intp]":
    """The positions of points that suffice to draw a curve, by the algorithm of Ramer, Douglas and Peucker.

    The other points lie on the lines between these, within the tolerance.

    Args:
        x: Rising numbers.
        y: Finite numbers.
        tolerance: The largest vertical distance that may be lost, as a part of the range of y.

    >>> thin(np.arange(5.0), np.array([0.0, 1.0, 2.0, 2.0, 2.0])).tolist()
    [0, 2, 4]
    """
    allowed = tolerance * max(float(np.ptp(y)), 1e-300) if len(y) else 0.0
    keep = np.zeros(len(x), dtype=bool)
    keep[[0, -1]] = True
    stack = [(0, len(x) - 1)]
    while stack:
        left, right = stack.pop()
        if right - left < 2:
            continue
        inner = slice(left + 1, right)
        chord = np.interp(x[inner], [x[left], x[right]], [y[left], y[right]])
        distance = np.abs(y[inner] - chord)
        worst = int(distance.argmax())
        if distance[worst] > allowed:
            middle = left + 1 + worst
            keep[middle] = True
            stack += [(left, middle), (middle, right)]
    return np.flatnonzero(keep)
