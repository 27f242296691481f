"""A plain optimiser in place of the flow."""

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind, toy_size

Optimiser: TypeAlias = Literal["gd", "sgd", "adam"]


def check_descent(optimiser: str, batch_size: int | None, log10_alpha: float) -> None:
    """Refuse a batch size without SGD, SGD without one, and an α that float64 cannot hold."""
    if (optimiser == "sgd") != (batch_size is not None):
        raise ValueError(
            f"`batch_size` must be given for 'sgd' and only there; got {batch_size!r} for {optimiser!r}. "
            "Use 'gd' for all samples at each step."
        )
    if log10_alpha < -300:
        raise ValueError(f"`log10_alpha` must be at least -300 for an optimiser; got {log10_alpha!r}. Use a flow.")


@dataclass(frozen=True, kw_only=True)
class DescentSpec(TheorySpec):
    """A plain optimiser in place of the flow (`theory.descend`).

    Args:
        optimiser: Gradient descent, its stochastic form, or Adam.
        log10_alpha: log10 α, at least -300.
        learning_rate: η.
        num_steps: Steps to take.
        batch_size: Samples of a step of "sgd"; given for "sgd" only.
        num_points: Saved points, the start not counted.
        threshold: Value of |q| above which a coordinate counts as active.
        weight_decay: λ in the penalty ½ λ ‖θ‖².
    """

    optimiser: Optimiser
    log10_alpha: float
    learning_rate: float
    num_steps: int
    batch_size: int | None = None
    num_points: int = 400
    threshold: float = 1e-3
    weight_decay: float = field(default=0.0, metadata={"omit_default": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_descent(self.optimiser, self.batch_size, self.log10_alpha)


class DescentKind(ToyKind[DescentSpec]):
    """Solved by `theory.descend`."""

    name = "descent"
    title = "a plain optimiser in place of the flow"
    spec = DescentSpec

    def record(self, spec: DescentSpec, tick: Tick) -> Recording:
        """Save evenly spaced steps, and when each coordinate first was above the threshold."""
        import torch

        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import (
            activation_rows,
            curve_rows,
            product_rows,
            toy_network,
            toy_start,
        )

        u0, v0 = toy_start(spec.task, spec.seed)
        run = theory.descend(
            toy_network(spec.task, spec.seed),
            u0,
            v0,
            log10_alpha=spec.log10_alpha,
            learning_rate=spec.learning_rate,
            num_steps=spec.num_steps,
            optimiser=spec.optimiser,
            every=max(1, spec.num_steps // spec.num_points),
            batch_size=spec.batch_size,
            weight_decay=spec.weight_decay,
            seed=spec.seed,
        )
        steps = run.steps.double()
        times = spec.learning_rate * steps / (-spec.log10_alpha * math.log(10))
        above = run.products.abs() > spec.threshold
        reached = torch.where(above.any(0), times[above.int().argmax(0)], torch.inf)  # the first saved point above
        curves = curve_rows({"time": times, "loss": run.losses, "optimiser_step": steps})
        return Recording([curves, *product_rows(run.products), *activation_rows(reached, len(steps) - 1)], run.status)

    def guess_seconds(self, spec: DescentSpec, *, on_gpu: bool) -> float:
        """Steps times what a step takes."""
        return 1 + spec.num_steps * (5e-4 + 4e-8 * toy_size(spec.task))
