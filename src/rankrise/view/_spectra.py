"""Spectra of one network: normalised over training ([v1] 1, 11, 13, 15; [v2] 1), and against init ([v1] 5, [v2] 5)."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.runs import read_alike
from rankrise.view import _networks as net
from rankrise.view._figure import Axis, Control, FigureData, Order, Panel, Trace, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankrise.runs import RunData


def spectrum_over_training(
    runs: "Sequence[RunData]", *, name: str = "", network: str = "", about: str = "", num_values: int = 32
) -> FigureData:
    """`σ_i / σ_1` against i with a curve for each step, for three layers of both circuits; mean over heads and seeds.

    Args:
        runs: Runs that differ in their seed only.
        name: The name of the experiment; a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.
        num_values: How many singular values to draw, from the largest.

    Raises:
        NotMeasurable: A run has no spectra, or the runs were recorded at different steps.
    """
    spectra = {c: _stack([part.values for part in read_alike(runs, "spectrum", c, gaps="tail")]) for c in net.CIRCUITS}
    initial = {c: _stack([run.initial_spectrum(c)[None] for run in runs]) for c in net.CIRCUITS}
    times = net.epochs(runs[0], runs[0].path("spectrum", "kq", gaps="tail").steps)
    layers = net.spread_layers(spectra["kq"].shape[2])
    panels = [
        _over_training(f"{net.layer_name(layer)}, {net.CIRCUITS[c].short}", times, now[:, layer], init[0, layer])
        for c in net.CIRCUITS
        for now, init in [[_mean(part[c])[..., :num_values] for part in (spectra, initial)]]
        for layer in layers
    ]
    unit = net.time_label(runs[0])
    rank = runs[0].spec.get("model", {}).get("head_dim", np.inf)
    init = _count(list(initial.values()), most=rank)
    first, last = (_count([part[:, step] for part in spectra.values()], most=2 * rank) for step in (0, -1))
    levels = _levels(len(times))
    shown = sorted({0, len(times) // 3, 2 * len(times) // 3, len(times) - 1})
    return FigureData(
        id="spectrum_over_training",
        experiment=name,
        title=net.titled("Spectrum of the learned change through training", network),
        text=(
            "Singular values of the change, divided by the largest, at every recorded step, against those "
            "of the product at init (dashed). Above a tenth of the largest are, on average over all heads, "
            f"{first} at the first measurement, {last} at the last, and {init} at init. Mean over heads."
        ),
        run=about,
        panels=tuple(panels),
        rows=2,
        cols=len(layers),
        sources=tuple(run.source for run in runs),
        order=Order(unit, tuple((levels[i], _short(times[i])) for i in shown)),
        control=Control(unit, is_film=True),
        row_names=tuple(circuit.short for circuit in net.CIRCUITS.values()),
        col_names=tuple(net.layer_name(layer) for layer in layers),
    )


def perturbation_vs_init(
    runs: "Sequence[RunData]", *, name: str = "", network: str = "", about: str = "", num_values: int = 64
) -> FigureData:
    """Singular values of the final change and of the initial product, as they are, for three layers.

    Args:
        runs: Runs that differ in their seed only.
        name: The name of the experiment; a part of the names of files.
        network: The network and its data in a few words, for the title.
        about: What was run, in words without a full stop, for the caption.
        num_values: How many singular values to draw, from the largest.

    Raises:
        NotMeasurable: A run has no spectra, or the runs were recorded at different steps.
    """
    num_layers = runs[0].path("spectrum", "kq", gaps="tail").values.shape[1]
    layers = net.spread_layers(num_layers)
    panels = [_against_init(runs, circuit, layer, num_values) for circuit in net.CIRCUITS for layer in layers]
    half = [f"{np.mean([_half(panel.traces[i].y) for panel in panels]):.1f}" for i in (0, 1)]
    return FigureData(
        id="perturbation_vs_init",
        experiment=name,
        title=net.titled("What training added, against what was there", network),
        text=(
            "Singular values of the change at the end of training (orange) and of the initial product (blue), as they "
            f"are. Half of Σ σ² of what is drawn lies, on average over the panels, in {half[1]} directions of the "
            f"change and in {half[0]} of the initial product. Lines: mean over heads {net.band_words(runs)}."
        ),
        run=about,
        panels=tuple(panels),
        rows=2,
        cols=len(layers),
        sources=tuple(run.source for run in runs),
    )


def _stack(spectra: "Sequence[NDArray[np.float64]]") -> "NDArray[np.float64]":
    """Spectra (seeds, steps, layers, heads, values); those of every head are divided by its largest value."""
    return np.stack([_normalised(sigma) for sigma in spectra])


def _mean(spectra: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """The mean over heads and then over seeds, (steps, layers, values)."""
    return np.asarray(net.mean_over_heads(spectra, axis=3).mean(axis=0))


def _count(parts: "Sequence[NDArray[np.float64]]", most: float) -> str:
    """How many values of a head are above a tenth of its largest value, mean over all heads, as text.

    Args:
        parts: Spectra along the last axis; NaN stands for values that were not recorded.
        most: The largest rank that the matrices can have. If a head has fewer recorded values and all of them are above
            a tenth, there may be more.

    >>> two = [np.array([[1.0, 0.5], [1.0, 0.05]])]
    >>> _count(two, most=2), _count(two, most=4)
    ('1.5', 'at least 1.5')
    """
    num_above = [(part > 0.1).sum(axis=-1) for part in parts]
    num_kept = [np.isfinite(part).sum(axis=-1) for part in parts]
    is_cut = any(((n == kept) & (kept > 0) & (kept < most)).any() for n, kept in zip(num_above, num_kept, strict=True))
    return ("at least " if is_cut else "") + f"{np.mean([n.mean() for n in num_above]):.1f}"


def _short(time: float) -> str:
    """A time as text with few digits, which are enough beside a scale of colours."""
    return f"{time:.1g}" if time < 1 else f"{time:.0f}"


def _levels(num: int) -> list[float]:
    """The places of steps in the scale of colours, evenly spaced by number: steps are already spread over training."""
    return [i / (num - 1) if num > 1 else 1.0 for i in range(num)]


def _over_training(
    title: str, times: "NDArray[np.float64]", now: "NDArray[np.float64]", init: "NDArray[np.float64]"
) -> Panel:
    """Curves of one layer: `now` is (steps, values), `init` (values,)."""
    traces = [Trace(numbers(range(1, len(init) + 1)), numbers(init), label="at init", group="init", style="dashed")]
    for time, level, sigma in zip(times, _levels(len(times)), now, strict=True):
        x = numbers(range(1, len(sigma) + 1))
        traces.append(Trace(x, numbers(sigma), group=f"{time:.3g}", level=level))
    return Panel(title, Axis("i, from the largest", low=1), Axis("σ_i / σ_1", low=0, high=1), tuple(traces))


def _normalised(sigma: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Spectra divided by their first value; NaN if that is 0.

    >>> _normalised(np.array([4.0, 1.0])).tolist()
    [1.0, 0.25]
    """
    top = sigma[..., :1]
    return np.divide(sigma, top, out=np.full_like(sigma, np.nan), where=top > 0)


def _against_init(runs: "Sequence[RunData]", circuit: str, layer: int, num: int) -> Panel:
    change = [part.values[-1, layer, :, :num] for part in read_alike(runs, "spectrum", circuit, gaps="tail")]
    init = [run.initial_spectrum(circuit)[layer, :, :num] for run in runs]
    title = f"{net.layer_name(layer)}, {net.CIRCUITS[circuit].short}"
    traces = (_trace(init, "product at init"), _trace(change, "change by training"))
    return Panel(title, Axis("i, from the largest", low=1), Axis("σ_i", low=0), traces)


def _half(sigma: "Sequence[float]") -> int:
    """The number of directions that hold half of Σ σ².

    >>> _half([2.0, 1.0, 1.0])
    1
    """
    energy = np.cumsum(np.nan_to_num(np.square(sigma)))
    return int(np.searchsorted(energy, 0.5 * energy[-1])) + 1


def _trace(spectra: "list[NDArray[np.float64]]", label: str) -> Trace:
    mean, low, high = net.mean_and_band([sigma.T for sigma in spectra])
    lower = tuple(max(value, 0.0) for value in low)
    return Trace(numbers(range(1, len(mean) + 1)), mean, label=label, group=label, low=lower, high=high)
