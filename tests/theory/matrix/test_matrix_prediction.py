"""Stage times at finite α: against the flow, against known times, after turns, and where they cannot be trusted."""

import functools
import math

import numpy as np
import pytest
import torch
from tests.theory.make_matrix_reference import STEP, joining_time, load_reference
from tests.theory.matrix.instances import anisotropic_sensing, head, sensing, start

from rankrise import theory


@functools.cache
def stages_of_sensing(seed):
    return theory.matrix_stages(sensing(seed), t_end=4.0, rtol=1e-5)


# T_3 of 4 x 4 sensing, seed 0, from a flow in graded columns that shares no code with the package.
FLOW_TIMES = {-16: 2.02918, -32: 2.15597, -64: 2.21939, -128: 2.25110, -256: 2.26696, -1000: 2.27875}


@pytest.mark.parametrize(("log10_alpha", "time"), FLOW_TIMES.items())
def test_times_of_sensing_are_those_of_the_flow(log10_alpha, time):
    stages = stages_of_sensing(0)
    prediction = stages.predict(start(sensing(0), 0), log10_alpha=log10_alpha)
    assert float(prediction.times[2]) == pytest.approx(time, abs=1e-5)
    assert prediction.status is theory.Status.FINISHED
    assert not any(prediction.flagged)


def test_predictions_tend_to_the_limit_as_one_over_log_alpha():
    stages = stages_of_sensing(0)
    errors = []
    for log10_alpha in (-64, -256, -1_000_000):
        prediction = stages.predict(start(sensing(0), 0), log10_alpha=log10_alpha)
        errors.append((prediction.times - stages.times).abs())
    torch.testing.assert_close(errors[0] / errors[1], torch.full((3,), 4.0, dtype=torch.float64), rtol=0.01, atol=0)
    assert errors[2].max() < 1e-5


@pytest.mark.parametrize("case", load_reference(), ids=lambda case: f"{case['seed']} at 1e{case['log10_alpha']}")
def test_a_direction_that_turned_joins_when_cayley_steps_say(case):
    net = anisotropic_sensing(case["seed"], 2, 6)
    stages = theory.matrix_stages(net, t_end=8.0, rtol=1e-6)
    prediction = stages.predict(start(net, case["seed"]), log10_alpha=case["log10_alpha"])
    assert float(prediction.times[1]) == pytest.approx(case["time"], rel=2e-6)
    assert prediction.turned == (1,)
    assert not any(prediction.flagged)


def test_a_turned_direction_of_three_is_where_the_flow_finds_it():
    """3 x 3 sensing, seed 72; at 1e-16 the last two columns are too close for the prediction, and it says so."""
    stages = theory.matrix_stages(sensing(72, 3, 3), rtol=1e-6)
    assert float(stages.times[2]) == pytest.approx(9.378, abs=1e-3)
    assert stages.certificates[1].sign_flips == (0,)
    weights = start(stages._net, 72)
    for log10_alpha in (-32, -64, -1000):
        flow = theory.solve_matrix_flow(stages._net, weights, log10_alpha=log10_alpha, t_end=9.5, times=[9.5])
        prediction = stages.predict(weights, log10_alpha=log10_alpha)
        assert float(prediction.times[2]) == pytest.approx(float(flow.stage_times[2]), rel=1e-6)
    assert theory.Flag.TURNED in stages.predict(weights, log10_alpha=-16).flags[2]


@pytest.mark.slow
def test_the_reference_of_turned_directions_can_be_made_again():
    """One case at the coarse step; the stored one came from the same program."""
    case = load_reference()[0]
    time = joining_time(case["seed"], case["log10_alpha"], STEP)
    assert time == pytest.approx(case["coarse"], rel=1e-9)
    assert abs(case["fine"] - case["time"]) < abs(case["coarse"] - case["time"]) / 3


def test_times_of_a_head_are_those_of_its_flow():
    net = head(5, 2, 24, 4)
    stages, weights = theory.matrix_stages(net, max_stages=3, rtol=1e-4), start(net, 5)
    prediction = stages.predict(weights, log10_alpha=-12)
    end = 1.05 * float(prediction.times.max())
    flow = theory.solve_matrix_flow(net, weights, log10_alpha=-12, t_end=end, times=[end], method="plain")
    trusted = [k for k, flagged in enumerate(prediction.flagged) if not flagged]
    assert len(trusted) >= 1
    for k in trusted:
        assert float(prediction.times[k]) == pytest.approx(float(flow.stage_times[k]), rel=1e-3)


def test_deep_networks_are_predicted_also_where_a_product_has_no_gradient_yet():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 3, 2, generator=generator, dtype=torch.float64)
    net = theory.matrix_transformer(x, torch.tanh(x.flip(1)), layers=2, heads=1)
    stages = theory.matrix_stages(net, max_stages=3, rtol=1e-3)
    for log10_alpha in (-2, -16, -1_000_000):
        prediction = stages.predict(start(net, 0), log10_alpha=log10_alpha)
        assert prediction.times.isfinite().all()
    torch.testing.assert_close(prediction.times, stages.times, rtol=1e-4, atol=0)


def test_a_prediction_needs_no_gradient_and_prints_as_a_table():
    stages = stages_of_sensing(0)
    net = stages._net
    before = net.__class__._chunk_gradient
    try:
        net.__class__._chunk_gradient = None
        prediction = stages.predict(start(net, 0), log10_alpha=-64)
    finally:
        net.__class__._chunk_gradient = before
    lines = str(prediction).splitlines()
    assert lines[0].startswith("stage          time  flags (log10 α = -64, threshold 0.001)")
    assert len(lines) == len(stages.times) + 2


def test_transitions_that_overlap_are_flagged_and_the_flag_is_inherited():
    net = head(0, 2, 32, 4)
    stages = theory.matrix_stages(net, rtol=1e-4)
    large = stages.predict(start(net, 0), log10_alpha=-1)
    assert any(theory.Flag.OVERLAP in flags for flags in large.flags)
    first = large.flagged.index(True)
    assert all(large.flagged[first:])
    assert not any(stages.predict(start(net, 0), log10_alpha=-10_000).flagged)
    never = stages.predict(start(net, 0), log10_alpha=-10_000, threshold=1e3)
    assert math.isinf(never.times[0])
    assert never.flags[0] == (theory.Flag.NEVER,)
    assert all(flag.meaning for flag in theory.Flag)


def test_equal_singular_values_are_flagged():
    """At 1e-32 the second time is 0.4947 and predicted as 0.5040, because the start decides the directions."""
    net = theory.matrix_sensing(2 * torch.eye(4).reshape(4, 2, 2), [4.0, 0.0, 0.0, 4.0])
    stages = theory.matrix_stages(net)
    factors = [torch.tensor([[1.0, 0.5], [-0.5, 1.0]]), torch.tensor([[0.3, 0.2], [0.1, 0.9]])]
    prediction = stages.predict(factors, alpha=1e-32)
    assert prediction.flags == ((theory.Flag.TIED,),) * 2
    assert "stage 1: The two largest singular values are equal" in str(stages)


def test_a_turn_that_columns_cannot_follow_is_said():
    net = anisotropic_sensing(131, 2, 6)
    stages = theory.matrix_stages(net, ranks=[3], t_end=8.0, rtol=1e-4)
    rng = np.random.default_rng(0)
    prediction = stages.predict(list(rng.standard_normal((2, 2, 3))), log10_alpha=-64)
    assert prediction.status is theory.Status.SIGN_FLIP
    assert prediction.flags == ((), (theory.Flag.TURNED,))


def test_a_direction_that_left_is_flagged():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4)) @ (np.eye(4) + 1.5 * rng.standard_normal((4, 4)))
    y = 3 * rng.standard_normal(6)
    net = theory.MatrixNetwork(
        lambda x, *m: (x * torch.cat([part.reshape(1) for part in m])).sum(-1), x, y, shapes=[(1, 1)] * 4
    )
    stages = theory.matrix_stages(net, rtol=1e-3)
    prediction = stages.predict([torch.ones(1, 1), 0.5 * torch.ones(1, 1)] * 4, log10_alpha=-32)
    back = [k for k, j in enumerate(stages.matrices) if j in stages.matrices[:k]]
    assert back
    assert theory.Flag.LEFT in prediction.flags[back[0]]


@pytest.mark.parametrize("seed", [302, 305])
def test_a_plateau_shorter_than_the_transition_before_it_is_flagged(seed):
    """At 1e-64 these times err by 6e-5 to 3e-4, because the transition before them is not over when they begin."""
    net = anisotropic_sensing(seed, 3, 14)
    stages = theory.matrix_stages(net, t_end=8.0, max_stages=2, rtol=1e-5)
    assert stages.predict(start(net, seed), log10_alpha=-64).flagged == (False, True)
    assert stages.predict(start(net, seed), log10_alpha=-1_000_000).flagged == (False, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log10_alpha": 0.0}, r"`log10_alpha` must be negative and finite; got 0.0"),
        ({"log10_alpha": -math.inf}, r"`log10_alpha` must be negative and finite"),
        ({"log10_alpha": None}, r"`alpha` or `log10_alpha` must be given, and not both"),
        ({"start": [torch.zeros(4, 4)] * 2}, r"must be linearly independent.* got 4 columns of rank 0 in product 0"),
        ({"start": 3.0}, r"`start` must hold two factors for each product; got float"),
        ({"threshold": 0.0}, r"`threshold` must be positive; got 0.0"),
        ({"start": [torch.ones(4, 4)]}, r"`start` must hold two factors for each product"),
        ({"start": [torch.ones(4, 3)] * 2}, r"put A_1, B_1, A_2, B_2, ... in this order"),
        ({"start": [torch.full((4, 4), torch.nan)] * 2}, r"`start` must be finite"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    arguments = {"start": start(sensing(0), 0), "log10_alpha": -32} | changes
    with pytest.raises(ValueError, match=message):
        stages_of_sensing(0).predict(arguments.pop("start"), **arguments)
