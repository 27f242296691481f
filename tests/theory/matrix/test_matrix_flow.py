"""Full-matrix heads: gradient, invariants, convergence, stages, refusals."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.theory.oracles import matrix_flow

from rankrise import theory
from rankrise.theory.matrix._matrix_flow import _Head


def task(dim=4, samples=60, tokens=5, seed=0):
    x, y, _ = theory.teacher_task(samples=samples, tokens=tokens, dim=dim, seed=seed)
    return x, y


def learned_at(flow, sigma, threshold=1e-2):
    """The first of `flow.times` at which each singular value is above the threshold; inf if none."""
    above = sigma > threshold
    first = flow.times[above.int().argmax(dim=0)]
    return torch.where(above.any(dim=0), first, torch.inf)


def test_gradients_equal_autograd():
    x, y = task(dim=3, samples=50)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    loss = 0.5 * (y - torch.softmax(x @ a @ x.mT, dim=-1) @ x @ b).square().sum() / len(x)
    slope_a, slope_b = torch.autograd.grad(loss, (a, b))
    value, g_a, g_b = _Head(x, y, torch.Size([4, 3, 3])).loss_and_gradient(a.detach(), b.detach())
    assert value == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(-g_a, slope_a, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(-g_b, slope_b, rtol=1e-10, atol=1e-12)


def test_data_larger_than_a_chunk_gives_the_mean_over_samples():
    x, y = task(dim=8, samples=20_000)
    a, b = torch.eye(8, dtype=torch.float64).expand(2, 8, 8)
    head = _Head(x, y, torch.Size([4, 8, 8]))
    assert len(head.chunks) > 1
    halves = [
        _Head(x[half], y[half], head.shape).loss_and_gradient(a, b) for half in (slice(10_000), slice(10_000, None))
    ]
    for whole, first, second in zip(head.loss_and_gradient(a, b), *halves, strict=True):
        torch.testing.assert_close(torch.as_tensor(whole), torch.as_tensor((first + second) / 2))


def test_balanced_diagonal_start_follows_the_diagonal_head():
    """With one token dimension the full head is the diagonal head: its products are the singular values."""
    x, y = task(dim=1, samples=12, tokens=3)
    u0, v0 = torch.tensor([1.5, 1.3]), torch.tensor([0.5, -0.2])
    times = np.linspace(0, 2, 21)
    weights = [w.reshape(1, 1) for w in (u0[0], v0[0], u0[1], v0[1])]
    flow = theory.solve_matrix_flow(x, y, weights, alpha=1e-3, t_end=2.0, times=torch.from_numpy(times))
    diagonal = matrix_flow(x.numpy(), y.numpy(), [w.numpy() for w in weights], alpha=1e-3, times=times)
    np.testing.assert_allclose(
        flow.kq_singular_values[:, 0], np.abs(diagonal[:, 0, 0, 0] * diagonal[:, 1, 0, 0]), atol=1e-7
    )
    np.testing.assert_allclose(
        flow.vo_singular_values[:, 0], np.abs(diagonal[:, 2, 0, 0] * diagonal[:, 3, 0, 0]), atol=1e-7
    )


def test_equals_an_independent_implicit_integration():
    x, y = task(dim=3, samples=12, tokens=3)
    start = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    times = np.linspace(0, 2, 11)
    flow = theory.solve_matrix_flow(x, y, list(start), alpha=1e-3, t_end=2.0, times=times.tolist())
    reference = matrix_flow(x.numpy(), y.numpy(), list(start.numpy()), alpha=1e-3, times=times)
    kq, vo = (reference[:, i] @ reference[:, i + 1].swapaxes(1, 2) for i in (0, 2))
    np.testing.assert_allclose(flow.kq_singular_values, np.linalg.svd(kq, compute_uv=False)[:, :2], atol=1e-6)
    np.testing.assert_allclose(flow.vo_singular_values, np.linalg.svd(vo, compute_uv=False)[:, :2], atol=1e-6)
    np.testing.assert_allclose(torch.stack(flow.weights), reference[-1], atol=1e-5)


def test_balancedness_is_kept_and_the_loss_falls():
    x, y = task()
    flow = theory.solve_matrix_flow(x, y, seed=0, alpha=1e-4, t_end=2.5)
    assert flow.status is theory.Status.FINISHED
    assert flow.kq_drift.max() < 1e-7
    assert flow.vo_drift.max() < 1e-7
    assert (flow.losses.diff() <= 1e-12).all()
    assert flow.losses[-1] < 0.9 * flow.losses[0]


def test_drift_shrinks_with_the_tolerance():
    x, y = task(dim=3)
    drifts = [
        float(theory.solve_matrix_flow(x, y, seed=0, alpha=1e-2, t_end=2.0, rtol=rtol).vo_drift.max())
        for rtol in (1e-4, 1e-6, 1e-8)
    ]
    assert drifts[0] > 10 * drifts[1] > 100 * drifts[2]


def test_singular_values_are_learned_one_after_another():
    x, y = task(dim=4, samples=100, tokens=6)
    flow = theory.solve_matrix_flow(x, y, seed=0, alpha=1e-12, t_end=3.0)
    vo, kq = learned_at(flow, flow.vo_singular_values), learned_at(flow, flow.kq_singular_values)
    first = torch.cat([vo, kq]).sort().values[:5]
    assert first.isfinite().all()
    assert (first.diff() > 0.1).all()
    # Between two stages the values learned stand still and the others are far below them.
    plateau = flow.vo_singular_values[int((flow.times < (vo[0] + vo[1]) / 2).sum())]
    assert plateau[1] < 1e-3 * plateau[0]


def test_head_dim_bounds_the_rank():
    x, y = task()
    flow = theory.solve_matrix_flow(x, y, seed=0, head_dim=2, alpha=1e-2, t_end=0.5, times=[0.0, 0.25, 0.5])
    assert flow.kq_singular_values.shape == flow.vo_singular_values.shape == (3, 2)
    assert [tuple(w.shape) for w in flow.weights] == [(4, 2)] * 4


def test_drift_counts_from_the_start_even_if_its_time_is_not_requested():
    x, y = task(dim=2)
    both = theory.solve_matrix_flow(x, y, seed=0, alpha=1e-2, t_end=2.0, times=[0.0, 2.0], rtol=1e-4)
    late = theory.solve_matrix_flow(x, y, seed=0, alpha=1e-2, t_end=2.0, times=[2.0], rtol=1e-4)
    assert both.vo_drift[0] == 0
    assert late.vo_drift.tolist() == [both.vo_drift[1].item()]


def test_a_run_that_cannot_finish_ends_where_it_stopped_with_a_remedy():
    x, y = task()
    flow = theory.solve_matrix_flow(x, y, seed=0, alpha=1e-4, t_end=2.0, max_steps=5)
    assert flow.status is theory.Status.MAX_STEPS
    assert "Increase `max_steps`" in flow.status.remedy
    assert flow.num_steps == 5
    assert 0 < len(flow.times) == len(flow.losses) == len(flow.kq_drift) < 201


def test_same_seed_same_flow_and_the_global_generator_is_untouched():
    x, y = task(dim=2)
    state = torch.get_rng_state()
    runs = [theory.solve_matrix_flow(x, y, seed=3, alpha=1e-2, t_end=0.5) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(runs[0].losses, runs[1].losses)
    with pytest.raises(dataclasses.FrozenInstanceError):
        runs[0].alpha = 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 1e-17}, r"`alpha` must be at least 1e-16 .* got 1e-17: use a larger alpha, or `solve_flow`"),
        ({"alpha": 0.0}, r"`alpha` must be positive and below 1; got 0.0"),
        ({"alpha": 1.0}, r"`alpha` must be positive and below 1; got 1.0"),
        ({"t_end": 0.0}, r"`t_end` must be positive and finite; got 0.0"),
        ({"rtol": 1e-15}, r"`rtol` must be from 1e-13"),
        ({"seed": None}, r"Exactly one of `weights` and `seed` must be given; got neither"),
        ({"weights": [torch.ones(2, 1)] * 4}, r"got both"),
        ({"seed": None, "weights": [torch.ones(3, 1)] * 4}, r"all of one shape \(2, r\); got shapes"),
        ({"seed": None, "weights": [torch.ones(2, 1)] * 4, "head_dim": 2}, r"`head_dim` must be the columns"),
        ({"seed": None, "weights": [torch.full((2, 1), torch.nan)] * 4}, r"`weights` must be finite"),
        ({"head_dim": 0}, r"`head_dim` must be at least 1; got 0"),
        ({"times": [0.0, 2.0]}, r"`times` must be increasing rescaled times within \[0, t_end\]"),
        ({"times": [0.5, 0.2]}, r"`times` must be increasing"),
        ({"y": torch.ones(3, 2)}, r"`x` must have shape \(N, n, d\) and `y` the same"),
    ],
)
def test_bad_arguments_are_refused_with_the_rule_and_the_remedy(changes, message):
    x, y = task(dim=2, samples=3, tokens=2)
    arguments = {"x": x, "y": y, "seed": 0, "alpha": 1e-2, "t_end": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        theory.solve_matrix_flow(**arguments)
