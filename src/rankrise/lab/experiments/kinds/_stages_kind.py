"""Algorithm 1: the stages of the toy in the limit α → 0."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True)
class StagesSpec(TheorySpec):
    """Algorithm 1 in the limit α → 0 (`theory.incremental_stages`).

    Args:
        t_end: Rescaled time after which stages are left out.
        weight_decay: λ in the penalty ½ λ ‖θ‖².
    """

    t_end: float
    weight_decay: float = field(default=0.0, metadata={"omit_default": True})


class StagesKind(ToyKind[StagesSpec]):
    """Solved by `theory.incremental_stages`."""

    name = "stages"
    title = "Algorithm 1 in the limit α → 0"
    spec = StagesSpec

    def record(self, spec: StagesSpec, tick: Tick) -> Recording:
        """Save every stage, with its certificate."""
        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows, product_rows, toy_network

        net = toy_network(spec.task, spec.seed)
        found = theory.incremental_stages(
            net, t_end=spec.t_end, weight_decay=spec.weight_decay, on_stage=lambda t: tick(t / spec.t_end)
        )
        nothing = [math.nan]
        of_stage: dict[str, ArrayLike] = {
            "time": [0.0, *found.times.tolist()],
            "loss": found.losses,
            "joined": nothing + [float(i) for i in found.coordinates],
            "num_joined": nothing + [float(len(group)) for group in found.groups],
            "num_left": nothing + [float(len(certificate.left)) for certificate in found.certificates],
            "gap": nothing + [certificate.winner_gap for certificate in found.certificates],
            "curvature": nothing + [certificate.minimum_constant for certificate in found.certificates],
        }
        return Recording([curve_rows(of_stage), *product_rows(found.products)], found.status)

    def guess_seconds(self, spec: StagesSpec, *, on_gpu: bool) -> float:
        """A quarter of a flow."""
        return super().guess_seconds(spec, on_gpu=on_gpu) / 4
