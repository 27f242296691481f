"""Words for what was run: the network, the data, and what differs from the plain experiment on these data."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.lab.experiments import experiments, kind_of, to_json
from rankrise.lab.experiments.kinds import kind_named
from rankrise.runs import RunData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankrise.lab.experiments import Kind

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
_AUGMENT = {"flip": "flips", "crop": "crops"}
_NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "relu": "ReLU", "gelu": "GELU"}
_PRECISIONS = {"fp32": "float32", "tf32": "TF32", "bf16": "bfloat16"}


def data_name(run: RunData) -> str:
    """What a reader calls the data of a run; a user's own folder of images or text is called by its path."""
    data = run.spec.get("data", {})
    name = str(data.get("name", "unknown data"))
    if data.get("path") and name in ("image_folder", "text"):
        name = str(data["path"])
    return _DATA.get(name, name)


def network_name(run: RunData, *, of_family: bool = False) -> str:
    """The network and the data in a few words, and what differs from the plain experiment, for titles.

    Args:
        run: The run.
        of_family: Whether the run stands for runs at several initial scales, so that its own scale is not said.
    """
    model, training, _ = _parts(run)
    plain = _plain(run)
    words = [_images(run), _labels(run)]
    if plain:
        words += [
            _named(training["optimiser"]) if training.get("optimiser") != plain["training"]["optimiser"] else "",
            _named(model["activation"]) if model.get("activation") != plain["model"]["activation"] else "",
            f"width {model.get('width')}" if model.get("width") != plain["model"].get("width") else "",
            _precision(run) if training.get("precision") != plain["training"]["precision"] else "",
        ]
    words += ["" if of_family else _scale(run)]
    name = f"{_MODELS.get(str(model.get('kind')), 'a network')} on {data_name(run)}"
    return ", ".join([name, *(word for word in words if word)])


@dataclass(frozen=True)
class Description:
    """What was run, part by part, each in words; a caption and a report join different parts.

    Attributes:
        network: The network, its size, and what is unusual about it; or what a run of another kind learns.
        training: Length, data, optimiser and precision; empty for a run that trains no network.
        repeats: The seed of the run, or how many seeds there are.
    """

    network: tuple[str, ...]
    training: str
    repeats: str

    @property
    def without_repeats(self) -> str:
        """Everything but the seeds, without a full stop."""
        return ", ".join(part for part in (*self.network, self.training) if part)

    @property
    def words(self) -> str:
        """Everything, without a full stop."""
        return ", ".join(part for part in (self.without_repeats, self.repeats) if part)


def describe(runs: "Sequence[RunData]", *, repeats: str = "", of_family: bool = False) -> Description:
    """What was run: network, data, length, optimiser and seeds; for another kind, what it learns and the seed.

    Args:
        runs: Runs whose specs differ in the seed only.
        repeats: Words in place of the number of seeds.
        of_family: Whether the runs stand for runs at several initial scales, so that their own scale is not said.
    """
    run = runs[0]
    kind = _kind(run)
    if kind is not None and not kind.is_network:
        return Description((kind.in_words(run.spec),), "", repeats or f"seed {run.seed}")
    model, training, data = _parts(run)
    network = (
        _MODELS.get(str(model.get("kind")), "network"),
        f"{model.get('num_layers', 1)} layers × {model.get('num_heads', 1)} heads",
        f"width {model['width']}" if "width" in model else "",
        _named(model["activation"]) if model.get("activation", "gelu") != "gelu" else "",
        "" if of_family else _scale(run),
    )
    size = f"{data['num_train']:,} samples" if data.get("num_train") else ""
    about = ", ".join(word for word in (size, _images(run), _labels(run)) if word)
    length = f"{training['epochs']:,} epochs of " if "epochs" in training else ""
    optimiser = f" with {_named(training['optimiser'])}" if "optimiser" in training else ""
    precision = f" in {_precision(run)}" if "precision" in training else ""
    words = f"{length}{data_name(run)}{f' ({about})' if about else ''}{optimiser}{precision}"
    return Description(network, words, repeats or seeds(runs))


def describe_run(path: str | os.PathLike[str], *, of_family: bool = False) -> str:
    """Network, data, length and optimiser of a run, or what a run of another kind learns, in a sentence.

    Args:
        path: The run directory.
        of_family: Whether the run stands for runs at several initial scales, so that its own scale is not said.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The run is damaged.
    """
    return f"{describe([RunData(Path(path))], of_family=of_family).without_repeats}."


def _kind(run: RunData) -> "Kind[Any] | None":
    """The kind of a run; None where the run is not of an experiment, or of a kind that this version does not know."""
    try:
        return kind_named(run.spec.get("kind"))
    except ValueError:
        return None


def seeds(runs: "Sequence[RunData]") -> str:
    """How many seeds there are, in words.

    >>> seeds([None])
    'one seed'
    """
    return "one seed" if len(runs) == 1 else f"{len(runs)} seeds"


def _parts(run: RunData) -> list[Mapping[str, Any]]:
    return [run.spec.get(name, {}) for name in ("model", "training", "data")]


def _images(run: RunData) -> str:
    return " and ".join(_AUGMENT.get(name, str(name)) for name in run.spec.get("data", {}).get("augment") or ())


def _labels(run: RunData) -> str:
    return "random labels" if run.spec.get("data", {}).get("random_labels") else ""


def _scale(run: RunData) -> str:
    factor = run.spec.get("model", {}).get("init_scale", 1.0)
    return "" if factor == 1 else f"initial weights × {factor:g}"


def _precision(run: RunData) -> str:
    name = str(run.spec["training"].get("precision"))
    return _PRECISIONS.get(name, name)


def _named(name: str) -> str:
    return _NAMES.get(str(name), str(name))


def _plain(run: RunData) -> dict[str, Any]:
    """The spec of the first registered network on these data of as many layers and heads; empty where there is none."""
    model, training, data = _parts(run)
    if "optimiser" not in training or "activation" not in model:
        return {}
    for known in experiments().values():
        for spec in known.specs.values():
            if kind_of(spec).is_network:
                other = to_json(spec)
                same_data = all(other["data"][key] == data.get(key) for key in ("name", "path", "num_train"))
                keys = ("kind", "num_layers", "num_heads")
                if same_data and all(other["model"].get(key) == model.get(key) for key in keys):
                    return other
    return {}
