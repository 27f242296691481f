"""The figures of any run and of several runs side by side: what `RunData.plot` and `rankrise plot` draw."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rankrise._arguments import did_you_mean
from rankrise.runs import NotMeasurable, headline, layer_means
from rankrise.signals import thin
from rankrise.view import _networks as net
from rankrise.view._by_scale import components_by_scale, stable_rank_by_scale
from rankrise.view._figure import Axis, FigureData, Mark, Panel, Trace, numbers
from rankrise.view._gauges import entropy_over_training, kernel_rank_over_training, slingshots
from rankrise.view._laziness_by_scale import laziness_by_scale
from rankrise.view._spectra import perturbation_vs_init, spectrum_over_training
from rankrise.view._stable_ranks import stable_rank_by_head, stable_rank_over_training

if TYPE_CHECKING:
    from rankrise.runs import Comparison, RunData

_MOST_POINTS = 1000  # of a loss that was recorded at every step
_LOSSES = ("loss", "train_loss")


class RunFigure(NamedTuple):
    """A figure of one run or of several.

    Attributes:
        build: Makes it: of one run from a list of it, of several from runs by label, of scales from runs by factor.
        of: "one" run, "several" runs as well as one, or several initial "scales".
        look_at: What to look at, in a sentence.
    """

    build: Callable[..., FigureData]
    of: str
    look_at: str


def training_curves(runs: "Mapping[str, RunData]", *, layer: int | None = None) -> FigureData:
    """The loss and the stable rank of both changes against steps: of one run by layer, of several by run.

    Args:
        runs: Runs by label. The rank of several runs is the mean over all their layers and heads.
        layer: Only this layer, counted from 0.

    Raises:
        NotMeasurable: A run has no stable ranks, or has no such layer.
    """
    is_one = len(runs) == 1
    some = next(iter(runs.values()))
    has_loss = any(_loss_name(run) for run in runs.values())
    panels = [_losses(runs)] if has_loss else []
    for circuit, words in net.CIRCUITS.items():
        traces = _by_layer(some, circuit, layer) if is_one else _by_run(runs, circuit, layer)
        marks = _rises(some, circuit, layer) if is_one else ()
        panels.append(Panel(words.change, Axis("step", low=0), Axis("stable rank", low=1), traces, marks))
    where = "all layers" if layer is None else net.layer_name(layer)
    legend = " Thin vertical lines are stages that were detected." if any(panel.marks for panel in panels) else ""
    whose = "each layer" if is_one and layer is None else where
    return FigureData(
        id="training_curves",
        experiment=some.folder.name if is_one else "compared",
        title=net.titled(
            "Loss and rank over training" if has_loss else "Rank over training",
            some.source if is_one else ", ".join(runs),
        ),
        text=(
            f"{'The loss, and the' if has_loss else 'The'} stable rank of what training added, mean over the heads of "
            f"{whose}. A rank that stays and then rises by about one is a stage.{legend}"
        ),
        run="; ".join(headline(run.progress()) for run in runs.values()),
        panels=tuple(panels),
        rows=1,
        cols=len(panels),
        sources=tuple(run.source for run in runs.values()),
    )


def _loss_name(run: "RunData") -> str:
    return next((name for name in _LOSSES if run.has(name)), "")


def _losses(runs: "Mapping[str, RunData]") -> Panel:
    traces = []
    for label, run in runs.items():
        if name := _loss_name(run):
            curve = run.curve(name)
            there = np.isfinite(curve.values)
            x, y = thin(curve.steps[there], curve.values[there], _MOST_POINTS)
            traces.append(Trace(numbers(x), numbers(y), "" if len(runs) == 1 else label, group=label))
    run = next(iter(runs.values()))
    drops = tuple(Mark(stage.step) for stage in run.stages() if stage.kind == "loss") if len(runs) == 1 else ()
    return Panel("loss", Axis("step", low=0), Axis("loss"), tuple(traces), drops)


def _by_layer(run: "RunData", circuit: str, only: int | None) -> tuple[Trace, ...]:
    layers, steps, means = layer_means(run, "stable_rank", circuit)
    named = net.spread_layers(len(layers)) if only is None else [_column(run, layers, only)]
    return tuple(
        Trace(
            numbers(steps),
            numbers(means[:, column]),
            net.layer_name(layer) if column in named else "",
            group=net.layer_name(layer),
            level=net.depth_level(column, len(layers)),
            at_end=column in named,
        )
        for column, layer in enumerate(layers)
        if only in (None, layer)
    )


def _column(run: "RunData", layers: "Sequence[int]", layer: int) -> int:
    """The place of a layer among those that were measured.

    Raises:
        NotMeasurable: It is not among them.
    """
    if layer not in layers:
        raise NotMeasurable(f"{run.source} has no layer {layer}; it has {net.layer_ranges(layers)}.")
    return list(layers).index(layer)


def _by_run(runs: "Mapping[str, RunData]", circuit: str, layer: int | None) -> tuple[Trace, ...]:
    traces = []
    for label, run in runs.items():
        layers, steps, means = layer_means(run, "stable_rank", circuit)
        chosen = means if layer is None else means[:, [_column(run, layers, layer)]]
        y = net.mean_over_heads(chosen, axis=1)
        traces.append(Trace(numbers(steps), numbers(y), label, group=label))
    return tuple(traces)


def _rises(run: "RunData", circuit: str, layer: int | None) -> tuple[Mark, ...]:
    rises = [stage for stage in run.stages() if stage.kind == "rank" and stage.circuit == circuit]
    return tuple(Mark(stage.step) for stage in rises if layer in (None, stage.layer))


RUN_FIGURES = {
    "training_curves": RunFigure(
        training_curves, "several", "Look for plateaus of the rank and for the steps between them."
    ),
    "stable_rank_over_training": RunFigure(
        stable_rank_over_training, "one", "Look which layers gain rank, when, and which lose it again."
    ),
    "spectrum_over_training": RunFigure(
        spectrum_over_training, "one", "Look how many singular values have left the floor, early and late."
    ),
    "perturbation_vs_init": RunFigure(
        perturbation_vs_init, "one", "Look how much steeper the change falls than the weights it started from."
    ),
    "stable_rank_by_head": RunFigure(stable_rank_by_head, "one", "Look which heads differ from those beside them."),
    "entropy_over_training": RunFigure(
        entropy_over_training, "several", "Look whether a head looks at one token only while its logits run away."
    ),
    "slingshots": RunFigure(
        slingshots, "several", "Look whether the norm of the last layer runs up before each spike of the loss."
    ),
    "kernel_rank_over_training": RunFigure(
        kernel_rank_over_training, "several", "Look when the kernel leaves its start, and whether its rank rises then."
    ),
    "components_by_scale": RunFigure(
        components_by_scale, "scales", "Look how far σ_1 leads at small initial weights, and when the others follow."
    ),
    "stable_rank_by_scale": RunFigure(
        stable_rank_by_scale, "scales", "Look whether smaller initial weights end with a lower rank."
    ),
    "laziness_by_scale": RunFigure(
        laziness_by_scale, "scales", "Look at which initial scale the network leaves its linearisation."
    ),
}


def run_figure_ids() -> tuple[str, ...]:
    """The names of the figures of runs.

    >>> run_figure_ids()[0]
    'training_curves'
    """
    return tuple(RUN_FIGURES)


def figure_of_run(figure_id: str, run: "RunData", **options: Any) -> FigureData:
    """Make a figure of one run, whoever wrote it, finished or not.

    Args:
        figure_id: One of `run_figure_ids()`.
        run: The run.
        **options: Options of the figure, such as `num_values`.

    Raises:
        ValueError: The figure or an option is unknown.
        NotMeasurable: The run lacks what the figure shows; or the figure compares runs.
    """
    figure = check_run_figure(figure_id)
    if figure.of == "scales":
        raise NotMeasurable(
            f"`{figure_id}` compares runs of several initial scales; got one run. Pass runs whose `config` has "
            "`init_scale`, as rr.compare([run, other]).plot(...) or `rankrise plot FIGURE RUN RUN`."
        )
    whole = type(run)(run.folder, skip_broken_steps=True)
    if figure.of == "several":
        return _built(figure_id, figure, {run.source: whole}, options)
    words = {"name": run.folder.name, "network": run.source, "about": run.progress().words}
    return _built(figure_id, figure, [whole], words | options)


def figure_of_comparison(figure_id: str, comparison: "Comparison", **options: Any) -> FigureData:
    """Make a figure of several runs, each under its own label; runs are never averaged.

    Args:
        figure_id: A figure that shows several runs: "training_curves", or one of initial scales.
        comparison: What `compare` gave.
        **options: Options of the figure, such as `layer`.

    Raises:
        ValueError: The figure or an option is unknown.
        NotMeasurable: The figure shows one run only, or the runs lack what it shows.
    """
    figure = check_run_figure(figure_id)
    runs = {label: type(run)(run.folder, skip_broken_steps=True) for label, run in comparison.runs.items()}
    if figure.of == "several":
        return _built(figure_id, figure, runs, options)
    if figure.of == "scales":
        return _built(figure_id, figure, _by_factor(figure_id, list(runs.values())), options)
    several = ", ".join(name for name, known in RUN_FIGURES.items() if known.of != "one")
    raise NotMeasurable(f"`{figure_id}` shows one run; got {len(runs)}. Draw {several}, or one run at a time.")


def _by_factor(figure_id: str, runs: "Sequence[RunData]") -> "dict[float, list[RunData]]":
    found: dict[float, list[RunData]] = {}
    for run in runs:
        factor = run.init_scale
        if factor is None:
            raise NotMeasurable(
                f"`{figure_id}` must know the factor of the initial weights of every run; {run.source} does not say. "
                "Pass config={'init_scale': 0.1}, say, to the tracker."
            )
        found.setdefault(factor, []).append(run)
    return dict(sorted(found.items(), reverse=True))


def _built(figure_id: str, figure: RunFigure, runs: object, options: Mapping[str, Any]) -> FigureData:
    import inspect

    known = [p.name for p in inspect.signature(figure.build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ValueError(
                f"`{figure_id}` must get options it knows; got {name!r}. It has {', '.join(known)}. "
                f"{did_you_mean(name, known)}".rstrip()
            )
    return replace(figure.build(runs, **options), look_at=figure.look_at)


def check_run_figure(figure_id: str) -> RunFigure:
    """The figure of a name.

    Raises:
        ValueError: There is no such figure; the message lists all and ends with the nearest one.

    >>> check_run_figure("training_curves").of
    'several'
    """
    if figure_id in RUN_FIGURES:
        return RUN_FIGURES[figure_id]
    hint = did_you_mean(figure_id, RUN_FIGURES)
    raise ValueError(f"A figure must be one of {', '.join(RUN_FIGURES)}; got {figure_id!a:.80}. {hint}".rstrip())
