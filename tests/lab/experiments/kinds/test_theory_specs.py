"""Theory specs are values with one spelling, and refuse what cannot be solved."""

import json
import re
from dataclasses import replace

import pytest

from rankrise.lab.experiments import (
    AdamPhasesSpec,
    DescentSpec,
    EnsembleSpec,
    FlowSpec,
    MatrixDescentSpec,
    MatrixFlowSpec,
    MatrixStagesSpec,
    RobustnessSpec,
    StagesSpec,
    TheorySpec,
    ToyTask,
    experiments,
    from_json,
    missing_data,
    spec_hash,
    to_json,
    vary,
)

TASK = ToyTask(dim=3, tokens=4, samples=20)
SPECS = {
    "flow": FlowSpec(task=TASK, log10_alpha=-1000000, t_end=2.5, seed=3),
    "stages": StagesSpec(task=TASK, t_end=2),
    "matrix_flow": MatrixFlowSpec(task=TASK, log10_alpha=-3, t_end=1, head_dim=2),
    "robustness": RobustnessSpec(task=TASK, assumption="4.4", log10_alpha=-8, t_end=2, noise=0.01, duration=0.1),
    "descent": DescentSpec(
        task=TASK, optimiser="sgd", log10_alpha=-2, learning_rate=0.1, num_steps=9, batch_size=5, num_points=3
    ),
    "matrix_stages": MatrixStagesSpec(task=replace(TASK, dim=2), t_end=9, log10_alphas=(-8, -1000000)),
    "matrix_descent": MatrixDescentSpec(task=TASK, optimiser="adam", log10_alpha=-2, learning_rate=0.1, num_steps=9),
    "adam_phases": AdamPhasesSpec(
        task=TASK, epsilons=(1e-8, 1), beta2s=(0.9,), log10_alphas=(-1, -2), num_steps=9, t_end=0.1, num_points=3
    ),
    "ensemble": EnsembleSpec(task=replace(TASK, dim=2), num_heads=3, num_predicted=1, seed=2),
}
TOYS = {name: found for name, found in experiments().items() if isinstance(found.smoke, TheorySpec)}


@pytest.mark.parametrize("kind", SPECS)
def test_round_trip(kind):
    spec = SPECS[kind]
    record = json.loads(json.dumps(to_json(spec), allow_nan=False))
    assert record["kind"] == kind
    assert record["task"]["kind"] == "toy"
    assert from_json(record) == spec
    assert spec_hash(from_json(record)) == spec_hash(spec) != spec_hash(vary(spec, seed=9))
    assert missing_data(spec, None) == ""


def test_whole_numbers_are_floats():
    assert spec_hash(StagesSpec(t_end=2)) == spec_hash(StagesSpec(t_end=2.0))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("flow", {"log10_alpha": 0.0}, "`log10_alpha` must be negative and finite; got 0.0"),
        ("flow", {"t_end": 0.0}, "`t_end` must be positive and finite; got 0.0"),
        ("flow", {"num_points": 0}, "`num_points` must be a whole number of at least 1; got 0"),
        ("flow", {"seed": -1}, "`seed` must be a whole number from 0"),
        ("matrix_flow", {"task": replace(TASK, loss="cross_entropy")}, "the plain task"),
        ("robustness", {"noise": -1.0}, "`noise` must be positive"),
        ("descent", {"batch_size": None}, "`batch_size` must be given for 'sgd' and only there; got None"),
        ("matrix_stages", {"log10_alphas": (-8.0, 0.0)}, "`log10_alphas` must be negative and finite; got 0.0"),
        ("matrix_stages", {"task": replace(TASK, layer_norm=True)}, "the plain task"),
        ("matrix_descent", {"batch_size": 5}, "`batch_size` must be given for 'sgd' and only there; got 5"),
        ("adam_phases", {"epsilons": ()}, "`epsilons` must hold numbers that are positive; got ()"),
        ("adam_phases", {"beta2s": (1.0,)}, "`beta2s` must hold numbers that are from 0 to below 1"),
        ("ensemble", {"num_heads": 0}, "`num_heads` must be a whole number of at least 1; got 0"),
        ("ensemble", {"num_predicted": -1}, "`num_predicted` must be a whole number of at least 0; got -1"),
        ("descent", {"log10_alpha": -301.0}, "`log10_alpha` must be at least -300 for an optimiser"),
    ],
)
def test_what_cannot_be_solved_is_refused(kind, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(SPECS[kind], **changes)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("t_ned", 1, "A spec must have known fields only; got 't_ned'. Did you mean 't_end'?"),
        ("assumption", "4.5", "A spec.assumption must be one of '4.3', '4.4'; got '4.5'"),
        ("task.dmi", 1, "task must have known fields only; got 'dmi'. Did you mean 'dim'?"),
        ("task.dim", 0, "task: `dim` must be a whole number of at least 1; got 0"),
        ("task.l2", -1, "task: `l2` must be zero or positive"),
        ("task.activation", "tanh", "task.activation must be one of 'gelu', 'relu' or null; got 'tanh'"),
        ("task.kind", "data", "task.kind must be a known kind; got 'data'"),
        ("kind", "training", "A spec must have known fields only; got 'assumption'"),
    ],
)
def test_json_that_is_wrong_is_named(path, value, message):
    record = to_json(SPECS["robustness"])
    *parts, last = path.split(".")
    inner = record[parts[0]] if parts else record
    if path == "kind":
        del record["task"]
    inner[last] = value
    with pytest.raises(ValueError, match=re.escape(message)):
        from_json(record)


def test_the_toys():
    flows = [found for name, found in TOYS.items() if name.startswith("toy-flow-")]
    for scale in ("smoke", "small", "paper"):
        assert [found.spec(scale).log10_alpha for found in flows] == [-1, -2, -4, -8, -16, -32]
        tasks = {found.spec(scale).task for found in (*flows, TOYS["toy-stages"], TOYS["toy-matrix-flow"])}
        assert len(tasks) == 1
        assert len({found.spec(scale).seed for found in TOYS.values()}) == 1
        task = tasks.pop()
        assert task.dim >= 10
        assert task.samples >= 200
    assert (task.dim, task.samples, task.tokens) == (50, 1000, 10)  # the paper's
    for name, noise in (("4.3", 0.05), ("4.4", 0.01)):
        spec = TOYS[f"toy-robustness-{name}"].paper
        assert (spec.assumption, spec.noise, spec.log10_alpha, spec.threshold) == (name, noise, -32, 1e-5)
