"""All experiments, by name."""

import functools

from rankrise.lab.experiments._codec import choices
from rankrise.lab.experiments._spec import Experiment, to_json
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


def family_members(family: str) -> list[Experiment]:
    """The experiments of a family, in the order of `rankrise list`.

    >>> [experiment.name for experiment in family_members("vit-digits-scale")][:2]
    ['vit-digits-scale-1', 'vit-digits-scale-0.3']
    """
    return [experiment for experiment in _by_name().values() if family and experiment.family == family]


def scale_family(network: str) -> str:
    """The family of experiments that vary the initial scale of a network; empty if there is none.

    >>> scale_family("vit-cifar10"), scale_family("vit-cifar100")
    ('vit-cifar10-scale', '')
    """
    return next((e.family for e in _by_name().values() if e.family and e.variant_of == network), "")


def scale_one(network: str) -> str:
    """The member of initial scale 1 in the family of a network; empty if there is none.

    >>> scale_one("vit-cifar10"), scale_one("vit-cifar100")
    ('vit-cifar10-scale-1', '')
    """
    members = family_members(scale_family(network))
    return next((m.name for m in members if to_json(m.paper).get("model", {}).get("init_scale") == 1.0), "")


def network_of(name: str) -> str:
    """The network that a member of a family of initial scales varies; any other name stands for itself.

    >>> network_of("vit-cifar10-scale-0.1"), network_of("vit-cifar10-relu"), network_of("mine")
    ('vit-cifar10', 'vit-cifar10-relu', 'mine')
    """
    known = _by_name().get(name)
    return known.variant_of if known is not None and known.family and known.variant_of else name


def find_experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        ValueError: There is none; the message lists the names and the nearest one.

    >>> find_experiment("vit-cifar").title
    Traceback (most recent call last):
    ValueError: An experiment must have a known name; got 'vit-cifar'. Did you mean 'vit-cifar10'? Known: ...
    """
    if name not in _by_name():
        raise ValueError(f"An experiment must have a known name; got {name!a:.80}. {choices(name, _by_name())}")
    return _by_name()[name]
