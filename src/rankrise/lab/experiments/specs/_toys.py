"""The paper's toy: the flow at six α, its limit, full matrices, perturbations, optimisers; and a trained head."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._spec import Experiment
from rankrise.lab.experiments.kinds import (
    DescentSpec,
    FlowSpec,
    MatrixFlowSpec,
    RobustnessSpec,
    StagesSpec,
    TheorySpec,
    ToyTask,
    TrainingSpec,
)
from rankrise.lab.experiments.specs._paper_networks import varied
from rankrise.lab.models import ToyHeadConfig
from rankrise.lab.training import TrainingConfig

LOG10_ALPHAS = (-1, -2, -4, -8, -16, -32)
_BESIDE = -8  # log10 α of the variants
# Nothing is learned before T_1 = 1 / max|∇L(0)|. Of seeds 0, 1, 2 at all sizes it is 1.5 to 3.9 with cross-entropy and
# 7.0 to 15.1 with random targets, so that these runs end later than the others.
_CROSS_ENTROPY_END = 6.0
_NOISE_END = 20.0
_NOISE_RATE = 0.1  # gradients are a hundred times smaller; what is learned agrees with that at 0.02 to 0.2%


@dataclass(frozen=True)
class ToySize:
    """A task and what fits it: `t_end` is some way after T_1 = 1 / max|∇L(0)| of seeds 0, 1 and 2."""

    task: ToyTask
    t_end: float
    rate: float  # a learning rate at which descent follows the flow to a few per cent
    matrix_end: float

    def common(self, **changes: Any) -> dict[str, Any]:
        return {"task": replace(self.task, **changes)}


def steps_to(t_end: float, log10_alpha: float, rate: float) -> int:
    """Return the number of steps of descent to a rescaled time."""
    return math.ceil(t_end * -log10_alpha * math.log(10) / rate)


_SMOKE = ToySize(ToyTask(dim=10, tokens=10, samples=200), 4.0, 0.02, 3.0)
_SMALL = ToySize(ToyTask(dim=20, tokens=10, samples=500), 1.5, 0.01, 1.5)
_PAPER = ToySize(ToyTask(dim=50, tokens=10, samples=1000), 0.75, 0.002, 0.75)


def experiment_of(
    name: str, title: str, shows: str, make: Callable[[ToySize], TheorySpec], family: str = ""
) -> Experiment:
    """Return an experiment whose spec is made of the size of each scale."""
    return Experiment(name, title, shows, smoke=make(_SMOKE), small=make(_SMALL), paper=make(_PAPER), family=family)


def _flow(log10_alpha: float) -> Experiment:
    return experiment_of(
        f"toy-flow-1e{log10_alpha:g}",
        f"Gradient flow of a head with diagonal weights from α = 1e{log10_alpha:g}",
        "plateaus and drops of the loss that converge, as α → 0, to those of toy-stages",
        lambda size: FlowSpec(**size.common(), log10_alpha=log10_alpha, t_end=size.t_end),
        family="toy-flow",
    )


def _stages(name: str, title: str, shows: str, **task: Any) -> Experiment:
    return experiment_of(name, title, shows, lambda size: StagesSpec(**size.common(**task), t_end=size.t_end))


def _robustness(assumption: Literal["4.3", "4.4"], noise: float) -> Experiment:
    return experiment_of(
        f"toy-robustness-{assumption}",
        f"The flow from α = 1e-32, perturbed to test Assumption {assumption}",
        "the perturbed products come back to those that were not perturbed",
        lambda size: RobustnessSpec(
            **size.common(),
            assumption=assumption,
            log10_alpha=-32,
            t_end=size.t_end,
            noise=noise,
            duration=size.t_end / 8,
        ),
    )


def _descent(name: str, title: str, shows: str, **changes: Any) -> Experiment:
    """Descent to the flow's end with `part` times the learning rate of its size."""

    def make(size: ToySize) -> TheorySpec:
        values = {"optimiser": "gd", "log10_alpha": _BESIDE, "part": 1.0, **changes}
        rate = values.pop("part") * size.rate
        task = {"activation": values.pop("activation")} if "activation" in values else {}
        num_steps = steps_to(size.t_end, values["log10_alpha"], rate)
        return DescentSpec(**size.common(**task), learning_rate=rate, num_steps=num_steps, **values)

    return experiment_of(name, title, shows, make)


def _adam() -> Experiment:
    return experiment_of(
        "toy-adam",
        "Adam in place of the flow",
        "no stages: all coordinates become active within a few steps of each other",
        lambda size: DescentSpec(
            **size.common(), optimiser="adam", log10_alpha=_BESIDE, learning_rate=0.01, num_steps=400
        ),
    )


THEORY = (
    _stages(
        "toy-stages",
        "Algorithm 1 on the toy: the limit α → 0 of the flow",
        "one coordinate joins at each stage; times, losses and products between",
    ),
    *(_flow(log10_alpha) for log10_alpha in LOG10_ALPHAS),
    experiment_of(
        "toy-matrix-flow",
        "Gradient flow of a head with full matrices from α = 1e-4",
        "singular values of both products are learned one after another",
        lambda size: MatrixFlowSpec(**size.common(), log10_alpha=-4, t_end=size.matrix_end),
    ),
    _robustness("4.3", 0.05),
    _robustness("4.4", 0.01),
    _descent("toy-gd", "Gradient descent in place of the flow, α = 1e-8", "the stages of toy-flow-1e-8"),
    _descent(
        "toy-sgd",
        "Stochastic gradient descent in place of the flow",
        "the stages of toy-flow-1e-8, with noise",
        optimiser="sgd",
        batch_size=20,
    ),
    _adam(),
    _descent(
        "toy-relu",
        "A block with ReLU, outside the theorem; gradient descent",
        "whether stages need a smooth network",
        activation="relu",
        part=2.0,
    ),
    experiment_of(
        "toy-cross-entropy",
        "Cross-entropy without a penalty, outside the theorem; flow",
        "whether stages need a loss with a finite minimum",
        lambda size: FlowSpec(**size.common(loss="cross_entropy"), log10_alpha=_BESIDE, t_end=_CROSS_ENTROPY_END),
    ),
    experiment_of(
        "toy-ceng501",
        "The toy of the CENG501 reproduction: random targets, α = 1e-2",
        "with targets that nothing generates there is next to nothing to learn; time is η·step/log(1/α)",
        lambda size: DescentSpec(
            **size.common(targets="noise"),
            optimiser="gd",
            log10_alpha=-2,
            learning_rate=_NOISE_RATE,
            num_steps=steps_to(_NOISE_END, -2, _NOISE_RATE),
        ),
    ),
)


# A head with full matrices learns from a teacher, by plain gradient descent from small weights

_HEAD_SMALL = TrainingSpec(
    data=DataConfig("teacher", samples=200, tokens=10, dim=10, num_test=100),
    model=ToyHeadConfig(dim=10, head_dim=10, init_scale=1e-3),
    training=TrainingConfig(
        epochs=3000,
        batch_size=200,  # all samples: every step is one of gradient descent
        optimiser="sgd",
        learning_rate=0.01,
        schedule="constant",
        track_every=10,
        num_spectra=100,
        evaluate_every=200,
    ),
)
_HEAD_SMOKE = varied(
    _HEAD_SMALL,
    data={"samples": 50, "dim": 4, "num_test": 20},
    model={"dim": 4, "head_dim": 4},
    training={"epochs": 60, "batch_size": 50, "num_spectra": 5, "evaluate_every": 20},
)
_HEAD_PAPER = varied(  # 1000 samples of 10 tokens of dimension 50
    _HEAD_SMALL,
    data={"samples": 1000, "dim": 50, "num_test": 200},
    model={"dim": 50, "head_dim": 50},
    training={"epochs": 20_000, "batch_size": 1000, "track_every": 50},
)

HEAD = (
    Experiment(
        name="toy-matrix-head",
        title="A head with full matrices on the teacher task, by descent",
        shows="singular values of both products are learned one after another",
        smoke=_HEAD_SMOKE,
        small=_HEAD_SMALL,
        paper=_HEAD_PAPER,
    ),
)
