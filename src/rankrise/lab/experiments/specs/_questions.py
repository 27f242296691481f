"""What readers of the paper ask, on the toy: weight decay, LayerNorm, random targets, Adam, and a hundred heads."""

from dataclasses import replace

from rankrise.lab.experiments._spec import Experiment
from rankrise.lab.experiments.kinds import AdamPhasesSpec, DescentSpec, EnsembleSpec, FlowSpec, StagesSpec, ToyTask
from rankrise.lab.experiments.specs._toys import experiment_of, steps_to

DECAYS = (0.003, 0.01, 0.03)
_LOG10_ALPHA = -8
_TASK = ToyTask(dim=4, tokens=6, samples=100)  # small enough to be followed to its last stage
_LAST = 1e5  # rescaled time by which even random targets are fitted


def _decay(decay: float) -> tuple[Experiment, Experiment]:
    return (
        experiment_of(
            f"toy-decay-stages-{decay:g}",
            f"Algorithm 1 on the toy with weight decay λ = {decay:g}",
            "coordinates with |g| ≤ λ never join, the others join later",
            lambda size: StagesSpec(**size.common(), t_end=size.t_end, weight_decay=decay),
            family="toy-decay-stages",
        ),
        experiment_of(
            f"toy-decay-{decay:g}",
            f"Gradient descent on the toy, weight decay λ = {decay:g}, α = 1e-8",
            f"the stages of toy-decay-stages-{decay:g}",
            lambda size: DescentSpec(
                **size.common(),
                optimiser="gd",
                log10_alpha=_LOG10_ALPHA,
                learning_rate=size.rate,
                num_steps=steps_to(size.t_end, _LOG10_ALPHA, size.rate),
                weight_decay=decay,
            ),
            family="toy-decay",
        ),
    )


def _same(name: str, title: str, shows: str, spec: StagesSpec | FlowSpec | AdamPhasesSpec) -> Experiment:
    return Experiment(name, title, shows, smoke=spec, small=spec, paper=spec)


QUESTIONS = (
    *(member for decay in DECAYS for member in _decay(decay)),
    _same(
        "toy-layernorm-stages",
        "Algorithm 1 on LN(X + head(X)), 8 weights",
        "a LayerNorm is a smooth part of h",
        StagesSpec(task=replace(_TASK, layer_norm=True), t_end=_LAST),
    ),
    _same(
        "toy-layernorm",
        "Gradient flow of LN(X + head(X)), 8 weights, α = 1e-32",
        "the stages of toy-layernorm-stages",
        FlowSpec(task=replace(_TASK, layer_norm=True), log10_alpha=-32, t_end=20.0),
    ),
    _same(
        "toy-teacher-targets",
        "Algorithm 1 to its end on a teacher's targets, 8 weights",
        "what toy-random-targets is compared with",
        StagesSpec(task=_TASK, t_end=_LAST),
    ),
    _same(
        "toy-random-targets",
        "Algorithm 1 to its end on random targets, 8 weights",
        "stages as with a teacher, much later, and almost nothing is learned",
        StagesSpec(task=replace(_TASK, targets="noise"), t_end=_LAST),
    ),
    _same(
        "toy-adam-phases",
        "Adam on 8 weights over ε, β₂ and α",
        "stages return as ε grows",
        AdamPhasesSpec(
            task=replace(_TASK, tokens=5, samples=40),
            epsilons=(1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
            beta2s=(0.9, 0.999),
            log10_alphas=(-2, -4, -8),
        ),
    ),
    Experiment(
        "toy-ensemble",
        "Algorithm 1 on a hundred heads of 8 weights",
        "how often coordinates leave or tie, and how far predicted times err",
        smoke=EnsembleSpec(task=_TASK, num_heads=4, num_predicted=1),
        small=EnsembleSpec(task=_TASK, num_heads=100, num_predicted=10),
        paper=EnsembleSpec(task=_TASK, num_heads=100, num_predicted=10),
    ),
)
