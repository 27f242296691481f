"""What figures of trained networks share: time in epochs, means over heads and seeds, and words for what was run."""

from typing import TYPE_CHECKING

import numpy as np

from rankrise.figures._data import Numbers, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rankrise.experiments._run_data import RunData
    from rankrise.figures._data import Panel

CIRCUITS = {"kq": "key-query change  Δ(W_K W_Qᵀ)", "vo": "value-output change  Δ(W_V W_Oᵀ)"}
PRODUCTS = {"kq": "key-query  W_K W_Qᵀ", "vo": "value-output  W_V W_Oᵀ"}
_DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "digits",
    "synthetic_images": "synthetic images",
    "synthetic_text": "synthetic text",
    "teacher": "the teacher task",
    "tiny-imagenet-20": "20 classes of Tiny-ImageNet",
    "imagenet": "ImageNet",
    "wikitext-2": "WikiText-2",
    "wikitext-103": "WikiText-103",
}
_MODELS = {"vit": "ViT", "gpt": "GPT-2", "toy_head": "one attention head"}
SHORT = {"kq": "key-query", "vo": "value-output"}


def data_name(run: "RunData") -> str:
    """What it learned from, as a reader calls it; a folder or text of one's own by its path."""
    data = run.spec.get("data", {})
    name = str(data.get("name", "unknown data"))
    if data.get("path") and name in ("image_folder", "text"):
        name = str(data["path"])
    return _DATA.get(name, name)


def network_name(run: "RunData") -> str:
    """Network and data in a few words, for titles."""
    return f"{_MODELS.get(str(run.spec.get('model', {}).get('kind')), 'a network')} on {data_name(run)}"


def describe(runs: "Sequence[RunData]", *, repeats: str = "") -> str:
    """What was run: network, data, length, optimiser and seeds, in a sentence; `repeats` in place of the seeds."""
    spec = runs[0].spec
    model, training, data = (spec.get(part, {}) for part in ("model", "training", "data"))
    size = f" ({data['num_train']:,} samples)" if data.get("num_train") else ""
    labels = " with random labels" if data.get("random_labels") else ""
    network = _MODELS.get(str(model.get("kind")), "network")
    shape = f", {model.get('num_layers', 1)} layers × {model.get('num_heads', 1)} heads"
    length = f"{training['epochs']:,} epochs of " if "epochs" in training else ""
    optimiser = f" with {str(training['optimiser']).capitalize()}" if "optimiser" in training else ""
    return f"Run: {network}{shape}, {length}{data_name(runs[0])}{size}{labels}{optimiser}, {repeats or seeds(runs)}."


def seeds(runs: "Sequence[RunData]") -> str:
    """How many runs there are of it.

    >>> seeds([None])
    'one seed'
    """
    return "one seed" if len(runs) == 1 else f"{len(runs)} seeds"


def band_words(runs: "Sequence[RunData]") -> str:
    """What a band is: heads are not independent, so seeds decide where there are several."""
    return "± sd over heads" if len(runs) == 1 else "± sd over seeds of the mean over heads"


def epochs(run: "RunData", steps: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """Steps of a finished run in epochs; as they are where the spec has none."""
    length = run.spec.get("training", {}).get("epochs")
    last = run.table["step"].to_numpy().max(initial=0)
    return steps * (length / last) if length and last else steps


def time_label(run: "RunData") -> str:
    """What `epochs` returns."""
    return "epoch" if run.spec.get("training", {}).get("epochs") else "step"


def mean_and_band(values: "Sequence[NDArray[np.float64]]") -> tuple[Numbers, Numbers, Numbers]:
    """Mean, and mean ± sd: over heads of one run, or over runs of the mean over heads.

    Seeds are a sample, so that their sd divides by n - 1; the heads of one run are all there are, and divide by n.

    Args:
        values: A (points, heads) for each run.

    >>> mean_and_band([np.array([[1.0, 3.0]])])
    ((2.0,), (1.0,), (3.0,))
    >>> mean_and_band([np.array([[1.0, 1.0]]), np.array([[2.0, 2.0]]), np.array([[2.0, 4.0]])])
    ((2.0,), (1.0,), (3.0,))
    """
    stacked = values[0].T if len(values) == 1 else np.stack([v.mean(axis=-1) for v in values])
    mean, spread = stacked.mean(axis=0), stacked.std(axis=0, ddof=min(len(values) - 1, 1))
    return numbers(mean), numbers(mean - spread), numbers(mean + spread)


def initial_stable_rank(runs: "Sequence[RunData]", circuit: str) -> float | None:
    """`Σ σ² / σ₁²` of the product before training, mean over layers, heads and seeds; None where it was not kept."""
    try:
        spectra = [np.nan_to_num(run.initial_spectrum(circuit)) for run in runs]
    except (FileNotFoundError, ValueError):
        return None
    return float(np.mean([(s**2).sum(-1) / (s**2).max(-1) for s in spectra]))


def at_init(runs: "Sequence[RunData]") -> str:
    """What the products had before training, in a sentence; empty where it was not kept."""
    found = {circuit: initial_stable_rank(runs, circuit) for circuit in CIRCUITS}
    if any(value is None for value in found.values()):
        return ""
    return f"The products at init have {found['kq']:.1f} (key-query) and {found['vo']:.1f} (value-output). "


def count_rising(panels: "Sequence[Panel]") -> str:
    """In how many curves of each circuit the last value is above the first, in words."""
    rising = [[t.y[-1] > t.y[0] for t in panel.traces if t.group != "init"] for panel in panels]
    parts = [f"{sum(up)} of {len(up)} ({name})" for up, name in zip(rising, SHORT.values(), strict=True)]
    return " and ".join(parts)


def depth(layer: int, num_layers: int) -> float:
    """Place of a layer from the first, 0, to the last, 1.

    >>> depth(0, 1), depth(5, 6)
    (0.0, 1.0)
    """
    return layer / (num_layers - 1) if num_layers > 1 else 0.0


def layer_name(layer: int) -> str:
    """As in the paper, from 1.

    >>> layer_name(0)
    'layer 1'
    """
    return f"layer {layer + 1}"


def spread_layers(num_layers: int, num: int = 3) -> list[int]:
    """A few layers from the first to the last.

    >>> spread_layers(6), spread_layers(2)
    ([0, 2, 5], [0, 1])
    """
    return sorted({int(layer) for layer in np.linspace(0, num_layers - 1, min(num, num_layers))})
