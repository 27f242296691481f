"""Runs of the theory as values: the toy's task, and what is solved on it.

α is given by its logarithm, as 1e-32 and 10^-1000000 are the same computation. Times are rescaled, t / log(1/α).
"""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Optimiser: TypeAlias = Literal["gd", "sgd", "adam"]


@dataclass(frozen=True)
class ToyTask:
    """The paper's toy: an attention head with diagonal weights learns from Gaussian tokens.

    Args:
        dim: Dimension d of a token; the head has 2d weights.
        tokens: Of a sequence.
        samples: Sequences.
        targets: Outputs of a random teacher head, or Gaussian noise that nothing generates.
        activation: None: the head alone. Else the head with a residual stream and a feed-forward block of fixed weights
            after it (Example 3.2 of the paper with one layer and one head), teacher alike.
        loss: ½‖·‖² per sample, or cross-entropy, with the largest of a target's entries as its label.
        l2: λ of a penalty ½ λ ‖q‖² on the products.

    Raises:
        ValueError: A number is not as above.
    """

    dim: int = 10
    tokens: int = 10
    samples: int = 200
    targets: Literal["teacher", "noise"] = "teacher"
    activation: Literal["gelu", "relu"] | None = None
    loss: Literal["mse", "cross_entropy"] = "mse"
    l2: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dim", "tokens", "samples"):
            _at_least(name, getattr(self, name), 1)
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"`l2` must be zero or positive; got {self.l2!r}. Pass 0 for no penalty.")


@dataclass(frozen=True, kw_only=True)
class TheorySpec:
    """What the kinds below share.

    Args:
        task: What is learned.
        seed: Of the task and of θ0.
    """

    task: ToyTask = field(default_factory=ToyTask)
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` must be a whole number from 0 to 2^63 - 1; got {self.seed!r}. Pass another one.")
        for name in ("t_end", "threshold", "noise", "duration", "learning_rate"):
            value = getattr(self, name, 1.0)
            if not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be positive and finite; got {value!r}. Pass a larger one.")
        for name in ("num_points", "head_dim", "trials", "num_steps", "batch_size"):
            if getattr(self, name, None) is not None:
                _at_least(name, getattr(self, name), 1)
        if not -math.inf < getattr(self, "log10_alpha", -1.0) < 0:
            raise ValueError(
                f"`log10_alpha` must be negative and finite; got {getattr(self, 'log10_alpha', None)!r}. "
                "Pass -32 for α = 1e-32."
            )


@dataclass(frozen=True, kw_only=True)
class FlowSpec(TheorySpec):
    """The gradient flow from α θ0 (`theory.solve_flow`).

    Args:
        log10_alpha: log10 α.
        t_end: Rescaled time to stop at.
        num_points: Evenly spaced times that are saved, beside the solver's own.
        threshold: Of |q|, above which a coordinate counts as active.
    """

    log10_alpha: float
    t_end: float
    num_points: int = 401
    threshold: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class StagesSpec(TheorySpec):
    """Algorithm 1 in the limit α → 0 (`theory.incremental_stages`).

    Args:
        t_end: Rescaled time after which stages are left out.
    """

    t_end: float


@dataclass(frozen=True, kw_only=True)
class MatrixFlowSpec(TheorySpec):
    """The gradient flow of a head with full matrices (`theory.solve_matrix_flow`).

    Args:
        log10_alpha: log10 α, at least -16.
        t_end: Rescaled time to stop at.
        head_dim: Columns of each matrix; `task.dim` unless given.
        num_points: Evenly spaced times that are saved.
    """

    log10_alpha: float
    t_end: float
    head_dim: int | None = None
    num_points: int = 201

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log10_alpha < -16 or self.task.loss != "mse" or self.task.activation is not None or self.task.l2:
            raise ValueError(
                "A flow of full matrices must have `log10_alpha` of at least -16 and the plain task; "
                f"got {self.log10_alpha!r} and {self.task!r}. Use a flow of diagonal weights."
            )


@dataclass(frozen=True, kw_only=True)
class RobustnessSpec(TheorySpec):
    """A flow that is perturbed at several times and followed on (`theory.perturb_flow`).

    Args:
        assumption: "4.3" perturbs at random times; "4.4" where a coordinate newly passes the threshold.
        log10_alpha: log10 α.
        t_end: Rescaled time to stop at.
        noise: Standard deviation of the noise on √|q|.
        duration: Rescaled time for which a perturbed flow is followed.
        threshold: Of |q|: what is above is perturbed.
        trials: Perturbations.
        num_points: Saved points of each.
    """

    assumption: Literal["4.3", "4.4"]
    log10_alpha: float
    t_end: float
    noise: float
    duration: float
    threshold: float = 1e-5
    trials: int = 5
    num_points: int = 121


@dataclass(frozen=True, kw_only=True)
class DescentSpec(TheorySpec):
    """A plain optimiser in place of the flow (`theory.descend`).

    Args:
        optimiser: Gradient descent, its stochastic form, or Adam.
        log10_alpha: log10 α, at least -300.
        learning_rate: η.
        num_steps: Steps to take.
        batch_size: Of "sgd", and only there.
        num_points: Saved points, the start not counted.
        threshold: Of |q|, above which a coordinate counts as active.
    """

    optimiser: Optimiser
    log10_alpha: float
    learning_rate: float
    num_steps: int
    batch_size: int | None = None
    num_points: int = 400
    threshold: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.optimiser == "sgd") != (self.batch_size is not None):
            raise ValueError(
                f"`batch_size` must be given for 'sgd' and only there; got {self.batch_size!r} for "
                f"{self.optimiser!r}. Use 'gd' for all samples at each step."
            )
        if self.log10_alpha < -300:
            raise ValueError(
                f"`log10_alpha` must be at least -300 for an optimiser; got {self.log10_alpha!r}. Use a flow."
            )


def _at_least(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}; got {value!r}. Change it.")
