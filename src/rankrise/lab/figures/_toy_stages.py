"""The loss and what is learned over time, in a head with diagonal weights and in a full head: figure 2 of [v1]."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _toy_paths as toy
from rankrise.lab.figures._descriptions import describe
from rankrise.lab.figures._runs import Runs
from rankrise.view import CIRCUITS, Axis, FigureData, Panel, Trace, numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rankrise.lab.figures._toy_paths import Trajectory

ID = "toy_stages"
_MOST_LABELS = 6


def build(runs: Runs, *, log10_alpha: float | None = None) -> FigureData:
    """A row of panels for the head with diagonal weights, and below it a row for the head with full matrices.

    Args:
        runs: Folders by experiment: the family `toy-flow`, and `toy-matrix-flow` of the same task and seed.
        log10_alpha: Which diagonal flow to draw. By default it is the flow of the smallest α that is at least 1e-8,
            because the transitions of that flow still have a visible width.

    Raises:
        ValueError: Runs are missing.
    """
    flows = toy.read_flows(runs, figure=ID)
    flow = _choose(flows, log10_alpha)
    matrix = toy.read_matrix_flow(runs, flow.run, figure=ID)
    panels = [
        _loss("diagonal weights: loss", flow),
        *(_products(flow, circuit) for circuit in CIRCUITS),
        _loss("full matrices: loss", matrix),
        *(_spectra(matrix, circuit) for circuit in CIRCUITS),
    ]
    return FigureData(
        id=ID,
        title="An attention head learns one thing at a time",
        text=(
            "Gradient flow from small weights. Products of diagonal weights, from "
            f"{toy.alpha(flow.log10_alpha)}, become non-zero one by one, and the loss falls at each. In a head with "
            f"full matrices, from {toy.alpha(matrix.log10_alpha)}, singular values of both products do the same."
        ),
        run=describe([flow.run]).words,
        panels=tuple(panels),
        rows=2,
        cols=3,
        sources=(flow.run.source, matrix.run.source),
    )


def _choose(flows: "list[Trajectory]", log10_alpha: float | None) -> "Trajectory":
    if log10_alpha is None:
        return next((flow for flow in reversed(flows) if flow.log10_alpha >= -8), flows[0])
    for flow in flows:
        if flow.log10_alpha == log10_alpha:
            return flow
    known = ", ".join(f"{flow.log10_alpha:g}" for flow in flows)
    raise ValueError(f"`log10_alpha` must be of a flow that was run; got {log10_alpha:g}. There are: {known}.")


def _x(path: "Trajectory") -> Axis:
    return Axis(toy.TIME, low=0, high=float(path.times[-1]))


def _loss(title: str, path: "Trajectory") -> Panel:
    kept = toy.thin(path.times, path.losses)
    trace = Trace(numbers(path.times[kept]), numbers(path.losses[kept]), group="loss")
    return Panel(title, _x(path), Axis("loss", low=0), (trace,))


def _products(flow: "Trajectory", circuit: str) -> Panel:
    values = flow.products[circuit]
    ends = np.abs(values[-1])
    largest = [i for i in np.argsort(-ends)[:_MOST_LABELS] if ends[i] > 0.02 * ends.max()]  # the rest lie on zero
    traces = [
        _curve(flow.times, values[:, i], circuit, toy.coordinate(circuit, i) if i in largest else "")
        for i in range(values.shape[1])
    ]
    return Panel(f"products  {CIRCUITS[circuit].diagonal}", _x(flow), Axis("product"), tuple(traces))


def _spectra(path: "Trajectory", circuit: str) -> Panel:
    values = path.products[circuit]
    traces = [_curve(path.times, values[:, i], circuit, "") for i in range(values.shape[1])]
    return Panel(
        f"singular values of  {CIRCUITS[circuit].product}", _x(path), Axis("singular value", low=0), tuple(traces)
    )


def _curve(times: "NDArray[np.float64]", values: "NDArray[np.float64]", circuit: str, label: str) -> Trace:
    kept = toy.thin(times, values)
    return Trace(numbers(times[kept]), numbers(values[kept]), label, group=circuit, at_end=bool(label))
