"""Whether a run is of a recipe in the registry, and in words what it is where it is not."""

import functools
from collections.abc import Mapping
from typing import Any

from rankrise.experiments._experiment import SCALES
from rankrise.experiments._registry import experiments
from rankrise.experiments._spec import to_json

_LENGTH = ("epochs", "warmup_epochs", "track_every", "num_spectra", "evaluate_every")  # of training


@functools.cache
def _registered(name: str) -> tuple[dict[str, Any], ...]:
    """Specs of an experiment, from the largest scale."""
    known = experiments().get(name)
    return tuple(to_json(known.spec(scale)) for scale in reversed(SCALES)) if known else ()


def departure(name: str, spec: Mapping[str, Any]) -> str:
    """What sets a run apart from every registered scale of its experiment, as "60 of 500 epochs"; empty for none.

    >>> from rankrise.experiments import experiments, to_json, vary
    >>> paper = experiments()["vit-cifar10"].paper
    >>> departure("vit-cifar10", to_json(vary(paper, seed=3)))
    ''
    >>> departure("vit-cifar10", to_json(vary(paper, epochs=60)))
    '60 of 500 epochs'
    """
    known = _registered(name)
    if any({**other, "seed": 0} == {**spec, "seed": 0} for other in known):
        return ""
    same = next((other for other in known if "training" in spec and _rest(other) == _rest(spec)), None)
    if same is None:
        return "a spec of its own"
    return f"{spec['training']['epochs']} of {same['training']['epochs']} epochs"


def _rest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """All but the seed, the length, and when it is measured."""
    training = spec.get("training")
    if not isinstance(training, Mapping):
        return {**spec, "seed": 0}
    return {**spec, "seed": 0, "training": {key: value for key, value in training.items() if key not in _LENGTH}}
