"""A network at several initial scales: components of the change ([v1] 3, [v2] 6), final ranks ([v1] 4, [v2] 7)."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rankrise.runs import read_alike
from rankrise.view import _networks as net
from rankrise.view._figure import Axis, FigureData, Panel, Trace, is_finite, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rankrise.runs import RunData

_NUM_LABELS = 3
_LAYERS = (0, 2, 4)  # the paper's 1, 3, 5
_TICKS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def components_by_scale(
    found: "Mapping[float, Sequence[RunData]]",
    *,
    name: str = "",
    network: str = "",
    about: str = "",
    layer: int = 1,
    head: int = 0,
    num_components: int = 8,
    num_scales: int = 3,
) -> FigureData:
    """Singular values σ_1 … σ_k of the change Δ of one head against epochs, with a column for each scale.

    Args:
        found: Runs by the factor of their initial weights; the first of each factor is drawn.
        name: The name of the experiment; a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.
        layer: The layer, counted from 0.
        head: The head, counted from 0.
        num_components: How many singular values to draw.
        num_scales: How many scales to draw at most, from the largest scale to the smallest.

    Raises:
        ValueError: Fewer than two factors have runs, or there is no such layer or head.
    """
    check_factors(found, "components_by_scale")
    chosen = {factor: found[factor][0] for factor in _spread(sorted(found, reverse=True), num_scales)}
    panels = [
        _components(run, circuit, factor, layer, head, num_components)
        for circuit in net.CIRCUITS
        for factor, run in chosen.items()
    ]
    return FigureData(
        id="components_by_scale",
        experiment=name,
        title=net.titled(f"Components of the change, head {head} of {net.layer_name(layer)}", network),
        text=(
            f"The {num_components} largest singular values of the change over training, from the "
            "largest initial weights to the smallest. Look how far σ_1 leads, and when the others follow. At the end "
            f"σ_2 / σ_1 of the key-query change is {_ratios(chosen, panels[: len(chosen)])}. Each panel has its own "
            "vertical axis."
        ),
        run=about,
        panels=tuple(panels),
        rows=2,
        cols=len(chosen),
        sources=tuple(run.source for run in chosen.values()),
    )


def check_factors(found: "Mapping[float, Sequence[RunData]]", figure: str) -> None:
    """Refuse a figure of fewer than two initial scales."""
    if len(found) < 2:
        factors = ", ".join(f"{factor:g}" for factor in found) or "none"
        raise ValueError(
            f"`{figure}` must have runs at two initial scales or more; got scale {factors}. Train once more with the "
            "initial weights multiplied by another factor, and compare the runs."
        )


def _ratios(factors: "Iterable[float]", panels: "Iterable[Panel]") -> str:
    """σ_2 / σ_1 at the end of the panel of each factor, as text."""
    ends = [
        (factor, *(trace.y[-1] for trace in panel.traces[:2])) for factor, panel in zip(factors, panels, strict=True)
    ]
    return ", ".join(f"{f'{b / a:.2f}' if a else 'undefined'} at scale {factor:g}" for factor, a, b in ends)


def _spread(factors: list[float], num: int) -> list[float]:
    """At most `num` of the factors, evenly spread; the first and the last one are kept."""
    if len(factors) <= num:
        return factors
    return [factors[round(i * (len(factors) - 1) / (num - 1))] for i in range(num)]


def _components(run: "RunData", circuit: str, factor: float, layer: int, head: int, num: int) -> Panel:
    steps, values = run.path("spectrum", circuit, gaps="tail")
    if not (0 <= layer < values.shape[1] and 0 <= head < values.shape[2]):
        raise ValueError(
            f"`layer` and `head` must be below {values.shape[1]} and {values.shape[2]}, from 0; got {layer}, {head}."
        )
    times = net.epochs(run, steps)
    top = values[:, layer, head, :num]
    traces = tuple(
        Trace(
            (0.0, *numbers(times)),
            (0.0, *numbers(top[:, i])),
            f"σ_{i + 1}" if i < _NUM_LABELS else "",
            group=f"σ_{i + 1}",
            level=net.depth_level(num - 1 - i, num),
            at_end=i < _NUM_LABELS,
        )
        for i in range(top.shape[1])
    )
    title = f"scale {factor:g}, {net.CIRCUITS[circuit].short}"
    return Panel(
        title, Axis(net.time_label(run), low=0, high=float(times[-1])), Axis("σ_i of the change", low=0), traces
    )


def stable_rank_by_scale(
    found: "Mapping[float, Sequence[RunData]]", *, name: str = "", network: str = "", about: str = ""
) -> FigureData:
    """Stable rank at the end of training against the factor of the initial weights, for both circuits.

    Args:
        found: Runs by the factor of their initial weights; several of one factor differ in their seed only.
        name: The name of the experiment; a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.

    Raises:
        ValueError: Fewer than two factors have runs.
    """
    check_factors(found, "stable_rank_by_scale")
    found = dict(sorted(found.items(), reverse=True))
    some = next(iter(found.values()))
    start = {circuit: net.initial_stable_rank(some, circuit) for circuit in net.CIRCUITS}
    ends = {circuit: _ends(found, circuit) for circuit in net.CIRCUITS}
    panels = tuple(_ranks(ends[circuit], net.CIRCUITS[circuit].change, start[circuit]) for circuit in net.CIRCUITS)
    lower = " and ".join(_lower(ends[circuit], net.CIRCUITS[circuit].short) for circuit in net.CIRCUITS)
    return FigureData(
        id="stable_rank_by_scale",
        experiment=name,
        title=net.titled("Stable rank by initial scale", network),
        text=(
            "Stable rank of the change at the end of training, of layers 0, 2 and 4 (the paper counts them as 1, 3 and "
            "5) and of the last. Of all layers it is lower at the smallest initial scale than at the largest in "
            f"{lower}. {_exceptions(ends)}Dotted: the initial product, whose stable rank does not depend on the scale. "
            f"Mean over heads {_bars(found)}."
        ),
        run=about,
        panels=_with_one_axis(panels),
        rows=1,
        cols=2,
        sources=tuple(run.source for members in found.values() for run in members),
    )


def _ends(found: "Mapping[float, Sequence[RunData]]", circuit: str) -> "dict[float, list[NDArray[np.float64]]]":
    """The last stable ranks by factor, from the smallest factor: (layers, heads) for each run."""
    parts = iter(read_alike([run for f in sorted(found) for run in found[f]], "stable_rank", circuit))
    return {f: [next(parts).values[-1, :, :, 0] for _ in found[f]] for f in sorted(found)}


def _lower(ends: "Mapping[float, Sequence[NDArray[np.float64]]]", name: str) -> str:
    """Say in how many layers the smallest scale ends below the largest, in which not, and the least ratio."""
    means = _means(ends)
    ratio = means[-1] / means[0]
    is_lower = ratio > 1
    but = f"; not in {net.layer_ranges(np.flatnonzero(~is_lower))}" if is_lower.any() and not is_lower.all() else ""
    least = f"; by the least factor, {ratio.min():.2f}, in layer {ratio.argmin()}"
    return f"{is_lower.sum()} of {len(ratio)} ({name}{but}{least})"


def _exceptions(ends: "Mapping[str, Mapping[float, Sequence[NDArray[np.float64]]]]") -> str:
    """Layers where a smaller scale does not end below its larger neighbour, in a sentence; empty where there are none.

    Args:
        ends: Last stable ranks by circuit and factor.
    """
    parts = []
    for circuit, of in ends.items():
        rises = np.flatnonzero((np.diff(_means(of), axis=0) <= 0).any(axis=0))  # from the smallest factor up
        parts += (
            [f"{net.CIRCUITS[circuit].short} layer{'s' * (len(rises) > 1)} {net.layer_ranges(rises)}"]
            if len(rises)
            else []
        )
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
    """What a bar shows, in words: the spread over seeds if some scale has several seeds, else the spread over heads."""
    words = net.band_words(max(found.values(), key=len))
    alone = [f"{factor:g}" for factor, runs in found.items() if len(runs) == 1]
    return f"{words}; no bar at {', '.join(alone)}, of one seed" if alone and _has_seeds(found) else words


def _point(values: "Sequence[NDArray[np.float64]]", is_over_seeds: bool) -> tuple[float, float, float]:
    """The mean over heads and runs, and the ends of its bar; NaN ends if bars are over seeds and there is one seed."""
    (mean,), (low,), (high,) = net.mean_and_band([run[None] for run in values])
    return (mean, np.nan, np.nan) if is_over_seeds and len(values) == 1 else (mean, low, high)


def _ranks(ends: "Mapping[float, Sequence[NDArray[np.float64]]]", title: str, start: float | None) -> Panel:
    factors = numbers(ends)
    num_layers = len(ends[factors[0]][0])
    is_over_seeds = any(len(runs) > 1 for runs in ends.values())
    traces = []
    for layer in sorted({i for i in _LAYERS if i < num_layers} | {num_layers - 1}):
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
                level=net.depth_level(layer, num_layers),
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
    """Give both circuits the same vertical axis, which begins just below 1."""
    values = [value for panel in panels for trace in panel.traces for value in (*trace.y, *(trace.high or ()))]
    top = max(value for value in values if is_finite(value))
    return tuple(replace(panel, y=replace(panel.y, low=0.93, high=1.15 * top)) for panel in panels)
