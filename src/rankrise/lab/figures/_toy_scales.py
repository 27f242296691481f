"""Loss and products against rescaled time, a line for each α, and Algorithm 1 as the limit ([v1] 6-8, [v2] 2)."""

import functools
from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _toy_paths as toy
from rankrise.lab.figures._descriptions import describe
from rankrise.view import Axis, Control, FigureData, Mark, Panel, Trace, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rankrise.lab.figures._runs import Runs
    from rankrise.lab.figures._toy_paths import Trajectory

ID = "toy_scales"
LIMIT = "limit"
_MOST_MARKS = 25


def build(runs: "Runs", *, num_coordinates: int = 6) -> FigureData:
    """A panel of the loss, and a panel for each of the coordinates that Algorithm 1 lets join first.

    Args:
        runs: Folders by experiment: the family `toy-flow`, and `toy-stages`.
        num_coordinates: How many coordinates get a panel.

    Raises:
        ValueError: Runs are missing, or are of several tasks.
    """
    flows = toy.read_flows(runs, figure=ID)
    stages = toy.read_stages(runs, flows[0].run, figure=ID)
    t_end = min(float(flow.times[-1]) for flow in flows)
    shown = toy.joined(stages)[:num_coordinates]
    times = stages.times[(stages.times > 0) & (stages.times <= t_end)]
    marks = tuple(Mark(float(t)) for t in times) if len(times) <= _MOST_MARKS else ()
    x = Axis(
        toy.TIME, low=0.8 * float(times[0]) if len(times) else 0.0, high=t_end
    )  # earlier than this, all curves are on the first plateau
    losses = _traces(flows, stages, t_end, lambda path: path.losses)
    panels = [Panel("loss", x, Axis("loss", low=0), losses, marks, span=3)]
    for stage, (circuit, i) in enumerate(shown, start=1):
        name = toy.coordinate(circuit, i)
        mark = tuple(Mark(float(t)) for t in _times_of(stages, circuit, i) if t <= t_end)
        traces = _traces(flows, stages, t_end, functools.partial(_product, circuit=circuit, index=i))
        panels.append(Panel(f"{stage}.  {name}", x, Axis("product"), traces, mark))
    return FigureData(
        id=ID,
        title="Toward small initial weights, training becomes a staircase",
        text=(
            "Gradient flow of an attention head with diagonal weights from initial scale α, in time divided by "
            "log(1/α), and the staircase that Algorithm 1 computes without training (orange, dashed). The mean "
            f"distance of the loss from it is {_distance(losses[0], losses[-1]):.2g} at the largest α and "
            f"{_distance(losses[-2], losses[-1]):.2g} at the smallest. Under the loss: the first {len(shown)} "
            "coordinates to become active, a_i of the key-query product and b_i of the value-output product. The "
            "plateau that all share at the start is cut."
        ),
        run=describe([flows[0].run]).words,
        control=Control("initial scale α"),
        panels=tuple(panels),
        rows=1 + -(-len(shown) // 3),
        cols=3,
        sources=(*(flow.run.source for flow in flows), stages.run.source),
    )


def _traces(
    flows: "Sequence[Trajectory]",
    stages: "Trajectory",
    t_end: float,
    read: "Callable[[Trajectory], NDArray[np.float64]]",
) -> tuple[Trace, ...]:
    """A curve for each flow, and the staircase of Algorithm 1 on top of them."""
    traces = []
    for n, flow in enumerate(flows):
        inside = flow.times <= t_end
        times, values = flow.times[inside], read(flow)[inside]
        kept = toy.thin(times, values)
        name = toy.alpha(flow.log10_alpha)
        level = n / (len(flows) - 1) if len(flows) > 1 else 1.0
        traces.append(Trace(numbers(times[kept]), numbers(values[kept]), label=name, group=name, level=level))
    inside = stages.times <= t_end
    times, values = stages.times[inside], read(stages)[inside]
    x, y = (*numbers(times), t_end), (*numbers(values), float(values[-1]))
    return (*traces, Trace(x, y, "Algorithm 1, α → 0", group=LIMIT, style="steps"))


def _distance(flow: Trace, stairs: Trace) -> float:
    """The mean over time of |flow − stairs|."""
    grid = np.linspace(0, stairs.x[-1], 4001)
    limit = np.asarray(stairs.y)[np.searchsorted(stairs.x, grid, side="right") - 1]
    return float(np.abs(np.interp(grid, flow.x, flow.y) - limit).mean())


def _product(path: "Trajectory", circuit: str, index: int) -> "NDArray[np.float64]":
    return path.products[circuit][:, index]


def _times_of(stages: "Trajectory", circuit: str, index: int) -> "NDArray[np.float64]":
    """The times at which a coordinate joins."""
    place = index + (stages.products["kq"].shape[1] if circuit == "vo" else 0)
    steps, coordinates = stages.run.scalar_path("joined")
    all_steps, times = stages.run.scalar_path("time")
    return times[np.isin(all_steps, steps[coordinates == place])]
