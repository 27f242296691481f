"""What recipe a run is of, in words, where it is not the paper's."""

import functools
from collections.abc import Mapping
from typing import Any

from rankrise.lab.experiments import SCALES, experiments, to_json

_LENGTH = ("epochs", "warmup_epochs", "track_every", "num_spectra", "evaluate_every")  # of training


@functools.cache
def _registered(name: str) -> dict[str, dict[str, Any]]:
    """Specs of an experiment by scale, from the largest."""
    known = experiments().get(name)
    return {scale: to_json(known.spec(scale)) for scale in reversed(SCALES)} if known else {}


def departure(name: str, spec: Mapping[str, Any]) -> str:
    """What sets a run apart from its experiment at scale `paper`, as "60 of 500 epochs"; empty for nothing.

    >>> from dataclasses import replace
    >>> from rankrise.lab.experiments import experiments, to_json, vary
    >>> known = experiments()["vit-cifar10"]
    >>> departure("vit-cifar10", to_json(vary(known.paper, seed=3)))
    ''
    >>> departure("vit-cifar10", to_json(vary(known.paper, epochs=60)))
    '60 of 500 epochs'
    >>> departure("vit-cifar10", to_json(known.small))
    'scale small'
    >>> departure("vit-cifar10", to_json(replace(known.paper, training=replace(known.paper.training, track_every=7))))
    'a spec of its own'
    """
    for scale, other in _registered(name).items():
        words = "" if scale == "paper" else f"scale {scale}"
        if {**other, "seed": 0} == {**spec, "seed": 0}:
            return words
        if "training" in spec and _rest(other) == _rest(spec):
            done, whole = spec["training"]["epochs"], other["training"]["epochs"]
            if done == whole:
                break  # another warm-up, or measured at other steps
            return f"{words}, {done} of {whole} epochs" if words else f"{done} of {whole} epochs"
    return "a spec of its own"


def _rest(spec: Mapping[str, Any]) -> dict[str, Any]:
    """All but the seed, the length, and when it is measured."""
    training = spec.get("training")
    if not isinstance(training, Mapping):
        return {**spec, "seed": 0}
    return {**spec, "seed": 0, "training": {key: value for key, value in training.items() if key not in _LENGTH}}
