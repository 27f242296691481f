"""A perturbed flow comes back, keeps what is conserved, and meets the later stages as if nothing had happened."""

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
