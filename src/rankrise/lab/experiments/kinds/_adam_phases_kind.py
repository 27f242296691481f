"""Adam from small weights over a grid of ε, β₂ and α: where its stages come back."""

import math
from dataclasses import dataclass

from rankrise.lab.experiments.kinds._theory_kind import Recording, TheorySpec, Tick, ToyKind


@dataclass(frozen=True, kw_only=True)
class AdamPhasesSpec(TheorySpec):
    """Adam at every ε, β₂ and α (`theory.descend`), each for as long as the flow needs for its first stages.

    Where gradients are far below ε, Adam is descent with momentum at the rate η/ε. A run therefore takes `num_steps`
    steps, which Adam needs to move weights to size one, and in addition the steps in which descent at the rate η/ε
    reaches the rescaled time `t_end` / max |∇L(0)|. The rate η is `learning_rate` times the larger of 1 and ε.

    Args:
        epsilons: Values of ε.
        beta2s: Values of β₂; β₁ is 0.9.
        log10_alphas: Values of log10 α, at least -300.
        learning_rate: η for every ε up to 1.
        num_steps: Number of steps that a run with ε = 0 would take.
        t_end: Time of the flow, in units of the time of its first stage.
        num_points: Saved points of each run, the start not counted.
        threshold: Value of |q| above which a coordinate counts as active.
    """

    epsilons: tuple[float, ...]
    beta2s: tuple[float, ...]
    log10_alphas: tuple[float, ...]
    learning_rate: float = 0.02
    num_steps: int = 600
    t_end: float = 4.0
    num_points: int = 200
    threshold: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        checks = (
            ("epsilons", self.epsilons, lambda value: 0 < value < math.inf, "positive"),
            ("beta2s", self.beta2s, lambda value: 0 <= value < 1, "from 0 to below 1"),
            ("log10_alphas", self.log10_alphas, lambda value: -300 <= value < 0, "from -300 to below 0"),
        )
        for name, values, is_right, rule in checks:
            if not values or not all(map(is_right, values)):
                raise ValueError(f"`{name}` must hold numbers that are {rule}; got {values!r}. Change them.")

    @property
    def cases(self) -> tuple[tuple[float, float], ...]:
        """The cases (β₂, ε) in the order of the table, where head n is case n."""
        return tuple((beta2, epsilon) for beta2 in self.beta2s for epsilon in self.epsilons)


class AdamPhasesKind(ToyKind[AdamPhasesSpec]):
    """Solved by `theory.descend`, run by run."""

    name = "adam_phases"
    title = "Adam over a grid of ε, β₂ and α"
    spec = AdamPhasesSpec

    def record(self, spec: AdamPhasesSpec, tick: Tick) -> Recording:
        """Save the loss of every run, and the saved point at which each coordinate first was above the threshold."""
        import torch

        from rankrise import theory
        from rankrise.lab.experiments.kinds._toy_parts import curve_rows, path_rows, toy_network, toy_start

        net, start = toy_network(spec.task, spec.seed), toy_start(spec.task, spec.seed)
        slowest = spec.t_end / float(net.gradient(torch.zeros(net.num_weights, dtype=torch.float64)).abs().max())
        points = list(range(spec.num_points + 1))
        blocks = [curve_rows({"time": [point / spec.num_points for point in points]})]
        for n, (beta2, epsilon) in enumerate(spec.cases):
            losses, first = [], []
            for log10_alpha in spec.log10_alphas:
                rate = spec.learning_rate * max(1.0, epsilon)
                of_flow = slowest * -log10_alpha * math.log(10) * epsilon / rate
                every = max(1, math.ceil((spec.num_steps + of_flow) / spec.num_points))
                run = theory.descend(
                    net,
                    *start,
                    log10_alpha=log10_alpha,
                    learning_rate=rate,
                    num_steps=every * spec.num_points,
                    optimiser="adam",
                    every=every,
                    betas=(0.9, beta2),
                    eps=epsilon,
                )
                above = run.products.abs() > spec.threshold
                losses.append(run.losses)
                first.append(torch.where(above.any(0), above.int().argmax(0).double(), -1.0))
            blocks.append(path_rows("loss_of_case", torch.stack(losses, dim=1), circuit="", steps=points, head=n))
            blocks.append(path_rows("active_from", torch.cat(first)[None], circuit="", steps=points[-1:], head=n))
            tick((n + 1) / len(spec.cases))
        return Recording(blocks, theory.Status.FINISHED)

    def guess_seconds(self, spec: AdamPhasesSpec, *, on_gpu: bool) -> float:
        """The number of runs times the seconds that one takes."""
        return 1 + 0.4 * len(spec.cases) * len(spec.log10_alphas)
