"""Final stable rank of the change by initial scale, layers 1, 3, 5: [v1] 4, [v2] 7."""

from dataclasses import replace
from typing import TYPE_CHECKING

from rankrise.figures import _networks as net
from rankrise.figures._data import Axis, FigureData, Panel, Trace, numbers
from rankrise.figures._runs import RunData, Runs
from rankrise.figures._scales import by_scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ID = "stable_rank_by_scale"
LAYERS = (0, 2, 4)  # the paper's 1, 3, 5
_TICKS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def build(runs: Runs, *, experiment: str) -> FigureData:
    """Stable rank at the end of training against the factor of the initial weights, for both circuits.

    Args:
        runs: Folders by experiment; those named `<experiment>-scale-*` are used.
        experiment: Which network.

    Raises:
        ValueError: Fewer than two scales have runs.
    """
    found = by_scale(runs, experiment, figure=ID)
    some = next(iter(found.values()))
    start = {circuit: net.initial_stable_rank(some, circuit) for circuit in net.CIRCUITS}
    panels = tuple(_panel(found, circuit, start[circuit]) for circuit in net.CIRCUITS)
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Stable rank by initial scale: {net.network_name(some[0])}",
        caption=(
            "Stable rank of the change at the end of training, layers 1, 3 and 5 where the network has them. It is "
            f"lower at the smallest initial scale than at the largest in {net.count_rising(panels)} of them. Dotted: "
            "the initial product, whose stable rank does not depend on the scale. Mean over heads "
            f"{net.band_words(some)}. {net.describe(some)}"
        ),
        panels=_with_one_axis(panels),
        rows=1,
        cols=2,
        sources=tuple(run.source for members in found.values() for run in members),
    )


def _panel(found: "Mapping[float, Sequence[RunData]]", circuit: str, start: float | None) -> Panel:
    ends = {f: [r.dense("stable_rank", circuit).values[-1, :, :, 0] for r in runs] for f, runs in found.items()}
    factors = numbers(sorted(ends))
    num_layers = next(iter(ends.values()))[0].shape[0]
    traces = []
    for layer in (i for i in LAYERS if i < num_layers):
        points = [net.mean_and_band([run[layer][None] for run in ends[f]]) for f in factors]
        mean, low, high = (tuple(p[k][0] for p in points) for k in range(3))
        name = net.layer_name(layer)
        traces.append(
            Trace(
                factors,
                mean,
                label=name,
                group=name,
                style="points",
                level=net.depth(layer, num_layers),
                low=low,
                high=high,
            )
        )
    if start is not None:
        ends_of_line = (factors[0], factors[-1])
        traces.append(Trace(ends_of_line, (start, start), "initial product", group="init", style="dotted"))
    x = Axis("factor of the initial weights", log=True, ticks=factors)
    return Panel(net.CIRCUITS[circuit], x, Axis("stable rank", log=True, ticks=_TICKS), tuple(traces))


def _with_one_axis(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Both circuits on the same vertical axis, from just below 1."""
    top = max(value for panel in panels for trace in panel.traces for value in (trace.high or trace.y))
    return tuple(replace(panel, y=replace(panel.y, low=0.93, high=1.15 * top)) for panel in panels)
