"""Every figure that the runs at hand allow, and why the others are not drawn."""

from pathlib import Path
from typing import NamedTuple

from rankrise.lab.experiments._run_data import RunData
from rankrise.lab.figures._data import FigureData
from rankrise.lab.figures._registry import build_figure, figure_ids, takes_experiment
from rankrise.lab.figures._runs import Runs

_BY_SCALE = ("components_by_scale", "stable_rank_by_scale")
_OF_VARIANTS = "stable_rank_over_training"


class Gallery(NamedTuple):
    """Figures, and for each that could not be made a sentence, by id or by id and experiment.

    An experiment whose spec cannot be read has its sentence by its name.
    """

    figures: tuple[FigureData, ...]
    missing: dict[str, str]


def build_figures(runs: Runs) -> Gallery:
    """Make every figure: the toy's, then those of each network.

    A figure of initial scales is of a family `<experiment>-scale-*`; the other figures are of every network that is
    not a member of such a family, or whose family has no network of its own. A variant, as `vit-digits-relu` is of
    `vit-digits`, gets its stable rank over training alone; so does the member of scale 1 where its runs are others than
    those of the network itself.

    Args:
        runs: Folders by experiment.

    >>> gallery = build_figures({})
    >>> gallery.figures, gallery.missing["toy_robustness"]
    ((), '`toy_robustness` needs finished runs of toy-robustness-4.3. ...')
    """
    figures: list[FigureData] = []
    missing: dict[str, str] = {}
    networks = _networks(runs, missing)
    for figure_id, experiment in [*_wanted(networks), *_members_of_scale_1(networks, runs)]:
        name = f"{figure_id} {experiment}".strip()
        try:
            figures.append(build_figure(figure_id, runs, **({"experiment": experiment} if experiment else {})))
        except (OSError, ValueError) as error:
            missing[name] = " ".join(str(error).split())
    return Gallery(tuple(figures), missing)


def _networks(runs: Runs, missing: dict[str, str]) -> list[str]:
    """Experiments that train a network; of one whose spec cannot be read, `missing` gets the reason."""
    found = []
    for name, folders in runs.items():
        try:
            found += [name] if folders and "training" in RunData(Path(folders[0])).spec else []
        except (OSError, ValueError) as error:
            missing[name] = " ".join(str(error).split())
    return found


def _wanted(networks: list[str]) -> list[tuple[str, str]]:
    families = list(dict.fromkeys(name.partition("-scale-")[0] for name in networks if "-scale-" in name))
    plain = [name for name in networks if not _is_member(name, networks)]
    toys = [(figure_id, "") for figure_id in figure_ids() if not takes_experiment(figure_id)]
    of_networks = [figure_id for figure_id in figure_ids() if takes_experiment(figure_id)]
    bases = dict.fromkeys(name.partition("-scale-")[0] for name in networks)
    variants = {name for name in bases if any(name.startswith(f"{base}-") for base in bases)}
    order = sorted(bases, key=lambda name: name in variants)
    wanted = []
    for base in order:
        shown = base if base in plain else f"{base}-scale-1" if f"{base}-scale-1" in plain else ""
        for figure_id in of_networks:
            if figure_id in _BY_SCALE:
                wanted += [(figure_id, base)] if base in families else []
            elif shown and (base not in variants or figure_id == _OF_VARIANTS):
                wanted.append((figure_id, shown))
    return [*toys, *wanted]


def _members_of_scale_1(networks: list[str], runs: Runs) -> list[tuple[str, str]]:
    """As `vit-cifar10-scale-1`, of 100 epochs and three seeds, beside `vit-cifar10`."""
    pairs = [(name, f"{name}-scale-1") for name in networks if f"{name}-scale-1" in networks]
    return [(_OF_VARIANTS, member) for name, member in pairs if set(runs[name]) != set(runs[member])]


def _is_member(name: str, networks: list[str]) -> bool:
    """Whether another stands for it: the network itself, or in a family without one the member of scale 1."""
    base, in_family, factor = name.partition("-scale-")
    return bool(in_family) and (base in networks or factor != "1")
