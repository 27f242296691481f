"""Flow: closed forms, invariants, independence of α, dense output, errors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from torch import Tensor

from rankrise import theory

THETA0 = torch.tensor([1.5, 0.3, -0.7]), torch.tensor([0.2, -1.1, 0.4])


def _orthogonal() -> theory.DiagonalNetwork:
    """Features with XᵀX / N = 1, so g = q* - q coordinate by coordinate."""
    return theory.linear(
        math.sqrt(3.0) * torch.eye(3, dtype=torch.float64), math.sqrt(3.0) * torch.tensor([2.0, -1.0, 0.5])
    )


def _head(seed: int = 0) -> tuple[theory.DiagonalNetwork, Tensor, Tensor]:
    x, y, _ = theory.teacher_task(samples=60, tokens=4, dim=4, seed=seed)
    return theory.attention_head(x, y), *theory.gaussian_start(8, seed=seed)


@pytest.mark.parametrize("log10_alpha", [-2.0, -16.0, -300.0, -1e6])
def test_orthogonal_features_activate_at_one_over_gradient(log10_alpha: float) -> None:
    flow = theory.solve_flow(_orthogonal(), *THETA0, log10_alpha=log10_alpha, t_end=3.0)
    times = theory.activation_times(flow)
    limit = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    inverse = -log10_alpha * math.log(10)
    assert flow.status is theory.Status.FINISHED
    assert float(((times - limit).abs() * inverse).max()) < 20  # times converge like 1/log(1/α)
    if log10_alpha == -1e6:
        torch.testing.assert_close(times, limit, rtol=1e-5, atol=0)


@pytest.mark.parametrize("log10_alpha", [-3.0, -32.0])
def test_one_coordinate_closed_form(log10_alpha: float) -> None:
    """dq/dt = 2 √(q² + c²/4) (1 - q) for one weight, by quadrature in the closed form of its integral."""
    net = theory.linear(torch.ones(1, 1), torch.ones(1))
    u0, v0 = torch.tensor([1.3]), torch.tensor([0.4])
    flow = theory.solve_flow(net, u0, v0, log10_alpha=log10_alpha, t_end=2.0, rtol=1e-7)
    # With x = e^{2s}: ds/dt = 1 - (c/4)(x - 1/x) is a Riccati equation in x, with roots x± of 1 - (c/4)(x - 1/x) = 0.
    inverse = -log10_alpha * math.log(10)
    c = (1.3**2 - 0.4**2) * 10 ** (2 * log10_alpha)
    s0 = math.atanh(0.4 / 1.3)
    root = math.sqrt(1 + c * c / 4)
    up, down = (1 + root) * 2 / c, -(c / 2) / (1 + root)
    for time, product in zip(flow.times.tolist(), flow.products[:, 0].tolist(), strict=True):
        x0 = math.exp(2 * s0)
        ratio = (x0 - down) / (up - x0) * math.exp(2 * root * time * inverse) if time * inverse < 340 else math.inf
        x = (up * ratio + down) / (1 + ratio) if math.isfinite(ratio) else up
        assert product == pytest.approx(c / 4 * (x - 1 / x), abs=1e-6)


def test_head_agrees_with_an_explicit_method_in_the_original_weights() -> None:
    net, u0, v0 = _head()
    inverse = 3 * math.log(10)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-3, t_end=4.0, rtol=1e-7)

    def field(_: float, theta: np.ndarray) -> np.ndarray:
        u, v = np.split(theta, 2)
        g = net.gradient(torch.from_numpy(u * v)).numpy()
        return np.concatenate([v * g, u * g])

    start = 1e-3 * np.concatenate([u0.numpy(), v0.numpy()])
    times = np.linspace(0, 4.0 * inverse, 40)
    reference = solve_ivp(field, (0, times[-1]), start, method="DOP853", rtol=1e-10, atol=1e-14, t_eval=times).y
    products = torch.from_numpy(reference[:8] * reference[8:]).T
    torch.testing.assert_close(
        flow.at(torch.from_numpy(times / inverse).clamp(max=float(flow.times[-1]))), products, rtol=0, atol=2e-6
    )


def test_invariants_and_orientation() -> None:
    net, u0, v0 = _head(2)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-2, t_end=5.0)
    torch.testing.assert_close(flow.u[0], 0.01 * u0)
    torch.testing.assert_close(flow.v[0], 0.01 * v0)
    torch.testing.assert_close(flow.u * flow.v, flow.products, rtol=1e-10, atol=1e-14)
    conserved = flow.u.square() - flow.v.square()  # Lemma 4.1
    torch.testing.assert_close(conserved, conserved[:1].expand_as(conserved), rtol=0, atol=1e-12)
    assert bool((flow.losses.diff() <= 1e-12).all())


def test_exchanging_u_and_v_or_their_signs_changes_nothing() -> None:
    net, u0, v0 = _head(3)
    flows = [theory.solve_flow(net, *start, log10_alpha=-32, t_end=1.5) for start in ((u0, v0), (v0, u0), (-u0, -v0))]
    torch.testing.assert_close(flows[0].products, flows[1].products)
    torch.testing.assert_close(flows[0].products, flows[2].products)
    torch.testing.assert_close(flows[0].u, flows[1].v)


def test_cost_does_not_grow_with_log_alpha() -> None:
    net, u0, v0 = _head(3)
    cost = {}
    for log10_alpha in (-8, -1_000_000):
        flow = theory.solve_flow(net, u0, v0, log10_alpha=log10_alpha, t_end=10.0)
        cost[log10_alpha] = flow.num_gradients + flow.num_jacobian_columns
    assert cost[-1_000_000] < 2 * cost[-8]
    assert cost[-1_000_000] < 600


def test_dense_output_meets_the_steps_and_the_crossings() -> None:
    net, u0, v0 = _head(3)
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-32, t_end=1.5)
    torch.testing.assert_close(flow.at(flow.times), flow.products, rtol=1e-9, atol=1e-12)
    times = theory.activation_times(flow, threshold=1e-3)
    for i in times.isfinite().nonzero().flatten().tolist():
        assert abs(float(flow.at(times[i : i + 1])[0, i])) == pytest.approx(1e-3, rel=1e-6)


def test_above_the_threshold_from_the_start_is_zero_and_never_is_inf() -> None:
    net = theory.linear(torch.eye(2, dtype=torch.float64), torch.tensor([1.0, 0.0]))
    flow = theory.solve_flow(net, torch.tensor([3.0, 0.1]), torch.tensor([2.0, 0.05]), log10_alpha=-1, t_end=1.0)
    assert theory.activation_times(flow).tolist() == [0.0, math.inf]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), log10_alpha=st.sampled_from([-1.0, -8.0, -300.0, -1e6]), linear=st.booleans())
def test_loss_never_increases(seed: int, log10_alpha: float, linear: bool) -> None:
    x, y, _ = theory.teacher_task(samples=20, tokens=3, dim=2, seed=seed)
    net = theory.linear(x.reshape(60, 2), y[..., 0].reshape(60)) if linear else theory.attention_head(x, y)
    flow = theory.solve_flow(
        net, *theory.gaussian_start(net.num_weights, seed=seed), log10_alpha=log10_alpha, t_end=5.0
    )
    assert flow.status is theory.Status.FINISHED
    assert bool((flow.losses.diff() <= 1e-9 * flow.losses[0]).all())


def test_dense_output_reaches_the_end_it_was_asked_for() -> None:
    net = theory.linear(torch.eye(2), torch.tensor([2.0, 4.0]))
    for t_end in (3.7, 0.1, 1 / 3, 2.9):
        flow = theory.solve_flow(net, *theory.gaussian_start(2), log10_alpha=-9, t_end=t_end)
        assert float(flow.times[-1]) == t_end
        torch.testing.assert_close(flow.at(torch.tensor([t_end], dtype=torch.float64))[0], flow.products[-1])
        assert flow.at(torch.tensor([])).shape == (0, 2)


@pytest.mark.timeout(60)
def test_products_without_bound_end_the_flow() -> None:
    net = theory.linear(torch.ones(1, 1), torch.ones(1), loss=lambda p, y: -(p * y).mean())
    flow = theory.solve_flow(net, torch.ones(1), torch.zeros(1), log10_alpha=-1000, t_end=3.0)
    assert flow.status is theory.Status.UNBOUNDED
    assert 0.9 < float(flow.times[-1]) < 1.1
    stages = theory.incremental_stages(net)
    assert (stages.status, stages.coordinates, stages.times.tolist()) == (theory.Status.UNBOUNDED, (0,), [1.0])


def test_running_out_of_steps_is_a_status_with_its_remedy() -> None:
    net, u0, v0 = _head()
    flow = theory.solve_flow(net, u0, v0, log10_alpha=-8, t_end=10.0, max_steps=3)
    assert flow.status is theory.Status.MAX_STEPS
    assert "max_steps" in flow.status.remedy
    assert float(flow.times[-1]) < 10.0


def test_progress_is_reported() -> None:
    seen: list[float] = []
    flow = theory.solve_flow(_orthogonal(), *THETA0, log10_alpha=-8, t_end=1.5, on_step=seen.append)
    assert seen == flow.times[1:].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log10_alpha": 2.0}, r"`log10_alpha` must be negative and finite, as α < 1; got 2.0"),
        ({"log10_alpha": 0.0}, r"`log10_alpha` must be negative"),
        ({"log10_alpha": math.nan}, r"`log10_alpha` must be negative"),
        ({"t_end": -1.0}, r"`t_end` must be positive and finite; got -1.0"),
        ({"rtol": 0.0}, r"`rtol` must lie in \[1e-10, 1\); got 0.0"),
        ({"u0": torch.ones(2)}, r"`u0` must have shape \(3,\), one number per weight; got \(2,\)"),
        ({"u0": THETA0[1]}, r"\(Assumption 4.2\); got \|u0\| = \|v0\| for 3 of 3, the first at index 0"),
        ({"v0": torch.tensor([0.2, torch.nan, 0.4])}, r"`v0` must be finite"),
    ],
)
def test_errors(change: dict[str, object], message: str) -> None:
    arguments = {"u0": THETA0[0], "v0": THETA0[1], "log10_alpha": -8.0, "t_end": 1.0} | change
    with pytest.raises(ValueError, match=message):
        theory.solve_flow(_orthogonal(), **arguments)  # type: ignore[arg-type]


def test_errors_of_a_flow() -> None:
    flow = theory.solve_flow(_orthogonal(), *THETA0, log10_alpha=-8, t_end=1.0)
    with pytest.raises(ValueError, match=r"`times` must lie in \[0, 1\]"):
        flow.at(torch.tensor([2.0]))
    with pytest.raises(ValueError, match=r"`threshold` must be positive; got 0"):
        theory.activation_times(flow, 0.0)


def test_alpha_is_the_same_as_its_logarithm() -> None:
    net, start = theory.linear(torch.eye(2), torch.tensor([2.0, 4.0])), ([1.0, 2.0], [0.5, 1.0])
    by_log = theory.solve_flow(net, *start, log10_alpha=-32.0, t_end=1.5)
    assert torch.equal(theory.solve_flow(net, *start, alpha=1e-32, t_end=1.5).products, by_log.products)
    assert theory.incremental_stages(net, *start, alpha=1e-32).log10_alpha == -32.0
    assert theory.stage_times(net, *start, alphas=[1e-32], predict=False).log10_alphas == (-32.0,)
    run = theory.descend(net, *start, alpha=1e-3, learning_rate=0.1, num_steps=1)
    assert run.log10_alpha == -3.0


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({}, "`alpha` or `log10_alpha` must be given, and not both"),
        ({"alpha": 1e-8, "log10_alpha": -8}, "must be given, and not both; got alpha=1e-08 and log10_alpha=-8"),
        ({"alpha": 2.0}, "`alpha` must lie between 0 and 1; got 2.0"),
        ({"alpha": 0.0}, "below 1e-300 pass log10_alpha=-1000"),
    ],
)
def test_scales_that_are_no_scale(scales: dict[str, float], message: str) -> None:
    net = theory.linear(torch.eye(2), torch.tensor([2.0, 4.0]))
    with pytest.raises(ValueError, match=message):
        theory.solve_flow(net, [1.0, 2.0], [0.5, 1.0], t_end=1.0, **scales)
    with pytest.raises(ValueError, match="`alphas` or `log10_alphas` must be given, and not both"):
        theory.stage_times(net, [1.0, 2.0], [0.5, 1.0])


@pytest.mark.parametrize("log10_alpha", [-8, -1000])
def test_a_flow_without_an_end_in_time_shows_every_stage(log10_alpha: float) -> None:
    task = theory.teacher_task(samples=100, tokens=5, dim=3, seed=1)
    net = theory.attention_head(task.x, task.y)
    flow = theory.solve_flow(net, *theory.gaussian_start(6, seed=1), log10_alpha=log10_alpha)
    last = float(theory.activation_times(flow).max())
    assert flow.status is theory.Status.FINISHED
    assert float(flow.losses[-1]) < 1e-10 * float(flow.losses[0])
    assert last < float(flow.times[-1]) < 2 * last


def test_a_flow_without_an_end_in_time_stops_where_nothing_pulls() -> None:
    flow = theory.solve_flow(theory.linear(torch.eye(2), torch.zeros(2)), [1.0, 2.0], [0.5, 1.0], alpha=1e-8)
    assert flow.status is theory.Status.FINISHED
    assert float(flow.times[-1]) == pytest.approx(1.0)
