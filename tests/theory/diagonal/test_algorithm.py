"""Algorithm 1: closed forms, agreement with the flow, leaving and returning, ties, finite α, degenerate input."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankrise import theory


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _head(seed: int) -> tuple[theory.DiagonalNetwork, Tensor, Tensor]:
    x, y, _ = theory.teacher_task(samples=100, tokens=4, dim=4, seed=seed)
    return theory.attention_head(x, y), *theory.gaussian_start(8, seed=seed)


def _order(times: Tensor) -> list[int]:
    return [i for i in torch.argsort(times, stable=True).tolist() if math.isfinite(times[i])]


def _classifier(l2: float = 0.0) -> theory.DiagonalNetwork:
    """Two classes that a line through the origin separates."""
    x = _draw(40, 3)
    labels = (x[:, 0] > 0).long()

    def h(x: Tensor, q: Tensor) -> Tensor:
        return torch.stack([x @ q, -(x @ q)], dim=-1)

    return theory.DiagonalNetwork(h, x, labels, num_weights=3, loss="cross_entropy", l2=l2)


def test_orthogonal_features_activate_at_one_over_gradient() -> None:
    target = torch.tensor([2.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    net = theory.linear(2 * torch.eye(4, dtype=torch.float64), 2 * target)
    stages = theory.incremental_stages(net)
    assert stages.coordinates == (0, 1, 2)
    assert stages.signs == (1, -1, 1)
    assert stages.supports == ((), (0,), (0, 1), (0, 1, 2))
    torch.testing.assert_close(stages.times, 1 / target[:3].abs())  # T_i = 1/|g_i(0)|, g(0) = target
    torch.testing.assert_close(stages.products[-1], target, rtol=0, atol=1e-12)
    assert stages.activation_times().tolist() == [0.5, 1.0, 2.0, math.inf]
    # b moves by -g Δ: equation (10)
    torch.testing.assert_close(stages.log_weights[0], torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(stages.log_weights[1], torch.tensor([0.0, 1.5, 0.75, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("small", [1e-3, 1e-5, 1e-7, 2e-9])
def test_a_tiny_product_joins_once(small: float) -> None:
    x = 2**0.5 * torch.eye(2, dtype=torch.float64)
    stages = theory.incremental_stages(theory.linear(x, x @ torch.tensor([1.0, small], dtype=torch.float64)))
    assert stages.coordinates == (0, 1)
    assert stages.status is theory.Status.FINISHED
    torch.testing.assert_close(stages.times, torch.tensor([1.0, 1 / small], dtype=torch.float64))
    torch.testing.assert_close(stages.products[-1], torch.tensor([1.0, small], dtype=torch.float64), rtol=1e-6, atol=0)


def test_rounding_of_float32_data_makes_no_stage_twice() -> None:
    x = _draw(50, 4).float()
    stages = theory.incremental_stages(theory.linear(x, x @ torch.tensor([1.0, -2.0, 0.5, 0.0])))
    assert stages.status is theory.Status.FINISHED
    assert len(set(stages.coordinates)) == len(stages.coordinates)
    assert bool((stages.times.diff() > 0).all())


@pytest.mark.parametrize("seed", [3, 19])
def test_flow_at_a_tiny_alpha_has_the_times_of_the_limit(seed: int) -> None:
    net, u0, v0 = _head(seed)
    stages = theory.incremental_stages(net)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-1_000_000, t_end=1.05 * float(stages.times[-1]))
    torch.testing.assert_close(theory.activation_times(flow), stages.activation_times(), rtol=1e-4, atol=0)
    assert flow.num_gradients + flow.num_jacobian_columns < 3000
    torch.testing.assert_close(flow.products[-1], stages.products[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 3, 19])
def test_finite_alpha_form_predicts_that_very_run(seed: int) -> None:
    net, u0, v0 = _head(seed)
    predicted = theory.incremental_stages(net, u0, v0, log10_alpha=-32)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-32, t_end=1.05 * float(predicted.times[-1]))
    measured = theory.activation_times(flow)
    assert _order(predicted.activation_times()) == _order(measured)
    torch.testing.assert_close(predicted.activation_times(), measured, rtol=5e-3, atol=0)


def test_a_coordinate_leaves_and_returns_with_the_other_sign() -> None:
    net, u0, v0 = _head(44)
    stages = theory.incremental_stages(net)
    (stage,) = [k for k, certificate in enumerate(stages.certificates) if certificate.left]
    (i,) = stages.certificates[stage].left
    entered, returned = (k for k, winner in enumerate(stages.coordinates) if winner == i)
    assert entered < stage < returned
    assert stages.signs[entered] == -stages.signs[returned]
    assert len(stages.coordinates) == 9
    # The flow does the same: its product has one sign before, none in between, the other sign after.
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-10_000, t_end=1.05 * float(stages.times[-1]))
    middle = 0.5 * (stages.times[1:] + stages.times[:-1])
    q = flow.at(torch.stack([middle[entered], middle[returned - 1], flow.times[-1]]))[:, i]
    torch.testing.assert_close(q, stages.products[[entered + 1, returned, -1], i], rtol=0, atol=1e-5)
    assert abs(float(q[1])) < 1e-9
    assert float(q[0] * q[2]) < 0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), linear=st.booleans())
def test_plateaus_of_the_flow_have_the_supports_of_the_stages(seed: int, linear: bool) -> None:
    x, y, _ = theory.teacher_task(samples=30, tokens=3, dim=2, seed=seed)
    net = theory.linear(x.reshape(90, 2), y[..., 0].reshape(90)) if linear else theory.attention_head(x, y)
    stages = theory.incremental_stages(net)
    assert stages.status is theory.Status.FINISHED
    assert bool((stages.losses.diff() <= 1e-12 * stages.losses[0]).all())
    assert bool((stages.times.diff() > 0).all())
    t_end = 1.1 * float(stages.times[-1])
    flow = theory.solve_flow(net, *theory.gaussian_start(net.num_weights, seed=seed), log10_alpha=-1e6, t_end=t_end)
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), stages.times, torch.tensor([t_end], dtype=torch.float64)])
    for q, support in zip(flow.at(0.5 * (edges[1:] + edges[:-1])), stages.supports, strict=True):
        assert tuple((q.abs() > 1e-9).nonzero().flatten().tolist()) == support


def test_support_grows_by_at_most_one_in_a_transformer() -> None:
    """Example 4.6: a two-layer transformer of one head, through all its stages."""
    x = _draw(200, 4, 4)
    teacher = theory.transformer(x, x, layers=2, heads=1)
    net = theory.transformer(x, teacher.h(x, 0.5 * _draw(2, 16, seed=1).prod(0)), layers=2, heads=1)
    stages = theory.incremental_stages(net)
    assert stages.status is theory.Status.FINISHED
    assert len(stages.coordinates) >= 10
    for before, after in zip(stages.supports, stages.supports[1:], strict=False):
        assert len(set(after) - set(before)) <= 1
    assert all(len(group) == 1 for group in stages.groups)
    # θ^k is stationary on its support.
    for q, support in zip(stages.products, stages.supports, strict=True):
        assert float(net.gradient(q)[list(support)].abs().max() if support else 0.0) < 1e-9


def test_exchangeable_heads_tie_and_split_by_theta0() -> None:
    x = _draw(60, 3, 2)
    teacher = theory.transformer(x, x, layers=1, heads=2)
    net = theory.transformer(x, teacher.h(x, _draw(2, 8, seed=3).prod(0)), layers=1, heads=2)
    stages = theory.incremental_stages(net, max_stages=2)
    first = stages.groups[0]
    assert first[1] == first[0] + 4  # the same coordinate of both heads
    assert not stages.certificates[0].unique
    assert "the limit is not unique" in stages.certificates[0].verdict
    # Equal starts stay equal.
    torch.testing.assert_close(stages.products[1][first[0]], stages.products[1][first[1]])
    u0, v0 = theory.gaussian_start(8, seed=0)
    for log10_alpha in (-64, -1024):
        flow = theory.solve_flow(net, u0, v0, log10_alpha=log10_alpha, t_end=1.02 * float(stages.times[0]))
        times = theory.activation_times(flow)[list(first)]
        inverse = -log10_alpha * math.log(10)
        assert float((times - stages.times[0]).abs().max()) * inverse < 10  # as a group, to within O(1/log(1/α))
        split = flow.products[-1][list(first)]
        assert abs(float(split[0] - split[1])) > 1e-3  # but not equally
        predicted = theory.incremental_stages(net, u0, v0, log10_alpha=log10_alpha, max_stages=2)
        torch.testing.assert_close(predicted.activation_times()[list(first)], times, rtol=5e-3, atol=0)


def test_tied_heads_stay_equal_through_all_stages() -> None:
    """The symmetric path is unstable; rounding must not choose between the heads."""
    x = _draw(30, 3, 2, seed=3)
    target = torch.tanh(x * torch.tensor([1.5, -0.7], dtype=torch.float64))
    stages = theory.incremental_stages(theory.transformer(x, target, layers=1, heads=2))
    assert stages.status is theory.Status.FINISHED
    assert stages.groups == ((3, 7), (1, 5), (2, 6), (0, 4))
    assert torch.equal(stages.products[:, :4], stages.products[:, 4:])
    assert not any(certificate.holds for certificate in stages.certificates)
    assert stages.certificates[-1].minimum_constant < 0  # a saddle: the flow leaves the symmetric path


def test_features_of_opposite_sign_tie_and_stay_opposite() -> None:
    x = _draw(30, 2)
    net = theory.linear(torch.cat([x, -x[:, :1]], dim=1), x @ torch.tensor([1.0, -0.3], dtype=torch.float64))
    stages = theory.incremental_stages(net)
    assert stages.groups == ((0, 2), (1,))
    torch.testing.assert_close(stages.products[-1], torch.tensor([0.5, -0.3, -0.5], dtype=torch.float64))


def test_a_tie_without_symmetry_is_followed_one_by_one() -> None:
    """Equal gradients at zero, unequal curvatures: the products must not be held equal."""
    x = torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64))
    stages = theory.incremental_stages(theory.linear(x, torch.tensor([2.0, 1.0], dtype=torch.float64)))
    assert stages.groups == ((0, 1),)
    torch.testing.assert_close(stages.products[-1], torch.tensor([1.0, 0.25], dtype=torch.float64))


def test_symmetric_data_tie() -> None:
    x = _draw(30, 2)
    net = theory.linear(torch.cat([x, x[:, :1]], dim=1), x @ torch.tensor([1.0, -0.3], dtype=torch.float64))
    stages = theory.incremental_stages(net)
    assert stages.groups == ((0, 2), (1,))
    assert stages.certificates[0].minimum_constant == 0.0  # a valley, not a strict minimum
    assert not stages.certificates[1].holds
    assert "failed at stage 1, a tie" in stages.certificates[1].verdict
    torch.testing.assert_close(stages.products[-1], torch.tensor([0.5, -0.3, 0.5], dtype=torch.float64))


def test_no_gradient_means_no_stages() -> None:
    stages = theory.incremental_stages(theory.linear(_draw(10, 3), torch.zeros(10)))
    assert stages.coordinates == stages.groups == stages.signs == stages.certificates == ()
    assert stages.times.shape == (0,)
    assert stages.products.shape == (1, 3)
    assert stages.status is theory.Status.FINISHED


def test_cross_entropy_without_regularisation_is_unbounded() -> None:
    stages = theory.incremental_stages(_classifier())
    assert stages.status is theory.Status.UNBOUNDED
    assert "`l2`" in stages.status.remedy
    # Phase A is valid: the winner and its time are recorded, and that nothing follows.
    assert stages.coordinates == theory.incremental_stages(_classifier(l2=0.01)).coordinates[: len(stages.coordinates)]
    assert len(stages.coordinates) >= 1
    assert len(stages.products) == len(stages.coordinates) + 1
    assert not stages.certificates[-1].holds
    assert "Phase B has no limit" in stages.certificates[-1].verdict
    assert theory.incremental_stages(_classifier(l2=0.01)).status is theory.Status.FINISHED


def test_max_stages() -> None:
    net, _, _ = _head(0)
    stages = theory.incremental_stages(net, max_stages=2)
    assert stages.status is theory.Status.MAX_STAGES
    assert len(stages.coordinates) == 2
    assert len(stages.products) == len(stages.losses) == len(stages.supports) == len(stages.log_weights) == 3
    whole = theory.linear(torch.eye(1), torch.ones(1))
    assert theory.incremental_stages(whole, max_stages=1).status is theory.Status.FINISHED


def test_all_above_the_threshold_from_the_start() -> None:
    net = theory.linear(_draw(20, 3), _draw(20, seed=1))
    stages = theory.incremental_stages(net, *theory.gaussian_start(3), log10_alpha=-1)
    assert stages.activation_times().tolist() == [0.0, 0.0, 0.0]
    assert stages.groups == ((0, 1, 2),)
    assert len(stages.certificates[0].tied) == 1
    assert not stages.certificates[0].holds
    assert "from the start" in stages.certificates[0].verdict
    torch.testing.assert_close(net.gradient(stages.products[-1]), torch.zeros(3, dtype=torch.float64))


def test_large_weights_with_small_products_wait_for_the_product() -> None:
    """u0 = 1, v0 = 0.001 at α = 0.1: w and ŵ are above the wall from the start, their product is not."""
    x = 2**0.5 * torch.eye(2, dtype=torch.float64)
    net = theory.linear(x, x @ torch.tensor([1.0, -2.0], dtype=torch.float64))
    u0, v0 = torch.ones(2), torch.full((2,), 0.001)
    stages = theory.incremental_stages(net, u0, v0, log10_alpha=-1)
    measured = theory.activation_times(theory.solve_flow(net, u0, v0, log10_alpha=-1, t_end=5.0))
    assert stages.groups == ((1,), (0,))
    torch.testing.assert_close(stages.activation_times(), measured, rtol=5e-3, atol=0)


def test_a_head_at_a_large_alpha() -> None:
    x, y, _ = theory.teacher_task(samples=50, tokens=5, dim=4, seed=0)
    net, (u0, v0) = theory.attention_head(x, y), theory.gaussian_start(8, seed=0)
    stages = theory.incremental_stages(net, u0, v0, log10_alpha=-1)
    measured = theory.activation_times(theory.solve_flow(net, u0, v0, log10_alpha=-1, t_end=5.0))
    assert stages.groups == ((0, 1, 2, 3, 4, 5, 7), (6,))
    torch.testing.assert_close(stages.activation_times(), measured, rtol=5e-3, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log10_alpha": -8.0}, r"must be given together; got only log10_alpha: pass all three"),
        ({"u0": torch.ones(2), "v0": torch.zeros(2), "log10_alpha": 1.0}, r"`log10_alpha` must be negative"),
        ({"u0": torch.ones(2), "v0": -torch.ones(2), "log10_alpha": -8.0}, r"Assumption 4.2"),
        ({"max_stages": -1}, r"`max_stages` must be zero or positive; got -1"),
        ({"threshold": 0.0}, r"`threshold` must lie in \(0, 1\); got 0.0"),
    ],
)
def test_errors(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.incremental_stages(theory.linear(torch.eye(2), torch.ones(2)), **arguments)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_many_heads(seed: int) -> None:
    """Limit times, plateaus, cost and predictions on a population of 8-weight heads."""
    net, u0, v0 = _head(seed)
    stages = theory.incremental_stages(net)
    t_end = 1.05 * float(stages.times[-1])
    flows = {a: theory.solve_flow(net, u0, v0, log10_alpha=a, t_end=t_end) for a in (-8, -32, -1_000_000)}
    cost = {a: flow.num_gradients + flow.num_jacobian_columns for a, flow in flows.items()}
    assert cost[-1_000_000] <= 3 * cost[-8]
    assert cost[-1_000_000] <= 3000
    torch.testing.assert_close(theory.activation_times(flows[-1_000_000]), stages.activation_times(), rtol=1e-4, atol=0)
    predicted = theory.incremental_stages(net, u0, v0, log10_alpha=-32).activation_times()
    measured = theory.activation_times(flows[-32])
    seen = measured.isfinite()
    assert _order(predicted.where(seen, math.inf)) == _order(measured)
    torch.testing.assert_close(predicted[seen], measured[seen], rtol=5e-3, atol=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_toy_keeps_the_order_of_the_limit() -> None:
    """The paper's toy: the first ten stages in Algorithm 1's order from 1e-300 on."""
    x, y, _ = theory.teacher_task(seed=1)
    net = theory.attention_head(x, y)
    u0, v0 = theory.gaussian_start(100, seed=1)
    stages = theory.incremental_stages(net, max_stages=10)
    for log10_alpha in (-300, -10_000, -1_000_000):
        flow = theory.solve_flow(net, u0, v0, log10_alpha=log10_alpha, t_end=1.02 * float(stages.times[-1]))
        assert _order(theory.activation_times(flow))[:10] == list(stages.coordinates)
