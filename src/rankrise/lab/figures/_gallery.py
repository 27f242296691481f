"""All figures of the paper by their ids, and a gallery of every figure that finished runs allow."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rankrise.lab.experiments import experiments, network_of, scale_one
from rankrise.lab.figures import _adam_phases, _matrix_stages, _toy_robustness, _toy_scales, _toy_stages
from rankrise.lab.figures._descriptions import describe, network_name, seeds
from rankrise.lab.figures._runs import Runs, by_scale, read_experiment
from rankrise.runs import RunData
from rankrise.view import (
    RUN_FIGURES,
    FigureData,
    components_by_scale,
    perturbation_vs_init,
    spectrum_over_training,
    stable_rank_by_head,
    stable_rank_by_scale,
    stable_rank_over_training,
)


class PaperFigure(NamedTuple):
    """A figure of the paper.

    Attributes:
        build: Makes the figure from folders by experiment, and from its options.
        options: The names of its options.
        look_at: What to look at, in a sentence.
        of: What the figure is drawn of: "toy", "network", or "family" for a network at several initial scales.
        of_variants: Whether a variant of a network has this figure too.
    """

    build: Callable[..., FigureData]
    options: tuple[str, ...]
    look_at: str
    of: str
    of_variants: bool = False


def _of_network(build: Callable[..., FigureData]) -> Callable[..., FigureData]:
    """Give a figure of one network its runs by the name of their experiment, and the words for what was run."""

    def from_folders(runs: Runs, *, experiment: str, figure: str, **options: Any) -> FigureData:
        found = read_experiment(runs, experiment, figure=figure)
        return build(found, name=experiment, network=network_name(found[0]), about=describe(found).words, **options)

    return from_folders


def _network_figure(build: Callable[..., FigureData], *options: str, of_variants: bool = False) -> PaperFigure:
    name = build.__name__
    made = partial(_of_network(build), figure=name)
    look_at = RUN_FIGURES[name].look_at
    return PaperFigure(made, ("experiment", *options), look_at, "network", of_variants=of_variants)


def _of_family(build: Callable[..., FigureData], *, every_seed: bool) -> Callable[..., FigureData]:
    """Give a figure of several initial scales its runs by the name of their network, and the words for what was run."""

    def from_folders(runs: Runs, *, experiment: str, figure: str, **options: Any) -> FigureData:
        found = by_scale(runs, experiment, figure=figure)
        some = next(iter(found.values()))
        one_of = (
            describe(some, repeats=_repeats(found), of_family=True)
            if every_seed
            else describe(some[:1], of_family=True)
        )
        network = network_name(some[0], of_family=True)
        return build(found, name=experiment, network=network, about=one_of.words, **options)

    return from_folders


def _repeats(found: Mapping[float, Sequence[RunData]]) -> str:
    """How many seeds there are, by scale where the scales differ."""
    if len({len(runs) for runs in found.values()}) == 1:
        return ""
    return ", ".join(f"{seeds(runs)} at {factor:g}" for factor, runs in found.items())


def _family_figure(build: Callable[..., FigureData], *options: str, every_seed: bool = False) -> PaperFigure:
    made = partial(_of_family(build, every_seed=every_seed), figure=build.__name__)
    return PaperFigure(made, ("experiment", *options), RUN_FIGURES[build.__name__].look_at, "family")


def _toy(build: Callable[..., FigureData], look_at: str) -> PaperFigure:
    options = tuple(name for name in inspect.signature(build).parameters if name != "runs")
    return PaperFigure(build, options, look_at, "toy")


_FIGURES = {
    _toy_stages.ID: _toy(
        _toy_stages.build, "Look at the plateaus of the loss: at the end of each, one more coordinate leaves zero."
    ),
    _toy_scales.ID: _toy(
        _toy_scales.build, "Look how the loss comes closer to the dashed staircase of Algorithm 1 as α gets smaller."
    ),
    _toy_robustness.ID: _toy(
        _toy_robustness.build, "Look whether the curves of perturbed starts come back to the one without noise."
    ),
    "spectrum_over_training": _network_figure(spectrum_over_training, "num_values"),
    "components_by_scale": _family_figure(components_by_scale, "layer", "head", "num_components", "num_scales"),
    "stable_rank_by_scale": _family_figure(stable_rank_by_scale, every_seed=True),
    "perturbation_vs_init": _network_figure(perturbation_vs_init, "num_values"),
    "stable_rank_over_training": _network_figure(stable_rank_over_training, of_variants=True),
    "stable_rank_by_head": _network_figure(stable_rank_by_head),
    _matrix_stages.ID: _toy(
        _matrix_stages.build,
        "Look how the green staircase meets the curves, and both the vertical lines as α gets smaller.",
    ),
    _adam_phases.ID: _toy(
        _adam_phases.build, "Look from the top to the bottom: 100 means no stages, small numbers mean stages."
    ),
}


def figure_ids() -> tuple[str, ...]:
    """The eight figures of the paper, and three more: ranks head by head, full matrices, and Adam over ε.

    >>> len(figure_ids())
    11
    """
    return tuple(_FIGURES)


def takes_experiment(figure_id: str) -> bool:
    """Whether a figure shows one network, so that the caller must name the experiment.

    Raises:
        ValueError: There is no such figure.

    >>> takes_experiment("toy_scales"), takes_experiment("components_by_scale")
    (False, True)
    """
    return "experiment" in _find(figure_id).options


def build_figure(figure_id: str, runs: Runs, **options: Any) -> FigureData:
    """Make a figure from finished runs.

    Args:
        figure_id: One of `figure_ids()`.
        runs: Folders by experiment, several of one experiment for several seeds.
        **options: The options of the figure. A figure of a network needs `experiment`.

    Raises:
        ValueError: The figure or an option is unknown, or runs are missing: the message names what to run.

    >>> build_figure("stable_rank", {})
    Traceback (most recent call last):
    ValueError: A figure must have a known id; got 'stable_rank'. Did you mean 'stable_rank_by_head'? Known: ...
    """
    figure = _find(figure_id)
    for name in options:
        if name not in figure.options:
            others = ", ".join(figure.options) or "none"
            raise ValueError(f"`{figure_id}` must get options it knows; got {name!r}. It has: {others}.")
    if "experiment" in figure.options and "experiment" not in options:
        raise ValueError(f"`{figure_id}` must be told of which network; pass experiment='vit-digits', say.")
    return replace(figure.build(runs, **options), look_at=figure.look_at)


def _find(figure_id: str) -> PaperFigure:
    if figure_id in _FIGURES:
        return _FIGURES[figure_id]
    close = difflib.get_close_matches(figure_id, _FIGURES, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"A figure must have a known id; got {figure_id!a:.80}.{hint} Known: {', '.join(_FIGURES)}.")


class Gallery(NamedTuple):
    """The figures that were made, and for each missing figure a sentence that says why.

    The sentences are found by the id of the figure, or by its id and its experiment. An experiment whose spec cannot be
    read has its sentence by its name.
    """

    figures: tuple[FigureData, ...]
    missing: dict[str, str]


def build_figures(runs: Runs) -> Gallery:
    """Make every figure: the toy's, then those of each network.

    A figure of initial scales is of a family of experiments. The other figures are of every network that is not a
    member of such a family, or of its member of scale 1 if the network itself has no runs. A variant of a network that
    has runs gets its stable rank over training alone, behind the others; so does the member of scale 1 if its runs are
    not those of the network itself.

    Args:
        runs: Folders by experiment.

    >>> gallery = build_figures({})
    >>> gallery.figures, gallery.missing["toy_robustness"]
    ((), '`toy_robustness` needs finished runs of toy-robustness-4.3. ...')
    """
    figures: list[FigureData] = []
    missing: dict[str, str] = {}
    trained = _trained(runs, missing)
    for figure_id, experiment in [*_wanted(trained), *_members_of_scale_1(trained, runs)]:
        name = f"{figure_id} {experiment}".strip()
        try:
            figures.append(build_figure(figure_id, runs, **({"experiment": experiment} if experiment else {})))
        except (OSError, ValueError) as error:
            missing[name] = " ".join(str(error).split())
    return Gallery(tuple(figures), missing)


def _trained(runs: Runs, missing: dict[str, str]) -> list[str]:
    """The experiments that train a network; `missing` gets the reason for each whose spec cannot be read."""
    found = []
    for name, folders in runs.items():
        try:
            found += [name] if folders and "training" in RunData(Path(folders[0])).spec else []
        except (OSError, ValueError) as error:
            missing[name] = " ".join(str(error).split())
    return found


def _wanted(trained: list[str]) -> list[tuple[str, str]]:
    """The ids of the figures to make, each with its experiment; figures of the toy have no experiment."""
    networks = dict.fromkeys(network_of(name) for name in trained)
    with_family = {network_of(name) for name in trained if network_of(name) != name}
    variants = {name for name in networks if _variant_of(name) in networks}
    wanted = [(figure_id, "") for figure_id, figure in _FIGURES.items() if figure.of == "toy"]
    for network in sorted(networks, key=lambda name: name in variants):
        one = scale_one(network)
        shown = network if network in trained else one if one in trained else ""
        for figure_id, figure in _FIGURES.items():
            if figure.of == "family" and network in with_family:
                wanted.append((figure_id, network))
            elif figure.of == "network" and shown and (network not in variants or figure.of_variants):
                wanted.append((figure_id, shown))
    return wanted


def _members_of_scale_1(trained: list[str], runs: Runs) -> list[tuple[str, str]]:
    """Figures of members of scale 1 that have runs of their own, such as `vit-cifar10-scale-1` of 100 epochs."""
    pairs = [(name, one) for name in trained if (one := scale_one(name)) in trained]
    apart = [one for name, one in pairs if set(runs[name]) != set(runs[one])]
    return [(figure_id, one) for one in apart for figure_id, figure in _FIGURES.items() if figure.of_variants]


def _variant_of(name: str) -> str:
    known = experiments().get(name)
    return known.variant_of if known is not None else ""
