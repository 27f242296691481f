"""The gradient flow of the toy from α θ0."""

from dataclasses import dataclass

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind


@dataclass(frozen=True, kw_only=True)
class FlowSpec(TheorySpec):
    """The gradient flow from α θ0 (`theory.solve_flow`).

    Args:
        log10_alpha: log10 α.
        t_end: Rescaled time to stop at.
        num_points: Evenly spaced times that are saved, beside the solver's own.
        threshold: Value of |q| above which a coordinate counts as active.
    """

    log10_alpha: float
    t_end: float
    num_points: int = 401
    threshold: float = 1e-3


class FlowKind(ToyKind[FlowSpec]):
    """Solved by `theory.solve_flow`."""

    name = "flow"
    title = "the gradient flow at one α"
    spec = FlowSpec

    def record(self, spec: FlowSpec, tick: Tick) -> Recording:
        """Save the solver's own points and evenly spaced ones."""
        import torch

        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import (
            activation_rows,
            curve_rows,
            product_rows,
            solve_toy,
            toy_network,
        )

        net = toy_network(spec.task, spec.seed)
        flow = solve_toy(spec, net, tick)
        even = torch.linspace(0, float(flow.times[-1]), spec.num_points, dtype=torch.float64)
        times = torch.unique(torch.cat([flow.times, even]))  # sorted
        products = flow.at(times)
        losses = [net.loss(q) for q in products]
        blocks = [curve_rows({"time": times, "loss": losses}), *product_rows(products)]
        reached = theory.activation_times(flow, spec.threshold)
        return Recording([*blocks, *activation_rows(reached, len(times) - 1)], flow.status)
