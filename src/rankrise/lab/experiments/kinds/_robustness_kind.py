"""A flow that is perturbed at several times and followed on, to test the assumptions of the theorem."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind

if TYPE_CHECKING:
    import pyarrow as pa

    from rankrise.theory import Flow


@dataclass(frozen=True, kw_only=True)
class RobustnessSpec(TheorySpec):
    """A flow that is perturbed at several times and followed on (`theory.perturb_flow`).

    Args:
        assumption: "4.3" perturbs at random times; "4.4" where a coordinate newly passes the threshold.
        log10_alpha: log10 α.
        t_end: Rescaled time to stop at.
        noise: Standard deviation of the noise on √|q|.
        duration: Rescaled time for which a perturbed flow is followed.
        threshold: Value of |q| above which a coordinate is perturbed.
        trials: Number of perturbations.
        num_points: Saved points of each perturbation.
    """

    assumption: Literal["4.3", "4.4"]
    log10_alpha: float
    t_end: float
    noise: float
    duration: float
    threshold: float = 1e-5
    trials: int = 5
    num_points: int = 121


class RobustnessKind(ToyKind[RobustnessSpec]):
    """Solved by `theory.solve_flow` and, from every perturbation on, by `theory.perturb_flow`."""

    name = "robustness"
    title = "the gradient flow, perturbed"
    spec = RobustnessSpec

    def record(self, spec: RobustnessSpec, tick: Tick) -> Recording:
        """Save both products after every perturbation."""
        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows, product_rows, solve_toy, toy_network

        net = toy_network(spec.task, spec.seed)
        flow = solve_toy(spec, net, tick)
        blocks: list[pa.RecordBatch] = []
        status = flow.status
        for n, time in enumerate(perturbation_times(spec, flow)):
            pushed = theory.perturb_flow(
                net,
                flow,
                time=time,
                t_end=min(time + spec.duration, float(flow.times[-1])),
                noise=spec.noise,
                threshold=spec.threshold,
                seed=spec.seed + n,
                num_points=spec.num_points,
            )
            steps = list(range(n * spec.num_points, (n + 1) * spec.num_points))
            at = [time, *[math.nan] * (spec.num_points - 1)]
            blocks.append(curve_rows({"time": pushed.times, "perturbed_at": at}, steps=steps))
            blocks += product_rows(pushed.products, steps=steps, head=n)
            blocks += product_rows(pushed.perturbed, quantity="product_perturbed", steps=steps, head=n)
            status = pushed.status if status is theory.Status.FINISHED else status
        return Recording(blocks, status)

    def guess_seconds(self, spec: RobustnessSpec, *, on_gpu: bool) -> float:
        """A flow, and a quarter of one for every perturbation."""
        return super().guess_seconds(spec, on_gpu=on_gpu) * (1 + spec.trials / 4)


def perturbation_times(spec: RobustnessSpec, flow: "Flow") -> list[float]:
    """Rescaled times to perturb at: random after the first activation (4.3), or activations, spread evenly (4.4)."""
    import numpy as np

    from rankrise import theory

    reached = theory.activation_times(flow, spec.threshold)
    last = float(flow.times[-1]) - spec.duration
    active = sorted(t for t in reached.tolist() if 0 < t < last)
    if not active:
        raise ValueError(
            f"A coordinate must become active before `t_end` − `duration` = {last:g}; none does. Increase `t_end`."
        )
    if spec.assumption == "4.4":
        chosen = np.unique(np.linspace(0, len(active) - 1, spec.trials).round().astype(int))
        return [active[i] for i in chosen]
    draws = np.random.default_rng(spec.seed).uniform(active[0], last, spec.trials)
    return sorted(draws.tolist())
