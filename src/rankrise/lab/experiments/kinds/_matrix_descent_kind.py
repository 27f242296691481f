"""A plain optimiser on a head with full matrices."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise.lab.experiments.kinds._descent_kind import Optimiser, check_descent
from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind, check_plain, toy_size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MatrixDescentSpec(TheorySpec):
    """A plain optimiser on a head with full matrices (`theory.matrix_descend`).

    Args:
        optimiser: Gradient descent, its stochastic form, or Adam.
        log10_alpha: log10 α, at least -300.
        learning_rate: η.
        num_steps: Steps to take.
        batch_size: Number of samples of a step of "sgd", which no other optimiser takes.
        num_points: Saved points, the start not counted.
    """

    optimiser: Optimiser
    log10_alpha: float
    learning_rate: float
    num_steps: int
    batch_size: int | None = None
    num_points: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self.task)
        check_descent(self.optimiser, self.batch_size, self.log10_alpha)


class MatrixDescentKind(ToyKind[MatrixDescentSpec]):
    """Solved by `theory.matrix_descend`."""

    name = "matrix_descent"
    title = "a plain optimiser on a head with full matrices"
    spec = MatrixDescentSpec

    def record(self, spec: MatrixDescentSpec, tick: Tick) -> Recording:
        """Save the singular values of both products at evenly spaced steps."""
        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows, matrix_start, path_rows, toy_data

        x, y = toy_data(spec.task, spec.seed)
        run = theory.matrix_descend(
            theory.matrix_head(x, y),
            matrix_start(spec.task, spec.seed),
            log10_alpha=spec.log10_alpha,
            learning_rate=spec.learning_rate,
            num_steps=spec.num_steps,
            optimiser=spec.optimiser,
            every=max(1, spec.num_steps // spec.num_points),
            batch_size=spec.batch_size,
            seed=spec.seed,
        )
        steps = run.steps.double()
        times = spec.learning_rate * steps / (-spec.log10_alpha * math.log(10))
        blocks = [curve_rows({"time": times, "loss": run.losses, "optimiser_step": steps})]
        spectra = zip(("kq", "vo"), run.singular_values, strict=True)
        return Recording([*blocks, *(path_rows("spectrum", s, circuit=c) for c, s in spectra)], run.status)

    def initial_weights(self, spec: MatrixDescentSpec) -> "dict[str, Tensor]":
        """The four matrices."""
        from rankrise.lab.experiments.kinds._toy_parts import matrix_start

        return dict(zip(("key", "query", "value", "output"), matrix_start(spec.task, spec.seed), strict=True))

    def guess_seconds(self, spec: MatrixDescentSpec, *, on_gpu: bool) -> float:
        """The number of steps times the seconds that a step takes."""
        return 1 + spec.num_steps * (5e-4 + 4e-8 * toy_size(spec.task))
