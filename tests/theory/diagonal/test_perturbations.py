"""Perturbed minima and transitions reach the same end; a perturbed flow comes back and meets the later stages."""

import math

import pytest
import torch

from rankrise import theory


@pytest.fixture(scope="module")
def head():
    task = theory.teacher_task(samples=100, tokens=10, dim=10, seed=4)
    net = theory.attention_head(task.x, task.y)
    u0, v0 = theory.gaussian_start(20, seed=4)
    return net, theory.solve_flow(net, u0, v0, log10_alpha=-16, t_end=2.6)


def test_it_comes_back(head):
    net, flow = head
    pushed = theory.perturb_flow(net, flow, time=1.6, t_end=1.75, noise=0.05)
    gaps = (pushed.perturbed - pushed.products).abs().amax(dim=1)
    assert len(pushed.coordinates) >= 2
    assert float(gaps[0]) > 0.02
    assert float(gaps[-1]) < 0.01 * float(pushed.products[-1].abs().max())
    assert pushed.times[0] == 1.6
    assert pushed.times[-1] == pytest.approx(1.75)
    assert pushed.status is theory.Status.FINISHED
    assert torch.allclose(pushed.products, flow.at(pushed.times))


def test_only_active_coordinates_move_and_keep_their_sign(head):
    net, flow = head
    pushed = theory.perturb_flow(net, flow, time=1.6, t_end=1.62, noise=0.05)
    before, after = pushed.products[0], pushed.perturbed[0]
    active = before.abs() > 1e-5
    assert tuple(active.nonzero().flatten().tolist()) == pushed.coordinates
    assert torch.allclose(before[~active], after[~active])
    assert torch.equal(before[active].sign(), after[active].sign())


def test_noise_is_that_of_the_seed(head):
    net, flow = head
    first, same, other = (
        theory.perturb_flow(net, flow, time=1.6, t_end=1.62, noise=0.05, seed=seed).perturbed for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first[0], other[0])


def test_almost_no_noise_is_the_flow_itself(head):
    net, flow = head
    pushed = theory.perturb_flow(net, flow, time=1.0, t_end=2.5, noise=1e-9)
    assert torch.allclose(pushed.perturbed, pushed.products, atol=2e-3 * float(pushed.products.abs().max()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": 2.0, "t_end": 1.0}, "`time` and `t_end` must lie in order in the run"),
        ({"time": 2.0, "t_end": 7.0}, "got 2.0 and 7.0: solve the flow further"),
        ({"time": -1.0, "t_end": 1.0}, "must lie in order"),
        ({"time": 1.0, "t_end": 2.0, "noise": 0.0}, "`noise` must be positive"),
        ({"time": 1.0, "t_end": 2.0, "num_points": 1}, "`num_points` at least 2"),
    ],
)
def test_refusals(head, changes, message):
    with pytest.raises(ValueError, match=message):
        theory.perturb_flow(*head, **{"noise": 0.05, **changes})


def _small_head(seed: int = 0) -> theory.DiagonalNetwork:
    x, y, _ = theory.teacher_task(samples=60, tokens=4, dim=3, seed=seed)
    return theory.attention_head(x, y)


def test_a_strict_minimum_takes_perturbations_back() -> None:
    net = _small_head()
    stages = theory.incremental_stages(net)
    for k in range(1, len(stages.products)):
        test = theory.perturb_minimum(net, stages, k, noise=0.02, trials=3)
        assert test.tested
        assert test.holds, (k, test)
        assert test.fraction == 1.0


def test_nothing_to_perturb_is_not_a_test() -> None:
    net = _small_head()
    test = theory.perturb_minimum(net, theory.incremental_stages(net, max_stages=1), 0)
    assert not test.tested
    assert not test.holds
    assert math.isnan(test.fraction)
    assert test.verdict.startswith("Nothing was tested")


def test_transitions_are_robust_to_noise() -> None:
    net = _small_head()
    stages = theory.incremental_stages(net)
    for k in range(len(stages.coordinates)):
        assert theory.perturb_transition(net, stages, k, noise=0.01, trials=3).holds, k


def test_a_valley_does_not_take_perturbations_back() -> None:
    """Two equal features: only their sum is determined, so the perturbed products rest elsewhere."""
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(20, 2)
    net = theory.linear(x, x[:, 0])
    test = theory.perturb_minimum(net, theory.incremental_stages(net), 1, noise=0.05, trials=2)
    assert not test.holds
    assert test.fraction == 0.0
    assert float(test.distances.max()) < 0.5


def test_arguments_of_the_ensembles() -> None:
    net = _small_head()
    stages = theory.incremental_stages(net, max_stages=1)
    with pytest.raises(ValueError, match=r"`k` must lie in 0 to 1; got 2"):
        theory.perturb_minimum(net, stages, 2)
    with pytest.raises(ValueError, match=r"`k` must lie in 0 to 0; got 1"):
        theory.perturb_transition(net, stages, 1)
    with pytest.raises(ValueError, match=r"`noise` and `trials` must be positive; got 0.0 and 8"):
        theory.perturb_minimum(net, stages, 1, noise=0.0)
    finite = theory.incremental_stages(net, *theory.gaussian_start(6), log10_alpha=-32, max_stages=1)
    with pytest.raises(ValueError, match=r"`stages` must be those of the limit"):
        theory.perturb_minimum(net, finite, 0)
