"""All experiments, by name."""

import functools

from rankrise.lab.experiments._codec import choices
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments.specs import ALL


@functools.cache
def _by_name() -> dict[str, Experiment]:
    found = {experiment.name: experiment for experiment in ALL}
    assert len(found) == len(ALL), "two experiments have the same name"
    return found


def experiments() -> dict[str, Experiment]:
    """Every experiment by its name, in the order of `rankrise list`.

    >>> experiments()["vit-cifar10"].paper.training.epochs
    500
    """
    return dict(_by_name())


def find_experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: There is none; with the nearest name and the list.

    >>> find_experiment("vit-cifar").title
    Traceback (most recent call last):
    ValueError: An experiment must have a known name; got 'vit-cifar'. Did you mean 'vit-cifar10'? Known: ...
    """
    if name not in _by_name():
        raise ValueError(f"An experiment must have a known name; got {name!a:.80}. {choices(name, _by_name())}")
    return _by_name()[name]
