"""Normalised spectrum of the product at init and of the change at every recorded step: [v1] 1, 11, 13, 15; [v2] 1."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.lab.figures import _networks as net
from rankrise.lab.figures import _words
from rankrise.lab.figures._data import Axis, FigureData, Order, Panel, Trace, numbers
from rankrise.lab.figures._runs import Runs, read_alike, read_experiment

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
    spectra = {c: _stack([part.values for part in read_alike(found, "spectrum", c, gaps="tail")]) for c in net.CIRCUITS}
    initial = {c: _stack([run.initial_spectrum(c)[None] for run in found]) for c in net.CIRCUITS}
    times = net.epochs(found[0], found[0].path("spectrum", "kq", gaps="tail").steps)
    layers = net.spread_layers(spectra["kq"].shape[2])
    panels = [
        _panel(f"{net.layer_name(layer)}, {net.CIRCUITS[c].split()[0]}", times, now[:, layer], init[0, layer])
        for c in net.CIRCUITS
        for now, init in [[_mean(part[c])[..., :num_values] for part in (spectra, initial)]]
        for layer in layers
    ]
    unit = net.time_label(found[0])
    rank = found[0].spec.get("model", {}).get("head_dim", np.inf)
    init = _count(list(initial.values()), most=rank)
    first, last = (_count([part[:, step] for part in spectra.values()], most=2 * rank) for step in (0, -1))
    levels = _levels(len(times))
    shown = sorted({0, len(times) // 3, 2 * len(times) // 3, len(times) - 1})
    return FigureData(
        id=ID,
        experiment=experiment,
        title=f"Spectrum of the learned change through training: {_words.network_name(found[0])}",
        caption=(
            "Singular values of the change, divided by the largest, at every recorded step, against those "
            "of the product at init (dashed). Above a tenth of the largest are, on average over all heads, "
            f"{first} at the first measurement, {last} at the last, and {init} at init. Mean over "
            f"heads. {_words.describe(found)}"
        ),
        panels=tuple(panels),
        rows=2,
        cols=len(layers),
        sources=tuple(run.source for run in found),
        order=Order(unit, tuple((levels[i], _short(times[i])) for i in shown)),
    )


def _stack(spectra: "Sequence[NDArray[np.float64]]") -> "NDArray[np.float64]":
    """(seeds, steps, layers, heads, values), every head divided by its own largest."""
    return np.stack([normalised(sigma) for sigma in spectra])


def _mean(spectra: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """(steps, layers, values), over heads first."""
    return np.asarray(spectra.mean(axis=3).mean(axis=0))


def _count(parts: "Sequence[NDArray[np.float64]]", most: float) -> str:
    """How many values of a head are above a tenth of its largest, mean over all heads, as text.

    Args:
        parts: Spectra along the last axis, NaN where none was kept.
        most: Rank that the matrices can have. Where a head has fewer values, and all are above, there may be more.

    >>> two = [np.array([[1.0, 0.5], [1.0, 0.05]])]
    >>> _count(two, most=2), _count(two, most=4)
    ('1.5', 'at least 1.5')
    """
    num_above = [(part > 0.1).sum(axis=-1) for part in parts]
    num_kept = [np.isfinite(part).sum(axis=-1) for part in parts]
    is_cut = any(((n == kept) & (kept > 0) & (kept < most)).any() for n, kept in zip(num_above, num_kept, strict=True))
    return ("at least " if is_cut else "") + f"{np.mean([n.mean() for n in num_above]):.1f}"


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


def normalised(sigma: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Divided by the first along the last axis; NaN where that is 0.

    >>> normalised(np.array([4.0, 1.0])).tolist()
    [1.0, 0.25]
    """
    top = sigma[..., :1]
    return np.divide(sigma, top, out=np.full_like(sigma, np.nan), where=top > 0)
