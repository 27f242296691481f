"""The gradient flow of a head with full matrices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind, check_plain

if TYPE_CHECKING:
    from torch import Tensor

_RTOL = 1e-8


@dataclass(frozen=True, kw_only=True)
class MatrixFlowSpec(TheorySpec):
    """The gradient flow of a head with full matrices (`theory.solve_matrix_flow`).

    Args:
        log10_alpha: log10 α. From -16 upwards the plain method is used, because the committed runs were made with it.
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
        check_plain(self.task)


class MatrixFlowKind(ToyKind[MatrixFlowSpec]):
    """Solved by `theory.solve_matrix_flow`."""

    name = "matrix_flow"
    title = "the gradient flow of a head with full matrices"
    spec = MatrixFlowSpec

    def record(self, spec: MatrixFlowSpec, tick: Tick) -> Recording:
        """Save the singular values of both products at evenly spaced times."""
        import torch

        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows, matrix_start, path_rows, toy_data

        x, y = toy_data(spec.task, spec.seed)
        flow = theory.solve_matrix_flow(
            theory.matrix_head(x, y),
            matrix_start(spec.task, spec.seed, spec.head_dim),
            log10_alpha=spec.log10_alpha,
            t_end=spec.t_end,
            times=torch.linspace(0, spec.t_end, spec.num_points, dtype=torch.float64),
            rtol=_RTOL,
            method="plain" if spec.log10_alpha >= -16 else "graded",
        )
        spectra = zip(("kq", "vo"), flow.singular_values, strict=True)
        blocks = [curve_rows({"time": flow.times, "loss": flow.losses})]
        return Recording([*blocks, *(path_rows("spectrum", s, circuit=c) for c, s in spectra)], flow.status)

    def initial_weights(self, spec: MatrixFlowSpec) -> "dict[str, Tensor]":
        """The four matrices."""
        from rankrise.lab.experiments.kinds._toy_parts import matrix_start

        return dict(
            zip(("key", "query", "value", "output"), matrix_start(spec.task, spec.seed, spec.head_dim), strict=True)
        )

    def guess_seconds(self, spec: MatrixFlowSpec, *, on_gpu: bool) -> float:
        """A flow, and more for every dimension of a token."""
        return super().guess_seconds(spec, on_gpu=on_gpu) * spec.task.dim / 5
