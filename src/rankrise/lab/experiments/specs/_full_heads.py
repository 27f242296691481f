"""Heads with full matrices that are small enough for Algorithm 1: the limit, the flow at three α, plain optimisers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankrise.lab.experiments._spec import Experiment
from rankrise.lab.experiments.kinds import MatrixDescentSpec, MatrixFlowSpec, MatrixStagesSpec, TheorySpec, ToyTask
from rankrise.lab.experiments.specs._toys import steps_to

LOG10_ALPHAS = (-8, -32, -256)
_BESIDE = -8  # log10 α of the runs of optimisers


@dataclass(frozen=True)
class _Size:
    """A task, and a rescaled time by which most of its stages have come."""

    task: ToyTask
    t_end: float

    def common(self) -> dict[str, Any]:
        return {"task": self.task}


_SMOKE = _Size(ToyTask(dim=3, tokens=5, samples=48, targets="full_teacher"), 4.0)
_SMALL = _Size(ToyTask(dim=4, tokens=6, samples=64, targets="full_teacher"), 4.0)
_PAPER = _Size(ToyTask(dim=5, tokens=8, samples=100, targets="full_teacher"), 4.0)


def _experiment(name: str, title: str, shows: str, make: Callable[[_Size], TheorySpec], family: str = "") -> Experiment:
    return Experiment(name, title, shows, smoke=make(_SMOKE), small=make(_SMALL), paper=make(_PAPER), family=family)


def _flow(log10_alpha: float) -> Experiment:
    return _experiment(
        f"toy-full-flow-1e{log10_alpha:g}",
        f"Flow of a small head with full matrices from α = 1e{log10_alpha:g}",
        "singular values that follow the staircase of toy-full-stages",
        lambda size: MatrixFlowSpec(**size.common(), log10_alpha=log10_alpha, t_end=size.t_end, num_points=401),
        family="toy-full-flow",
    )


def _descent(name: str, title: str, shows: str, *, rate: float = 0.02, **changes: Any) -> Experiment:
    def make(size: _Size) -> TheorySpec:
        steps = changes.get("num_steps", steps_to(size.t_end, _BESIDE, rate))
        return MatrixDescentSpec(
            **size.common(), log10_alpha=_BESIDE, learning_rate=rate, **{**changes, "num_steps": steps}
        )

    return _experiment(name, title, shows, make)


FULL_HEADS = (
    _experiment(
        "toy-full-stages",
        "Algorithm 1 on a small head with full matrices",
        "one direction of one product joins at each stage; the rule is tested, not proved",
        lambda size: MatrixStagesSpec(**size.common(), t_end=size.t_end, log10_alphas=LOG10_ALPHAS),
    ),
    *(_flow(log10_alpha) for log10_alpha in LOG10_ALPHAS),
    _descent(
        "toy-full-gd",
        "Gradient descent on a small head with full matrices, α = 1e-8",
        "the stages of toy-full-flow-1e-8",
        optimiser="gd",
    ),
    _descent(
        "toy-full-sgd",
        "SGD on a small head with full matrices, α = 1e-8",
        "the stages of toy-full-flow-1e-8, with noise",
        optimiser="sgd",
        batch_size=8,
    ),
    _descent(
        "toy-full-adam",
        "Adam on a small head with full matrices, α = 1e-8",
        "both products start within a few steps, however small α is",
        rate=0.01,
        optimiser="adam",
        num_steps=400,
    ),
)
