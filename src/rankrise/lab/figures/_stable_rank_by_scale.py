"""Final stable rank of the change by initial scale, layers 1, 3, 5 and the last: [v1] 4, [v2] 7."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _networks as net
from rankrise.lab.figures import _words
from rankrise.lab.figures._data import Axis, FigureData, Panel, Trace, is_finite, numbers
from rankrise.lab.figures._runs import Runs, read_alike
from rankrise.lab.figures._scales import by_scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rankrise.lab.experiments._run_data import RunData

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
    ends = {circuit: _ends(found, circuit) for circuit in net.CIRCUITS}
    panels = tuple(_panel(ends[circuit], net.CIRCUITS[circuit], start[circuit]) for circuit in net.CIRCUITS)
    lower = " and ".join(_lower(ends[circuit], net.SHORT[circuit]) for circuit in net.CIRCUITS)
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Stable rank by initial scale: {_words.network_name(some[0], of_family=True)}",
        caption=(
            "Stable rank of the change at the end of training, the paper's layers 1, 3 and 5, and the last. Of all "
            f"its layers it is lower at the smallest initial scale than at the largest in {lower}. "
            f"{_exceptions(ends)}Dotted: the initial product, whose stable rank does not depend on the scale. "
            f"Mean over heads {_bars(found)}. {_words.describe(some, repeats=_repeats(found), of_family=True)}"
        ),
        panels=_with_one_axis(panels),
        rows=1,
        cols=2,
        sources=tuple(run.source for members in found.values() for run in members),
    )


def _ends(found: "Mapping[float, Sequence[RunData]]", circuit: str) -> "dict[float, list[NDArray[np.float64]]]":
    """Last stable ranks by factor, from the smallest: (layers, heads) for each run."""
    parts = iter(read_alike([run for f in sorted(found) for run in found[f]], "stable_rank", circuit))
    return {f: [next(parts).values[-1, :, :, 0] for _ in found[f]] for f in sorted(found)}


def _lower(ends: "Mapping[float, Sequence[NDArray[np.float64]]]", name: str) -> str:
    """In how many layers the smallest scale ends below the largest, which are not among them, and the least ratio."""
    means = _means(ends)
    ratio = means[-1] / means[0]
    is_lower = ratio > 1
    but = f"; not in {net.ranges(np.flatnonzero(~is_lower))}" if is_lower.any() and not is_lower.all() else ""
    least = f"; by the least factor, {ratio.min():.2f}, in layer {ratio.argmin() + 1}"
    return f"{is_lower.sum()} of {len(ratio)} ({name}{but}{least})"


def _exceptions(ends: "Mapping[str, Mapping[float, Sequence[NDArray[np.float64]]]]") -> str:
    """Layers where a smaller scale does not end below its larger neighbour, in a sentence; empty where there are none.

    Args:
        ends: Last stable ranks by circuit and factor.
    """
    parts = []
    for circuit, of in ends.items():
        rises = np.flatnonzero((np.diff(_means(of), axis=0) <= 0).any(axis=0))  # from the smallest factor up
        parts += [f"{net.SHORT[circuit]} layer{'s' * (len(rises) > 1)} {net.ranges(rises)}"] if len(rises) else []
    return (
        f"Not lower at each smaller scale: {' and '.join(parts)}. "
        if parts and len(next(iter(ends.values()))) > 2
        else ""
    )


def _means(ends: "Mapping[float, Sequence[NDArray[np.float64]]]") -> "NDArray[np.float64]":
    """Mean over heads and runs, (factors, layers), from the smallest factor."""
    return np.stack([np.mean([run.mean(axis=1) for run in runs], axis=0) for runs in ends.values()])


def _has_seeds(found: "Mapping[float, Sequence[RunData]]") -> bool:
    return any(len(runs) > 1 for runs in found.values())


def _bars(found: "Mapping[float, Sequence[RunData]]") -> str:
    """What a bar is, in words: over seeds as soon as one scale has several, and then none where there is one seed."""
    words = net.band_words(max(found.values(), key=len))
    alone = [f"{factor:g}" for factor, runs in found.items() if len(runs) == 1]
    return f"{words}; no bar at {', '.join(alone)}, of one seed" if alone and _has_seeds(found) else words


def _repeats(found: "Mapping[float, Sequence[RunData]]") -> str:
    """How many seeds there are, by scale where the scales differ."""
    if len({len(runs) for runs in found.values()}) == 1:
        return ""
    return ", ".join(f"{_words.seeds(runs)} at {factor:g}" for factor, runs in found.items())


def _point(values: "Sequence[NDArray[np.float64]]", is_over_seeds: bool) -> tuple[float, float, float]:
    """Mean over heads and runs, and the ends of its bar; NaN where bars are over seeds and there is one."""
    (mean,), (low,), (high,) = net.mean_and_band([run[None] for run in values])
    return (mean, np.nan, np.nan) if is_over_seeds and len(values) == 1 else (mean, low, high)


def _panel(ends: "Mapping[float, Sequence[NDArray[np.float64]]]", title: str, start: float | None) -> Panel:
    factors = numbers(ends)
    num_layers = len(ends[factors[0]][0])
    is_over_seeds = any(len(runs) > 1 for runs in ends.values())
    traces = []
    for layer in sorted({i for i in LAYERS if i < num_layers} | {num_layers - 1}):
        points = [_point([run[layer] for run in runs], is_over_seeds) for runs in ends.values()]
        mean, low, high = (numbers(column) for column in zip(*points, strict=True))
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
    return Panel(title, x, Axis("stable rank", log=True, ticks=_TICKS), tuple(traces))


def _with_one_axis(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Both circuits on the same vertical axis, from just below 1."""
    values = [value for panel in panels for trace in panel.traces for value in (*trace.y, *(trace.high or ()))]
    top = max(value for value in values if is_finite(value))
    return tuple(replace(panel, y=replace(panel.y, low=0.93, high=1.15 * top)) for panel in panels)
