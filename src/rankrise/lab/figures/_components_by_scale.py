"""Top singular values of both changes over training, one head of the second layer, by initial scale: [v1] 3, [v2] 6."""

from typing import TYPE_CHECKING

from rankrise.lab.figures import _networks as net
from rankrise.lab.figures import _words
from rankrise.lab.figures._data import Axis, FigureData, Panel, Trace, numbers
from rankrise.lab.figures._scales import by_scale

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rankrise.lab.experiments._run_data import RunData
    from rankrise.lab.figures._runs import Runs

ID = "components_by_scale"
_NUM_LABELS = 3


def build(
    runs: "Runs", *, experiment: str, layer: int = 2, head: int = 1, num_components: int = 8, num_scales: int = 3
) -> FigureData:
    """σ_1 … σ_k of Δ of one head against epochs, a column for each scale.

    Args:
        runs: Folders by experiment; those named `<experiment>-scale-*` are used, the first seed of each.
        experiment: Which network.
        layer: From 1.
        head: From 1.
        num_components: How many singular values.
        num_scales: How many scales at most; from the largest to the smallest.

    Raises:
        ValueError: Fewer than two scales have runs, or there is no such layer or head.
    """
    found = by_scale(runs, experiment, figure=ID)
    factors = _spread(list(found), num_scales)
    chosen = {factor: found[factor][0] for factor in factors}
    panels = [
        _panel(run, circuit, factor, layer, head, num_components)
        for circuit in net.CIRCUITS
        for factor, run in chosen.items()
    ]
    some = next(iter(chosen.values()))
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Components of the change, head {head} of layer {layer}: {_words.network_name(some, of_family=True)}",
        caption=(
            f"The {num_components} largest singular values of the change over training, from the "
            "largest initial weights to the smallest. Look how far σ_1 leads, and when the others follow. At the end "
            f"σ_2 / σ_1 of the key-query change is {_ratios(chosen, panels[: len(chosen)])}. Each panel has its own "
            f"vertical axis. {_words.describe([some], of_family=True)}"
        ),
        panels=tuple(panels),
        rows=2,
        cols=len(chosen),
        sources=tuple(run.source for run in chosen.values()),
    )


def _ratios(factors: "Iterable[float]", panels: "Iterable[Panel]") -> str:
    """σ_2 / σ_1 at the end of the panel of each factor, as text."""
    ends = [
        (factor, *(trace.y[-1] for trace in panel.traces[:2])) for factor, panel in zip(factors, panels, strict=True)
    ]
    return ", ".join(f"{f'{b / a:.2f}' if a else 'undefined'} at scale {factor:g}" for factor, a, b in ends)


def _spread(factors: list[float], num: int) -> list[float]:
    """At most `num` of them, first and last kept."""
    if len(factors) <= num:
        return factors
    return [factors[round(i * (len(factors) - 1) / (num - 1))] for i in range(num)]


def _panel(run: "RunData", circuit: str, factor: float, layer: int, head: int, num: int) -> Panel:
    steps, values = run.path("spectrum", circuit, gaps="tail")
    if not (1 <= layer <= values.shape[1] and 1 <= head <= values.shape[2]):
        raise ValueError(
            f"`layer` and `head` must be at most {values.shape[1]} and {values.shape[2]}, from 1; got {layer}, {head}."
        )
    times = net.epochs(run, steps)
    top = values[:, layer - 1, head - 1, :num]
    traces = tuple(
        Trace(
            (0.0, *numbers(times)),
            (0.0, *numbers(top[:, i])),
            f"σ_{i + 1}" if i < _NUM_LABELS else "",
            group=f"σ_{i + 1}",
            level=net.depth(num - 1 - i, num),
            at_end=i < _NUM_LABELS,
        )
        for i in range(top.shape[1])
    )
    title = f"scale {factor:g}, {net.CIRCUITS[circuit].split()[0]}"
    return Panel(
        title, Axis(net.time_label(run), low=0, high=float(times[-1])), Axis("σ_i of the change", low=0), traces
    )
