"""Perturbed flows against unperturbed ones, for Assumptions 4.3 and 4.4: figures 9-10 of [v1] and 3 of [v2]."""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankrise.lab.claims import read_pushes
from rankrise.lab.figures import _toy_paths as toy
from rankrise.lab.figures._descriptions import describe
from rankrise.lab.figures._runs import Runs, read_experiment
from rankrise.view import Axis, FigureData, Panel, Trace, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

ID = "toy_robustness"
EXPERIMENTS = {"4.3": "toy-robustness-4.3", "4.4": "toy-robustness-4.4"}
_NUM_SHOWN = 3
_NUM_CURVES = 8
_LEAST = 0.1  # part of the noise; a smaller push tests nothing, because no coordinate was active
_LOWEST = 1e-4  # lower end of the axis, above the rounding of thin tables, which is 8e-6 of a product of 1
_SINCE = Axis("time since the noise", low=0)


class Push(NamedTuple):
    """One perturbation: times (T,), and the products without and with noise, each (T, 2d)."""

    times: "NDArray[np.float64]"
    plain: "NDArray[np.float64]"
    pushed: "NDArray[np.float64]"

    @property
    def since(self) -> "NDArray[np.float64]":
        """The time since the noise, (T,)."""
        return np.asarray(self.times - self.times[0])

    @property
    def apart(self) -> "NDArray[np.float64]":
        """The largest difference of any product, (T,)."""
        return np.asarray(np.abs(self.plain - self.pushed).max(axis=1))

    @property
    def left(self) -> float:
        """The difference at the end over the difference right after the noise."""
        return float(self.apart[-1] / self.apart[0])


def build(runs: Runs) -> FigureData:
    """Three perturbations for each assumption, one of them the worst, and the distance of the two flows after each.

    Args:
        runs: Folders by experiment: `toy-robustness-4.3` and `toy-robustness-4.4`.

    Raises:
        ValueError: Runs are missing, or are of two tasks.
    """
    found = {number: read_experiment(runs, name, figure=ID) for number, name in EXPERIMENTS.items()}
    firsts = {number: members[0] for number, members in found.items()}
    if len({str(run.spec.get("task")) for run in firsts.values()}) > 1:
        names = ", ".join(run.source for run in firsts.values())
        raise ValueError(f"Runs in `{ID}` must be of one task; got {names}. Pass those of one scale.")
    pushes, slight, drawn = {}, {}, {}
    rows: list[Panel] = []
    for number, members in found.items():
        every = {run.seed: [Push(*push) for push in read_pushes(run)] for run in members}
        least = _LEAST * float(members[0].spec.get("noise", 0))
        moved = {seed: [push for push in some if push.apart[0] > least] for seed, some in every.items()}
        pushes[number] = [push for some in moved.values() for push in some]
        slight[number] = [push for some in every.values() for push in some if push.apart[0] <= least]
        drawn[number] = max(moved, key=lambda seed: max((push.left for push in moved[seed]), default=0.0))
        rows += _row(number, moved[drawn[number]])
    noise = " and ".join(f"{run.spec.get('noise', 0):g} ({number})" for number, run in firsts.items())
    count = len(found["4.3"])
    is_one_of_several = count > 1
    return FigureData(
        id=ID,
        title="Pushed off its path: does the flow return?",
        text=(
            f"Gradient flow of the diagonal head at {toy.alpha(float(firsts['4.3'].spec['log10_alpha']))}. Active "
            f"coordinates get noise of standard deviation {noise}, at random times t for Assumption 4.3 and as a "
            f"coordinate becomes active for 4.4. Drawn are the {_NUM_CURVES} products that then differ most, dashed "
            "with noise, after three perturbations, the worst among them, and after each the largest difference of "
            f"any product, from {_LOWEST:g} up, which comes back where noise moved the time of a later transition. "
            f"{_ends('4.3', pushes['4.3'])} {_ends('4.4', pushes['4.4'])} {_left_out(slight)}"
            f"{_which(drawn) if is_one_of_several else ''}"
        ).rstrip(),
        run=describe(found["4.3"], repeats=f"{count} seeds" if is_one_of_several else "").words,
        panels=_with_one_axis(rows),
        rows=2,
        cols=_NUM_SHOWN + 1,
        sources=tuple(run.source for members in found.values() for run in members),
    )


def _which(drawn: "Mapping[str, int]") -> str:
    """Which seeds are drawn, in a sentence."""
    which = " and ".join(f"seed {seed} ({number})" for number, seed in drawn.items())
    return f"Drawn: {which}, of the worst push."


def _with_one_axis(panels: list[Panel]) -> tuple[Panel, ...]:
    """Give all panels of distances the same vertical axis."""
    values = [value for panel in panels if panel.y.log for trace in panel.traces for value in trace.y]
    top = 2 * max(values, default=1.0)
    return tuple(replace(panel, y=replace(panel.y, high=top)) if panel.y.log else panel for panel in panels)


def _row(number: str, pushes: list[Push]) -> list[Panel]:
    worst = max(range(len(pushes)), key=lambda n: pushes[n].left, default=0)
    order = dict.fromkeys([worst, *range(len(pushes))[:1], len(pushes) - 1, *range(len(pushes))])
    shown = sorted(list(order)[: min(_NUM_SHOWN, len(pushes))])
    panels = [_products(_title(number, pushes[n], n == worst), pushes[n]) for n in shown]
    panels += [Panel("", _SINCE, Axis("product"))] * (_NUM_SHOWN - len(panels))
    return [*panels, _distances(f"{number}: distance, by t", pushes)]


def _title(number: str, push: Push, is_worst: bool) -> str:
    time = f"t = {push.times[0]:.2f}"
    return f"{number}: {time}, the worst" if is_worst else f"{number}: noise at {time}"


def _products(title: str, push: Push) -> Panel:
    """The coordinates that the noise changes most at any time, with and without the noise."""
    t = push.since
    moved = np.argsort(-np.abs(push.plain - push.pushed).max(axis=0), kind="stable")[:_NUM_CURVES]
    plain = [_curve(t, y, "without noise", "line") for y in push.plain.T[moved]]
    pushed = [_curve(t, y, "with noise", "dashed") for y in push.pushed.T[moved]]
    return Panel(title, Axis(_SINCE.label, low=0, high=float(t[-1])), Axis("product"), (*plain, *pushed))


def _ends(number: str, pushes: list[Push]) -> str:
    """How far apart the flows are at the end, in a sentence."""
    if not pushes:
        return f"Of {number} no perturbation moved anything."
    left = sorted(push.left for push in pushes)
    others = f", of the others at most {left[-2]:.2g}" if len(left) > 1 else ""
    worst = f"{left[-1]:.2g} of the worst push is left"
    if left[-1] > 1:
        worst = f"the worst is {left[-1]:.2g} times as far off as it was pushed"
    return f"Of {number}, n = {len(left)}: at the end {worst}{others}."


def _left_out(slight: dict[str, list[Push]]) -> str:
    """Which perturbations are not drawn, and how they ended, in a sentence; empty if all are drawn."""
    found = [f"{len(pushes)} of {number}" for number, pushes in slight.items() if pushes]
    far = max((float(push.apart[-1]) for pushes in slight.values() for push in pushes), default=0.0)
    if not found:
        return ""
    return (
        f"Left out: {' and '.join(found)}, whose push was less than a tenth of the noise "
        f"(differences at the end: at most {far:.1g}). "
    )


def _distances(title: str, pushes: list[Push]) -> Panel:
    traces = tuple(
        Trace(
            numbers(push.since),
            numbers(np.maximum(push.apart, _LOWEST)),
            label=f"{push.times[0]:.3g}",
            group=f"t = {push.times[0]:.3g}",
            level=n / (len(pushes) - 1) if len(pushes) > 1 else 1.0,
            at_end=True,
        )
        for n, push in enumerate(pushes)
    )
    return Panel(title, _SINCE, Axis("largest difference", log=True, low=_LOWEST), traces)


def _curve(t: "NDArray[np.float64]", y: "NDArray[np.float64]", name: str, style: str) -> Trace:
    kept = toy.thin(t, y)
    return Trace(numbers(t[kept]), numbers(y[kept]), name, group=name, style="dashed" if style == "dashed" else "line")
