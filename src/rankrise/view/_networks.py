"""What the figures of trained networks share: time in epochs, means over heads and seeds, and words for curves."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankrise.runs import early_mean
from rankrise.view._figure import Numbers, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rankrise.runs import RunData


class Circuit(NamedTuple):
    """The words for one of the two circuits of a head."""

    short: str  # such as "key-query"
    product: str  # the product of full matrices, such as "W_K W_Qᵀ"
    diagonal: str  # the product of diagonal weights, such as "w_K ⊙ w_Q"

    @property
    def change(self) -> str:
        """What training added to the product, as the title of a panel."""
        return f"{self.short} change  Δ({self.product})"


CIRCUITS = {
    "kq": Circuit("key-query", "W_K W_Qᵀ", "w_K ⊙ w_Q"),
    "vo": Circuit("value-output", "W_V W_Oᵀ", "w_V ⊙ w_O"),
}


def titled(title: str, network: str) -> str:
    """A title, followed by the name of the network if that is known.

    >>> titled("Stable rank", ""), titled("Stable rank", "ViT on CIFAR-10")
    ('Stable rank', 'Stable rank: ViT on CIFAR-10')
    """
    return f"{title}: {network}" if network else title


def band_words(runs: "Sequence[RunData]") -> str:
    """What a band shows: the spread over seeds, or over heads if there is one seed; heads are not independent."""
    return "± sd over heads" if len(runs) == 1 else "± sd over seeds of the mean over heads"


def epochs(run: "RunData", steps: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Steps of a finished run in epochs; the steps themselves if the spec does not say how many epochs there were."""
    length = run.spec.get("training", {}).get("epochs")
    last = run.table["step"].to_numpy().max(initial=0)
    return steps * (length / last) if length and last else steps


def time_label(run: "RunData") -> str:
    """The unit of what `epochs` returns."""
    return "epoch" if run.spec.get("training", {}).get("epochs") else "step"


def mean_and_band(values: "Sequence[NDArray[np.float64]]") -> tuple[Numbers, Numbers, Numbers]:
    """Mean, and mean ± sd: over heads of one run, or over runs of the mean over heads.

    Seeds are a sample, so their standard deviation divides by n - 1. The heads of one run are all the heads that there
    are, so theirs divides by n.

    Args:
        values: An array (points, heads) for each run.

    >>> mean_and_band([np.array([[1.0, 3.0]])])
    ((2.0,), (1.0,), (3.0,))
    >>> mean_and_band([np.array([[1.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([[2.0, 4.0]])])
    ((2.0,), (1.0,), (3.0,))
    """
    stacked = values[0].T if len(values) == 1 else np.stack([mean_over_heads(v) for v in values])
    if np.isfinite(stacked).all():
        mean, spread = stacked.mean(axis=0), stacked.std(axis=0, ddof=min(len(values) - 1, 1))
    else:  # heads that a layer does not have
        mean = mean_over_heads(stacked, axis=0)
        spread = np.sqrt(mean_over_heads(np.square(stacked - mean), axis=0))
    return numbers(mean), numbers(mean - spread), numbers(mean + spread)


def mean_over_heads(values: "NDArray[np.float64]", axis: int = -1) -> "NDArray[np.float64]":
    """The mean over heads; a head that a layer does not have is NaN and is left out.

    >>> mean_over_heads(np.array([[1.0, np.nan], [1.0, 3.0]])).tolist()
    [1.0, 2.0]
    """
    there = np.isfinite(values)
    if there.all():
        return np.asarray(values.mean(axis=axis))
    total, count = np.where(there, values, 0.0).sum(axis=axis), there.sum(axis=axis)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def initial_stable_rank(runs: "Sequence[RunData]", circuit: str) -> float | None:
    """`Σ σ² / σ₁²` of the product before training, mean over layers, heads and seeds; None if it was not recorded."""
    try:
        spectra = [np.nan_to_num(run.initial_spectrum(circuit)) for run in runs]
    except (OSError, ValueError):
        return None
    ranks = [(s**2).sum(-1)[s.max(-1) > 0] / (s**2).max(-1)[s.max(-1) > 0] for s in spectra]
    return float(np.mean(ranks)) if all(len(found) for found in ranks) else None


def at_init(runs: "Sequence[RunData]") -> str:
    """The stable ranks of the products before training, in a sentence; empty if they were not recorded."""
    found = {circuit: initial_stable_rank(runs, circuit) for circuit in CIRCUITS}
    if any(value is None for value in found.values()):
        return ""
    return f"The products at init have {found['kq']:.1f} (key-query) and {found['vo']:.1f} (value-output). "


def rise_words(curves: "Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]") -> str:
    """In how many layers the rank ends above its start, counted as the claim `rises` does, and which fall from a peak.

    Args:
        curves: By circuit: steps (S,), and means over heads and seeds (S, layers).

    >>> steps = np.array([1.0, 50.0, 100.0])
    >>> rise_words({"kq": (steps, np.array([[1.0, 1.0], [2.0, 3.0], [2.0, 0.9]]))})
    'Against the mean of the first 5% of steps it ends higher in 1 of 2 (key-query; not in 1) layers. Below its peak ...
    """
    higher, fallen = [], []
    for circuit, (steps, means) in curves.items():
        up = means[-1] > early_mean(steps, means)
        but = f"; not in {layer_ranges(np.flatnonzero(~up))}" if up.any() and not up.all() else ""
        higher.append(f"{up.sum()} of {len(up)} ({CIRCUITS[circuit].short}{but})")
        down = np.flatnonzero(means[-1] <= 0.9 * means.max(0))
        fallen += (
            [f"layer{'s' * (len(down) > 1)} {layer_ranges(down)} ({CIRCUITS[circuit].short})"] if len(down) else []
        )
    falls = f"Below its peak by a tenth or more it ends in {' and '.join(fallen)}. " if fallen else ""
    return f"Against the mean of the first 5% of steps it ends higher in {' and '.join(higher)} layers. {falls}"


def layer_ranges(layers: "Iterable[int]") -> str:
    """Layers as text, counted from 0; neighbouring layers are joined.

    >>> layer_ranges([0, 2, 3, 4])
    '0, 2-4'
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def depth_level(layer: int, num_layers: int) -> float:
    """The place of a layer between the first, 0, and the last, 1.

    >>> depth_level(0, 1), depth_level(5, 6)
    (0.0, 1.0)
    """
    return layer / (num_layers - 1) if num_layers > 1 else 0.0


def layer_name(layer: int) -> str:
    """The name of a layer, counted from 0 as in the names of weights; the paper counts from 1.

    >>> layer_name(0)
    'layer 0'
    """
    return f"layer {layer}"


def spread_layers(num_layers: int, num: int = 3) -> list[int]:
    """A few layers, evenly spread from the first to the last.

    >>> spread_layers(6), spread_layers(2)
    ([0, 2, 5], [0, 1])
    """
    return sorted({int(layer) for layer in np.linspace(0, num_layers - 1, min(num, num_layers))})
