"""Normalised spectrum of the product at init and of the change at every recorded step: [v1] 1, 11, 13, 15; [v2] 1."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.figures import _networks as net
from rankrise.figures._data import Axis, FigureData, Order, Panel, Trace, numbers
from rankrise.figures._runs import RunData, Runs, read_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ID = "spectrum_over_training"


def build(runs: Runs, *, experiment: str, num_values: int = 32) -> FigureData:
    """`σ_i / σ_1` against i, one curve a step, for three layers of both circuits; mean over heads and seeds.

    Args:
        runs: Folders by experiment.
        experiment: Which network.
        num_values: How many singular values from the largest.

    Raises:
        ValueError: It has no runs, or they differ in more than the seed.
    """
    found = read_experiment(runs, experiment, figure=ID)
    spectra = {circuit: _mean_spectra(found, circuit, num_values) for circuit in net.CIRCUITS}
    initial = {circuit: _mean_initial(found, circuit, num_values) for circuit in net.CIRCUITS}
    steps = found[0].dense("spectrum", "kq").steps
    times = net.epochs(found[0], steps)
    layers = net.spread_layers(spectra["kq"].shape[1])
    panels = [
        _panel(f"{net.layer_name(layer)}, {net.CIRCUITS[c].split()[0]}", times, spectra[c][:, layer], initial[c][layer])
        for c in net.CIRCUITS
        for layer in layers
    ]
    unit = net.time_label(found[0])
    counts = _counts(panels)
    levels = _levels(len(times))
    shown = sorted({0, len(times) // 3, 2 * len(times) // 3, len(times) - 1})
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Spectrum of the learned change through training: {net.network_name(found[0])}",
        caption=(
            "Singular values of the change, divided by the largest, from early (light) to late (dark), against those "
            "of the product at init (dashed). Above a tenth of the largest are, on average over the panels, "
            f"{counts[1]} at the first measurement, {counts[-1]} at the last, and {counts[0]} at init. Mean over "
            f"heads. {net.describe(found)}"
        ),
        panels=tuple(panels),
        rows=2,
        cols=len(layers),
        sources=tuple(run.source for run in found),
        order=Order(unit, tuple((levels[i], _short(times[i])) for i in shown)),
    )


def _counts(panels: "Sequence[Panel]") -> list[str]:
    """How many values of each curve are above a tenth of the largest, mean over panels, as text."""
    above = [[sum(value > 0.1 for value in trace.y) for trace in panel.traces] for panel in panels]
    return [f"{value:.1f}" for value in np.mean(above, axis=0)]


def _short(time: float) -> str:
    """Two digits are enough beside a scale of colours."""
    return f"{time:.1g}" if time < 1 else f"{time:.0f}"


def _levels(num: int) -> list[float]:
    """Places of steps in the scale of colours: evenly by number, since steps are spread from early to late."""
    return [i / (num - 1) if num > 1 else 1.0 for i in range(num)]


def _panel(title: str, times: "NDArray[np.float64]", now: "NDArray[np.float64]", init: "NDArray[np.float64]") -> Panel:
    """Curves of one layer: `now` is (steps, values), `init` (values,)."""
    traces = [Trace(numbers(range(1, len(init) + 1)), numbers(init), label="at init", group="init", style="dashed")]
    for time, level, sigma in zip(times, _levels(len(times)), now, strict=True):
        x = numbers(range(1, len(sigma) + 1))
        traces.append(Trace(x, numbers(sigma), group=f"{time:.3g}", level=level))
    return Panel(title, Axis("i, from the largest", low=1), Axis("σ_i / σ_1", low=0, high=1), tuple(traces))


def _mean_spectra(found: "Sequence[RunData]", circuit: str, num: int) -> "NDArray[np.float64]":
    """(steps, layers, values), every head divided by its own largest first."""
    spectra = [normalised(run.dense("spectrum", circuit).values)[..., :num] for run in found]
    return np.asarray(np.mean([sigma.mean(axis=2) for sigma in spectra], axis=0))


def _mean_initial(found: "Sequence[RunData]", circuit: str, num: int) -> "NDArray[np.float64]":
    """(layers, values)."""
    spectra = [normalised(run.initial_spectrum(circuit))[..., :num] for run in found]
    return np.asarray(np.mean([sigma.mean(axis=1) for sigma in spectra], axis=0))


def normalised(sigma: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Divided by the first along the last axis; NaN where that is 0.

    >>> normalised(np.array([4.0, 1.0])).tolist()
    [1.0, 0.25]
    """
    top = sigma[..., :1]
    return np.divide(sigma, top, out=np.full_like(sigma, np.nan), where=top > 0)
