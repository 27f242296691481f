"""Where the kernel regime ends: laziness, the kernel, ranks and test accuracy against the initial scale."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.runs import NotMeasurable, layer_means
from rankrise.view import _networks as net
from rankrise.view._by_scale import check_factors
from rankrise.view._figure import Axis, FigureData, Panel, Trace, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankrise.runs import RunData


def laziness_by_scale(
    found: "Mapping[float, Sequence[RunData]]", *, name: str = "", network: str = "", about: str = ""
) -> FigureData:
    """Error of the linearisation, kernel, stable rank and accuracy at the end, against the factor of the weights.

    Args:
        found: Runs by the factor of their initial weights, of trackers with a `LazinessProbe` and a `KernelProbe`;
            runs of one factor differ in their seed only.
        name: The name of the experiment, which becomes a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.

    Raises:
        NotMeasurable: A run lacks what the probes measure.
        ValueError: Fewer than two factors have runs.
    """
    check_factors(found, "laziness_by_scale")
    found = dict(sorted(found.items()))
    x = Axis("initial scale", log=True, ticks=numbers(found))

    def panel(title: str, y: Axis, reads: "Mapping[str, Callable[[RunData], float]]") -> Panel:
        return Panel(title, x, y, tuple(_trace(found, read, label) for label, read in reads.items()))

    panels = [
        panel(
            "error of the linearisation",
            Axis("relative error", log=True),
            {"": lambda r: _last(r, "linearisation_error", "")},
        ),
        panel(
            "kernel at the end",
            Axis("cosine with the start", low=0, high=1),
            {"": lambda r: _last(r, "kernel_cosine", "ntk")},
        ),
        panel(
            "rank of the kernel",
            Axis("effective rank", low=1),
            {"start": lambda r: _kernel_rank(r, 0), "end": lambda r: _kernel_rank(r, -1)},
        ),
        panel(
            "rank of the change",
            Axis("stable rank", low=1),
            {words.short: _rank_of(circuit) for circuit, words in net.CIRCUITS.items()},
        ),
    ]
    if all(run.has("test_accuracy") for runs in found.values() for run in runs):
        panels.append(
            panel("test images", Axis("accuracy", low=0, high=1), {"": lambda r: _last(r, "test_accuracy", "")})
        )
    seeds = max(len(runs) for runs in found.values())
    return FigureData(
        id="laziness_by_scale",
        experiment=name,
        title=net.titled("Laziness and ranks by initial scale", network),
        text=(
            "At the end of training: the error of the linearisation at the start (1 is no better than a constant), the "
            "cosine of the empirical kernel with that at the start, its effective rank, the stable rank of the change "
            "of both circuits, and test accuracy where it was recorded. "
            + ("Bars span the seeds." if seeds > 1 else "One seed.")
        ),
        run=about,
        panels=tuple(panels),
        rows=2,
        cols=3,
        sources=tuple(run.source for runs in found.values() for run in runs),
    )


def _trace(found: "Mapping[float, Sequence[RunData]]", read: "Callable[[RunData], float]", label: str) -> Trace:
    values = [[read(run) for run in runs] for runs in found.values()]
    mean, low, high = (numbers(f(np.array(of)) for of in values) for f in (np.mean, np.min, np.max))
    return Trace(numbers(found), mean, label, group=label, style="points", low=low, high=high)


def _last(run: "RunData", quantity: str, circuit: str) -> float:
    if not run.has(quantity, circuit):
        raise NotMeasurable(f"{run.source} has no {quantity}. Train with a LazinessProbe and a KernelProbe.")
    return float(run.curve(quantity, circuit=circuit).values.reshape(-1)[-1])


def _kernel_rank(run: "RunData", place: int) -> float:
    _last(run, "kernel_effective_rank", "ntk")
    return float(run.curve("kernel_effective_rank", circuit="ntk").values.reshape(-1)[place])


def _rank_of(circuit: str) -> "Callable[[RunData], float]":
    def read(run: "RunData") -> float:
        return float(np.nanmean(layer_means(run, "stable_rank", circuit)[2][-1]))

    return read
