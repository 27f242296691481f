"""The flow of full matrices: graded columns against plain float64, Cayley steps, predictions, Algorithm 1; refusals."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.theory.make_matrix_reference import COARSE, SENSING, load_many_digits, load_reference, sensing_times
from tests.theory.matrix.instances import anisotropic_sensing, head, head_data, sensing, start
from tests.theory.oracles import matrix_flow

from rankrise import theory


def solve(net, seed, log10_alpha, t_end, **options):
    """Only the last time is asked for: others cost gradients."""
    options = {"times": [t_end], **options}
    return theory.solve_matrix_flow(net, start(net, seed), log10_alpha=log10_alpha, t_end=t_end, **options)


@pytest.mark.parametrize(("seed", "d", "log10_alpha"), [(5, 2, -4), (1, 3, -8)])
def test_graded_columns_agree_with_the_plain_method(seed, d, log10_alpha):
    net, times = head(seed, d, 24, 4), np.linspace(0, 1.5, 6)
    graded = solve(net, seed, log10_alpha, 1.5, times=times, rtol=1e-11)
    plain = solve(net, seed, log10_alpha, 1.5, times=times, rtol=1e-12, method="plain")
    for ours, theirs in zip(graded.singular_values, plain.singular_values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    for ours, theirs in zip(graded.factors, plain.factors, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)  # which rotation of both factors, M does not see
    torch.testing.assert_close(graded.losses, plain.losses, rtol=0, atol=1e-8)
    assert graded.matrices == plain.matrices
    assert graded.ranks == plain.ranks
    torch.testing.assert_close(graded.stage_times, plain.stage_times, rtol=0, atol=1e-7)
    for drift in graded.drifts:
        assert drift.max() < 1e-8


def test_the_plain_method_equals_an_independent_implicit_integration():
    x, y = head_data(0, 3, 12, 3)
    factors = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    times = np.linspace(0, 2, 5)
    reference = matrix_flow(x, y, list(factors.numpy()), alpha=1e-3, times=times)
    for method in ("plain", "graded"):
        flow = theory.solve_matrix_flow(
            theory.matrix_head(x, y), list(factors), log10_alpha=-3, t_end=2.0, times=times, method=method
        )
        for values, i in zip(flow.singular_values, (0, 2), strict=True):
            products = reference[:, i] @ reference[:, i + 1].swapaxes(1, 2)
            np.testing.assert_allclose(values, np.linalg.svd(products, compute_uv=False)[:, :2], atol=1e-6)
        np.testing.assert_allclose(torch.stack(flow.factors), reference[-1], atol=1e-5)


# T_3 of 4 x 4 sensing, seed 0, from a flow in graded columns that shares no code with the package.
OUTSIDE = {-16: 2.02918, -64: 2.21939, -1000: 2.27875}


def test_sensing_costs_the_same_at_every_alpha_and_has_the_times_of_another_program():
    net = sensing(0)
    flows = {log10_alpha: solve(net, 0, log10_alpha, 3.0) for log10_alpha in (*OUTSIDE, -1_000_000)}
    for log10_alpha, time in OUTSIDE.items():
        assert float(flows[log10_alpha].stage_times[2]) == pytest.approx(time, abs=1e-5)
    for log10_alpha in (-1000, -1_000_000):
        assert flows[log10_alpha].num_gradients <= 1.3 * flows[-64].num_gradients
    assert all(flow.status is theory.Status.FINISHED for flow in flows.values())
    logs = flows[-1_000_000].log10_singular_values[0][-1]
    assert logs[2] > -1
    assert -2_000_000 < logs[3] < -1000


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 201, 202))])
def test_times_of_sensing_tend_to_the_limit_as_one_over_log_alpha(seed):
    net = sensing(seed)
    stages = theory.matrix_stages(net, rtol=1e-4)
    flows = [solve(net, seed, log10_alpha, 1.05 * float(stages.times[-1])) for log10_alpha in (-64, -256)]
    far, near = (flow.stage_times - stages.times for flow in flows)
    assert (near.abs() <= 0.02 * stages.times).all()
    assert ((far / near - 4).abs() < 0.2).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [61, 62])
def test_a_head_has_the_order_of_the_limit_and_the_times_that_are_predicted(seed):
    net = head(seed, 2, 24, 4)
    stages = theory.matrix_stages(net, rtol=1e-6, max_stages=3)
    predicted = stages.predict(start(net, seed), log10_alpha=-256)
    flows = [solve(net, seed, log10_alpha, 1.01 * float(predicted.times[-1])) for log10_alpha in (-64, -256, -1000)]
    count = len(predicted.times)
    assert flows[1].matrices[:count] == stages.matrices
    assert not any(predicted.flagged)
    torch.testing.assert_close(flows[1].stage_times[:count], predicted.times, rtol=1e-5, atol=0)
    assert flows[2].num_gradients <= 2 * flows[0].num_gradients


@pytest.mark.parametrize("case", load_reference(), ids=lambda case: f"{case['seed']} at 1e{case['log10_alpha']}")
def test_a_direction_that_turned_joins_when_cayley_steps_say(case):
    net = anisotropic_sensing(case["seed"], 2, 6)
    flow = solve(net, case["seed"], case["log10_alpha"], 1.05 * case["time"])
    assert float(flow.stage_times[1]) == pytest.approx(case["time"], rel=1e-6)
    assert flow.turned == (0,)
    assert flow.status is theory.Status.FINISHED


@pytest.mark.parametrize("rtol", [1e-7, 1e-9])
def test_the_time_after_a_turn_does_not_depend_on_the_tolerance(rtol):
    """3 x 3 sensing, seed 72: a flow that lets rounding refill the last column errs from the third digit on."""
    flow = solve(sensing(72, 3, 3), 72, -32, 9.3, rtol=rtol)
    assert float(flow.stage_times[2]) == pytest.approx(9.255003, abs=5e-6)
    assert flow.turned == (0,)


def test_a_turn_that_nobody_can_follow_is_said():
    """With more columns than rows the last direction is no column of its own."""
    net = anisotropic_sensing(131, 2, 6)
    factors = np.random.default_rng(0).standard_normal((2, 2, 3))
    flow = theory.solve_matrix_flow(net, list(factors), log10_alpha=-64, t_end=1.0, times=[1.0])
    assert flow.status is theory.Status.SIGN_FLIP


def test_single_numbers_follow_the_diagonal_flow():
    x, y = head_data(3, 1, 12, 3)
    u0, v0 = torch.tensor([1.5, 1.3]), torch.tensor([0.5, -0.2])
    factors = [w.reshape(1, 1) for w in (u0[0], v0[0], u0[1], v0[1])]
    for log10_alpha in (-3, -32):
        times = [1.0, 1.5]
        flow = theory.solve_matrix_flow(
            theory.matrix_head(x, y), factors, log10_alpha=log10_alpha, t_end=1.5, times=times, rtol=1e-10
        )
        diagonal = theory.solve_flow(
            theory.attention_head(x, y), u0, v0, log10_alpha=log10_alpha, t_end=1.5, rtol=1e-7
        ).at(times)
        for j in range(2):
            torch.testing.assert_close(flow.singular_values[j][:, 0], diagonal[:, j].abs(), rtol=1e-5, atol=1e-5)


def test_times_at_1e_32_are_those_of_84_digits():
    """3 x 3 sensing, all three stages, by Runge and Kutta's method of order 4, extrapolated and frozen as data."""
    reference = load_many_digits()
    net = sensing(reference["settings"]["seed"], 3, 3)
    flow = solve(net, reference["settings"]["seed"], reference["settings"]["log10_alpha"], 1.05, rtol=1e-11)
    torch.testing.assert_close(flow.stage_times, torch.tensor(reference["times"]).double(), rtol=1e-7, atol=0)


@pytest.mark.slow
def test_the_reference_of_84_digits_can_be_made_again():
    """The first stage at the coarse step; the stored one came from the same program."""
    reference = load_many_digits()
    again = sensing_times(**SENSING, step=COARSE, num_stages=1)
    assert again == pytest.approx(reference["coarse"][:1], rel=1e-12)
    for coarse, fine, time in zip(reference["coarse"], reference["fine"], reference["times"], strict=True):
        assert abs(fine - time) < abs(coarse - time) / 8


def test_a_start_of_equal_factors_has_no_partner_to_turn():
    """With AᵀA = BᵀB nothing is conserved but zero, and ŵ of the last direction is zero."""
    net = sensing(0, 2, 2)
    flow = theory.solve_matrix_flow(net, [torch.eye(2)] * 2, alpha=1e-32)
    stages = theory.matrix_stages(net)
    assert flow.status is theory.Status.FINISHED
    assert float(flow.times[-1]) == pytest.approx(1.2 * float(stages.times[-1]), rel=1e-6)
    torch.testing.assert_close(flow.stage_times, stages.times, rtol=0.1, atol=0)
    assert str(flow).splitlines()[0].split() == ["stage", "time", "matrix", "rank"]
    assert "finished: Nothing to do" in str(flow)


def test_balancedness_is_kept_and_the_loss_falls():
    net = head(0, 3, 60, 5)
    flow = solve(net, 0, -4, 2.5, times=np.linspace(0, 2.5, 6))
    assert flow.status is theory.Status.FINISHED
    assert max(float(drift.max()) for drift in flow.drifts) < 1e-7
    assert (flow.losses.diff() <= 1e-10).all()
    assert flow.losses[-1] < 0.9 * flow.losses[0]


def test_times_between_plateaus_are_recorded_on_the_way():
    net = sensing(0)
    dense = solve(net, 0, -64, 3.0, times=np.linspace(0, 3, 16))
    single = solve(net, 0, -64, 3.0)
    torch.testing.assert_close(dense.stage_times, single.stage_times, rtol=1e-9, atol=0)
    assert len(dense.times) == len(dense.losses) == 16
    logs = dense.log10_singular_values[0]
    assert logs[0, 0] == pytest.approx(-128, abs=2)
    assert (logs.diff(dim=1) <= 0).all()
    assert (dense.losses.diff() <= 1e-10).all()


def test_few_columns_bound_the_rank_and_many_do_not_disturb():
    net = sensing(5, 3, 5)
    for columns in (2, 8):
        rng = np.random.default_rng(columns)
        factors = rng.standard_normal((3, columns)), rng.standard_normal((5, columns))
        flow = theory.solve_matrix_flow(net, factors, log10_alpha=-64, t_end=2.0, times=[0.0, 2.0])
        stages = theory.matrix_stages(net, ranks=[columns], rtol=1e-4, t_end=2.0)
        assert flow.singular_values[0].shape == (2, min(3, columns))
        assert flow.factors[0].shape == (3, columns)
        predicted = stages.predict(factors, log10_alpha=-64).times
        torch.testing.assert_close(flow.stage_times, predicted[: len(flow.stage_times)], rtol=1e-4, atol=0)


@pytest.mark.parametrize("method", ["graded", "plain"])
def test_a_run_that_cannot_finish_ends_where_it_stopped_with_a_remedy(method):
    net = head(0, 3, 20, 4)
    flow = solve(net, 0, -4, 2.0, max_steps=5, times=None, method=method)
    assert flow.status is theory.Status.MAX_STEPS
    assert "Increase `max_steps`" in flow.status.remedy
    assert 0 < len(flow.times) == len(flow.losses) == len(flow.drifts[0]) < 201
    with pytest.raises(dataclasses.FrozenInstanceError):
        flow.status = theory.Status.FINISHED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log10_alpha": 0.0}, r"`log10_alpha` must be negative and finite; got 0.0"),
        ({"log10_alpha": -math.inf}, r"`log10_alpha` must be negative and finite"),
        ({"log10_alpha": "thirty"}, r"`log10_alpha` must be negative and finite; got 'thirty'"),
        ({"log10_alpha": -1e300}, r"`log10_alpha` must be at least -1e\+09; got -1e\+300: use the limit"),
        ({"alpha": 1e-8}, r"`alpha` or `log10_alpha` must be given, and not both"),
        ({"start": [torch.zeros(4, 4)] * 2}, r"must be linearly independent.* got 4 columns of rank 0 in product 0"),
        ({"start": [torch.ones(4, 2)] * 2}, r"must be linearly independent.* got 2 columns of rank 1 in product 0"),
        ({"start": None}, r"`start` must hold two factors for each product; got NoneType"),
        ({"log10_alpha": -17, "method": "plain"}, r"at least -16 for the plain method.*use method=\"graded\""),
        ({"method": "euler"}, r"`method` must be \"graded\" or \"plain\"; got 'euler'"),
        ({"threshold": 0.0}, r"`threshold` must be at least 1e-12; got 0.0"),
        ({"max_steps": 0}, r"`max_steps` must be at least 1; got 0"),
        ({"t_end": 0.0}, r"`t_end` must be positive and finite; got 0.0"),
        ({"rtol": 1e-15}, r"`rtol` must be from 1e-13"),
        ({"start": [torch.ones(4, 2)]}, r"`start` must hold two factors for each product"),
        ({"start": [torch.full((4, 2), torch.nan)] * 2}, r"`start` must be finite"),
        ({"times": [0.0, 2.0]}, r"`times` must be increasing rescaled times within \[0, t_end\]"),
        ({"times": [0.5, 0.2]}, r"`times` must be increasing"),
    ],
)
def test_bad_arguments_are_refused_with_the_rule_and_the_remedy(changes, message):
    arguments = {"start": start(sensing(0), 0), "log10_alpha": -8, "t_end": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        theory.solve_matrix_flow(sensing(0), arguments.pop("start"), **arguments)
