"""Algorithm 1 for a head with full matrices, and what it predicts at given α."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind, check_plain

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

_RTOL = 1e-4  # stage times do not depend on it, because stationary points are polished


@dataclass(frozen=True, kw_only=True)
class MatrixStagesSpec(TheorySpec):
    """Algorithm 1 for full matrices (`theory.matrix_stages`), and what `predict` says for the start of the same seed.

    Args:
        t_end: Rescaled time; later stages are left out.
        log10_alphas: log10 α of the runs whose stage times are predicted.
    """

    t_end: float
    log10_alphas: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self.task)
        for value in self.log10_alphas:
            if not -math.inf < value < 0:
                raise ValueError(f"`log10_alphas` must be negative and finite; got {value!r}. Pass -32 for α = 1e-32.")


class MatrixStagesKind(ToyKind[MatrixStagesSpec]):
    """Solved by `theory.matrix_stages`."""

    name = "matrix_stages"
    title = "Algorithm 1 for a head with full matrices"
    spec = MatrixStagesSpec

    def record(self, spec: MatrixStagesSpec, tick: Tick) -> Recording:
        """Save singular values and certificate of every stage, and its predicted time for each α."""
        import torch

        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows, matrix_start, path_rows, toy_data

        x, y = toy_data(spec.task, spec.seed)
        net = theory.matrix_head(x, y)
        found = theory.matrix_stages(
            net, t_end=spec.t_end, rtol=_RTOL, on_stage=lambda t: tick(min(1.0, t / spec.t_end))
        )
        nothing = [math.nan]
        of_stage: dict[str, ArrayLike] = {
            "time": [0.0, *found.times.tolist()],
            "loss": found.losses,
            "product": nothing + [float(j) for j in found.matrices],
            "lead": nothing + [min(c.lead, 1e300) for c in found.certificates],
            "sigma_ratio": nothing + [min(c.sigma_ratio, 1e300) for c in found.certificates],
            "smallest_minor": nothing + [c.smallest_minor for c in found.certificates],
            "curvature": nothing + [c.curvature for c in found.certificates],
        }
        blocks = [curve_rows(of_stage)]
        for j, circuit in enumerate(("kq", "vo")):
            spectra = torch.stack([found.singular_values(k)[j] for k in range(len(found.times) + 1)])
            blocks.append(path_rows("spectrum", spectra, circuit=circuit))
        start = matrix_start(spec.task, spec.seed)
        for n, log10_alpha in enumerate(spec.log10_alphas if len(found.times) else ()):
            predicted = found.predict(start, log10_alpha=log10_alpha)
            for quantity, values in (
                ("predicted_time", predicted.times.clamp(max=1e300)),
                ("flagged", torch.tensor(predicted.flagged).double()),
            ):
                blocks.append(path_rows(quantity, values[None], circuit="", steps=[len(found.times)], head=n))
        return Recording(blocks, found.status)

    def initial_weights(self, spec: MatrixStagesSpec) -> "dict[str, Tensor]":
        """The four matrices."""
        from rankrise.lab.experiments.kinds._toy_parts import matrix_start

        return dict(zip(("key", "query", "value", "output"), matrix_start(spec.task, spec.seed), strict=True))

    def guess_seconds(self, spec: MatrixStagesSpec, *, on_gpu: bool) -> float:
        """A number of seconds that grows fast with the dimension of a token."""
        return 1 + 0.05 * spec.task.dim**3
