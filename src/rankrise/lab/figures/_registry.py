"""All figures, by their ids."""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from rankrise.lab.figures import (
    _components_by_scale,
    _perturbation_vs_init,
    _spectrum_over_training,
    _stable_rank_by_head,
    _stable_rank_by_scale,
    _stable_rank_over_training,
    _toy_robustness,
    _toy_scales,
    _toy_stages,
)
from rankrise.lab.figures._data import FigureData
from rankrise.lab.figures._runs import Runs

_MODULES = (
    _toy_stages,
    _toy_scales,
    _toy_robustness,
    _spectrum_over_training,
    _components_by_scale,
    _stable_rank_by_scale,
    _perturbation_vs_init,
    _stable_rank_over_training,
    _stable_rank_by_head,
)
_BUILDERS: dict[str, Callable[..., FigureData]] = {module.ID: module.build for module in _MODULES}


def figure_ids() -> tuple[str, ...]:
    """The eight figures of the paper, and one more, head by head.

    >>> len(figure_ids())
    9
    """
    return tuple(_BUILDERS)


def takes_experiment(figure_id: str) -> bool:
    """Whether a figure is of a network, and so must be told which experiment.

    Raises:
        ValueError: There is no such figure.

    >>> takes_experiment("toy_scales"), takes_experiment("components_by_scale")
    (False, True)
    """
    return "experiment" in inspect.signature(_find(figure_id)).parameters


def build_figure(figure_id: str, runs: Runs, **options: Any) -> FigureData:
    """Make a figure from finished runs.

    Args:
        figure_id: One of `figure_ids()`.
        runs: Folders by experiment, several of one for several seeds.
        **options: Of the figure; `experiment` for those of a network.

    Raises:
        ValueError: An unknown figure or option, or runs that are missing: names what to run.

    >>> build_figure("stable_rank", {})
    Traceback (most recent call last):
    ValueError: A figure must have a known id; got 'stable_rank'. Did you mean 'stable_rank_by_head'? Known: ...
    """
    build = _find(figure_id)
    known = inspect.signature(build).parameters
    for name in options:
        if name not in known:
            others = ", ".join(n for n in known if n != "runs") or "none"
            raise ValueError(f"`{figure_id}` must get options it knows; got {name!r}. It has: {others}.")
    if "experiment" in known and "experiment" not in options:
        raise ValueError(f"`{figure_id}` must be told of which network; pass experiment='vit-digits', say.")
    return build(runs, **options)


def _find(figure_id: str) -> Callable[..., FigureData]:
    if figure_id in _BUILDERS:
        return _BUILDERS[figure_id]
    close = difflib.get_close_matches(figure_id, _BUILDERS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"A figure must have a known id; got {figure_id!a:.80}.{hint} Known: {', '.join(_BUILDERS)}.")
