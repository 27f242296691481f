"""A head with full matrices: its singular values over time, and the staircase that Algorithm 1 predicts for each α."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _toy_paths as toy
from rankrise.lab.figures._descriptions import describe
from rankrise.runs import RunData
from rankrise.view import CIRCUITS, Axis, FigureData, Mark, Panel, Trace, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankrise.lab.figures._runs import Runs
    from rankrise.lab.figures._toy_paths import Trajectory

ID = "matrix_stages"
_STAGES = "toy-full-stages"
_FLOWS = "toy-full-flow"
_ADAM = "toy-full-adam"
_OPTIMISERS = {"toy-full-sgd": "SGD", _ADAM: "Adam"}
_BEYOND = 1.25  # the time axis ends at this multiple of the time of the last stage
_PREDICTED = "predicted"


def build(runs: "Runs") -> FigureData:
    """A row for each α, and one for each optimiser that was run; columns are the loss and both products.

    Args:
        runs: Folders by experiment: the family `toy-full-flow`, `toy-full-stages`, and optimisers if there are any.

    Raises:
        ValueError: Runs are missing, or are of several tasks.
    """
    flows = [
        toy.read_path(run, "spectrum")
        for run in toy.read_family(runs, _FLOWS, wanted=f"{_FLOWS}-1e-8 {_STAGES}", figure=ID)
    ]
    stages = toy.read_path(toy.find_like(runs, _STAGES, flows[0].run, ID), "spectrum")
    end = min(float(flows[0].times[-1]), _BEYOND * float(stages.times[-1]))
    marks = tuple(Mark(float(t)) for t in stages.times[1:])
    panels, errors = [], []
    for flow in flows:
        times = _predicted(stages, flow.log10_alpha)
        errors.append(float(np.abs(times - stages.times[1:]).mean()))
        panels += _row(toy.alpha(flow.log10_alpha), flow, Axis(toy.TIME, low=0, high=end), marks, stages, times)
    others = [(name, RunData(Path(folder))) for name in _OPTIMISERS for folder in runs.get(name, ())]
    others = [(name, run) for name, run in others if toy.is_like(run, flows[0].run)]
    for name, run in others:
        path = toy.read_path(run, "spectrum")
        follows = name != _ADAM  # Adam's steps do not follow the gradient, so that its runs have no rescaled time
        x = Axis("η · step / log(1/α)", low=0, high=min(end, float(path.times[-1])) if follows else None)
        panels += _row(f"{_OPTIMISERS[name]}, {toy.alpha(path.log10_alpha)}", path, x, marks if follows else ())
    return FigureData(
        id=ID,
        title="A head with full matrices learns one direction at a time, at predicted times",
        text=(
            "Gradient flow of an attention head with full matrices: the loss and all singular values, against the "
            "staircase that Algorithm 1 for matrices predicts for this very start and α (green), without a gradient of "
            "the run; a direction counts from the value 10⁻³ on. Vertical lines: the stage times of the limit α → 0, "
            f"from which the predicted times are {errors[0]:.2g} away on average at the largest α and "
            f"{errors[-1]:.2g} at the smallest." + (" Below: plain optimisers from the same start." if others else "")
        ),
        run=describe([flows[0].run]).words,
        panels=tuple(panels),
        rows=len(flows) + len(others),
        cols=3,
        sources=(*(flow.run.source for flow in flows), stages.run.source, *(run.source for _, run in others)),
    )


def _predicted(stages: "Trajectory", log10_alpha: float) -> "NDArray[np.float64]":
    """Return the predicted times of the stages, none below that of the stage before, so that they make a staircase."""
    place = list(stages.run.spec["log10_alphas"]).index(log10_alpha)
    rows = stages.run.rows("predicted_time", "")
    mine = rows["head"].to_numpy() == place
    times = np.full(len(stages.times) - 1, np.inf)
    times[rows["index"].to_numpy()[mine]] = rows["value"].to_numpy()[mine]
    return np.maximum.accumulate(times)


def _row(
    name: str,
    path: "Trajectory",
    x: Axis,
    marks: tuple[Mark, ...],
    stages: "Trajectory | None" = None,
    times: "NDArray[np.float64] | None" = None,
) -> list[Panel]:
    """The loss, and the singular values of both products; with the stages of the limit at their predicted times."""
    panels = []
    for group in ("loss", *CIRCUITS):
        traces = []
        for column in _columns(path, group):
            kept = toy.thin(path.times, column)
            traces.append(Trace(numbers(path.times[kept]), numbers(column[kept]), group=group))
        if stages is not None and times is not None:
            at = np.minimum([0.0, *times, path.times[-1]], path.times[-1])
            for n, column in enumerate(_columns(stages, group)):
                label = _PREDICTED if group == "loss" and n == 0 else ""
                steps = numbers([*column, column[-1]])
                traces.append(Trace(numbers(at), steps, label=label, group=_PREDICTED, style="steps"))
        what = "loss" if group == "loss" else CIRCUITS[group].product
        y = Axis("loss" if group == "loss" else "singular value", low=0)
        panels.append(Panel(f"{name}: {what}", x, y, tuple(traces), marks))
    return panels


def _columns(path: "Trajectory", group: str) -> "NDArray[np.float64]":
    """The loss alone, or every singular value of a product, (k, T)."""
    return path.losses[None] if group == "loss" else path.products[group].T
