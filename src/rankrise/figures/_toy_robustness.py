"""Perturbed against unperturbed flows, for Assumptions 4.3 and 4.4: [v1] 9-10, [v2] 3."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rankrise.figures import _toy
from rankrise.figures._data import Axis, FigureData, Panel, Trace, numbers
from rankrise.figures._runs import RunData, Runs, read_experiment

if TYPE_CHECKING:
    from numpy.typing import NDArray

ID = "toy_robustness"
EXPERIMENTS = {"4.3": "toy-robustness-4.3", "4.4": "toy-robustness-4.4"}
_NUM_SHOWN = 3
_NUM_CURVES = 8
_SINCE = Axis("time since the noise", low=0)


class Push(NamedTuple):
    """One perturbation: times (T,), products without and with noise (T, 2d)."""

    times: "NDArray[np.float64]"
    plain: "NDArray[np.float64]"
    pushed: "NDArray[np.float64]"

    @property
    def since(self) -> "NDArray[np.float64]":
        """Time since the noise."""
        return np.asarray(self.times - self.times[0])

    @property
    def apart(self) -> "NDArray[np.float64]":
        """Largest difference of a product, (T,)."""
        return np.asarray(np.abs(self.plain - self.pushed).max(axis=1))


def build(runs: Runs) -> FigureData:
    """For each assumption three perturbations, and the distance between the two flows since all of them.

    Args:
        runs: Folders by experiment: `toy-robustness-4.3` and `toy-robustness-4.4`.

    Raises:
        ValueError: Runs are missing.
    """
    found = {number: read_experiment(runs, name, figure=ID)[0] for number, name in EXPERIMENTS.items()}
    pushes = {number: read_pushes(run) for number, run in found.items()}
    noise = " and ".join(f"{run.spec.get('noise', 0):g} ({number})" for number, run in found.items())
    some = found["4.3"]
    return FigureData(
        id=ID,
        title="Pushed off its path: does the flow return?",
        caption=(
            f"Gradient flow of the diagonal head at {_toy.alpha(float(some.spec['log10_alpha']))}. Active coordinates "
            f"get noise of standard deviation {noise}: above at random times, below as a coordinate becomes active. "
            f"Shown are the {_NUM_CURVES} products that it moves most, with noise dashed. Right: the largest "
            "difference of any product, which comes back for a moment where noise moved the time of a later "
            f"transition; at the end it is at most {_worst(pushes['4.3']):.1g} (4.3) and "
            f"{_worst(pushes['4.4']):.1g} (4.4). "
            f"{_toy.describe(some)}"
        ),
        panels=tuple(panel for number in EXPERIMENTS for panel in _row(number, pushes[number])),
        rows=2,
        cols=_NUM_SHOWN + 1,
        sources=tuple(run.source for run in found.values()),
    )


def read_pushes(run: RunData) -> list[Push]:
    """The perturbations of a run that moved something; each is a `head` of the table with steps of its own."""
    plain, pushed = (
        np.concatenate([run.dense(quantity, circuit).values[:, 0] for circuit in _toy.CIRCUITS], axis=-1)
        for quantity in ("product", "product_perturbed")
    )  # (steps, perturbations, 2d)
    steps = run.dense("product", "kq").steps
    there = np.isfinite(plain).all(axis=-1) & np.isfinite(pushed).all(axis=-1)
    time_at = dict(zip(*(column.tolist() for column in run.scalar("time")), strict=True))
    found = []
    for n in range(plain.shape[1]):
        rows = there[:, n]
        times = np.array([time_at[step] for step in steps[rows].tolist()])
        found.append(Push(times, plain[rows, n], pushed[rows, n]))
    return [push for push in found if push.apart[0] > 0]


def _row(number: str, pushes: list[Push]) -> list[Panel]:
    shown = sorted({round(n) for n in np.linspace(0, len(pushes) - 1, min(_NUM_SHOWN, len(pushes)))})
    panels = [_products(f"{number}: noise at t = {pushes[n].times[0]:.2f}", pushes[n]) for n in shown]
    panels += [Panel("", _SINCE, Axis("product"))] * (_NUM_SHOWN - len(panels))
    return [*panels, _distances(f"{number}: distance", pushes)]


def _products(title: str, push: Push) -> Panel:
    """The coordinates that noise moves most, with and without it, for a third of the time."""
    until = push.since <= push.since[-1] / 3
    t = push.since[until]
    moved = np.argsort(-np.abs(push.plain - push.pushed)[0], kind="stable")[:_NUM_CURVES]
    plain = [_curve(t, y[until], "without noise", "line") for y in push.plain.T[moved]]
    pushed = [_curve(t, y[until], "with noise", "dashed") for y in push.pushed.T[moved]]
    return Panel(title, Axis(_SINCE.label, low=0, high=float(t[-1])), Axis("product"), (*plain, *pushed))


def _worst(pushes: list[Push]) -> float:
    """The largest distance at the end of a perturbation."""
    return max((float(push.apart[-1]) for push in pushes), default=0.0)


def _distances(title: str, pushes: list[Push]) -> Panel:
    traces = tuple(
        Trace(
            numbers(push.since),
            numbers(np.maximum(push.apart, 1e-9)),  # what is below is the solver
            group=f"t = {push.times[0]:.3g}",
            level=n / (len(pushes) - 1) if len(pushes) > 1 else 1.0,
        )
        for n, push in enumerate(pushes)
    )
    return Panel(title, _SINCE, Axis("largest difference", log=True), traces)


def _curve(t: "NDArray[np.float64]", y: "NDArray[np.float64]", name: str, style: str) -> Trace:
    kept = _toy.thin(t, y)
    return Trace(numbers(t[kept]), numbers(y[kept]), name, group=name, style="dashed" if style == "dashed" else "line")
