"""Spectrum of the learned change against the spectrum at init, several layers: [v1] 5, [v2] 5."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _networks as net
from rankrise.lab.figures import _words
from rankrise.lab.figures._data import Axis, FigureData, Panel, Trace, numbers
from rankrise.lab.figures._runs import Runs, read_alike, read_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankrise.lab.experiments._run_data import RunData

ID = "perturbation_vs_init"


def build(runs: Runs, *, experiment: str, num_values: int = 64) -> FigureData:
    """Singular values of the final change and of the initial product, as they are, for three layers.

    Args:
        runs: Folders by experiment.
        experiment: Which network.
        num_values: How many singular values from the largest.

    Raises:
        ValueError: It has no runs, or they differ in more than the seed.
    """
    found = read_experiment(runs, experiment, figure=ID)
    num_layers = found[0].path("spectrum", "kq", gaps="tail").values.shape[1]
    layers = net.spread_layers(num_layers)
    panels = [_panel(found, circuit, layer, num_values) for circuit in net.CIRCUITS for layer in layers]
    half = [f"{np.mean([_half(panel.traces[i].y) for panel in panels]):.1f}" for i in (0, 1)]
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"What training added, against what was there: {_words.network_name(found[0])}",
        caption=(
            "Singular values of the change at the end of training (orange) and of the initial product (blue), as they "
            f"are. Half of Σ σ² of what is drawn lies, on average over the panels, in {half[1]} directions of the "
            f"change and in {half[0]} of the initial product. Lines: mean over heads {net.band_words(found)}. "
            f"{_words.describe(found)}"
        ),
        panels=tuple(panels),
        rows=2,
        cols=len(layers),
        sources=tuple(run.source for run in found),
    )


def _panel(found: "Sequence[RunData]", circuit: str, layer: int, num: int) -> Panel:
    change = [part.values[-1, layer, :, :num] for part in read_alike(found, "spectrum", circuit, gaps="tail")]
    init = [run.initial_spectrum(circuit)[layer, :, :num] for run in found]
    title = f"{net.layer_name(layer)}, {net.CIRCUITS[circuit].split()[0]}"
    traces = (_trace(init, "product at init"), _trace(change, "change by training"))
    return Panel(title, Axis("i, from the largest", low=1), Axis("σ_i", low=0), traces)


def _half(sigma: "Sequence[float]") -> int:
    """Directions that hold half of Σ σ².

    >>> _half([2.0, 1.0, 1.0])
    1
    """
    energy = np.cumsum(np.nan_to_num(np.square(sigma)))
    return int(np.searchsorted(energy, 0.5 * energy[-1])) + 1


def _trace(spectra: "list[NDArray[np.float64]]", label: str) -> Trace:
    mean, low, high = net.mean_and_band([sigma.T for sigma in spectra])
    lower = tuple(max(value, 0.0) for value in low)
    return Trace(numbers(range(1, len(mean) + 1)), mean, label=label, group=label, low=lower, high=high)
