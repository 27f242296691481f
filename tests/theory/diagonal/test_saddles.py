"""Networks whose coordinates feel no gradient at zero: the run says so, and names them."""

import pytest
import torch
from torch import Tensor

from rankrise import theory
from rankrise.theory import Status


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.tanh(x[:, :2]).sum(-1)


def _two_layers(x: Tensor, q: Tensor) -> Tensor:
    return (torch.tanh(x * q[:4]) * q[4:8]).sum(-1)


def _network(h: object, num_weights: int) -> theory.DiagonalNetwork:
    x, y = _data()
    return theory.DiagonalNetwork(h, x, y, num_weights=num_weights)  # type: ignore[arg-type]


def test_two_layers_that_start_at_zero_are_stuck() -> None:
    net = _network(_two_layers, 8)
    stages = theory.incremental_stages(net)
    assert stages.status is Status.SADDLE
    assert {0, 1, 4, 5} >= set(stages.stuck) >= {0, 4} or set(stages.stuck) >= {1, 5}
    assert stages.advice.startswith("Stuck at a saddle of loss 0.41")
    assert "h(x, q + q0)" in stages.advice
    flow = theory.solve_flow(net, *theory.gaussian_start(8), alpha=1e-32, t_end=5.0)
    assert flow.status is Status.SADDLE
    assert flow.stuck == stages.stuck
    assert flow.advice.startswith("Stuck at a saddle")


def test_a_kink_at_zero_is_found_by_probing() -> None:
    stages = theory.incremental_stages(_network(lambda x, q: torch.relu(x @ q), 4))
    assert stages.status is Status.SADDLE
    assert stages.stuck


def test_the_rest_of_a_network_may_be_stuck_while_a_part_learns() -> None:
    net = _network(lambda x, q: _two_layers(x, q) + 0.1 * x[:, 0] * q[8], 9)
    stages = theory.incremental_stages(net)
    assert stages.coordinates == (8,)
    assert stages.status is Status.SADDLE
    assert 8 not in stages.stuck
    assert {1, 5} <= set(stages.stuck)


def test_what_to_do_about_a_saddle_works() -> None:
    start = torch.full((8,), 0.3, dtype=torch.float64)
    stages = theory.incremental_stages(_network(lambda x, q: _two_layers(x, q + start), 8), max_stages=4)
    assert len(stages.coordinates) == 4
    assert stages.losses[-1] < 0.5 * stages.losses[0]


def test_coordinates_that_h_does_not_use_are_named() -> None:
    stages = theory.incremental_stages(_network(lambda x, q: x @ q[:4], 6))
    assert stages.status is Status.FINISHED
    assert stages.stuck == ()
    assert stages.idle == (4, 5)
    assert "coordinates (4, 5) feel no gradient" in stages.advice


@pytest.mark.parametrize("targets", ["zero", "learned"])
def test_a_minimum_is_not_a_saddle(targets: str) -> None:
    x, y = _data()
    net = theory.linear(x, torch.zeros_like(y) if targets == "zero" else x[:, 0])
    stages = theory.incremental_stages(net)
    assert stages.status is Status.FINISHED
    assert stages.advice == Status.FINISHED.remedy
    flow = theory.solve_flow(net, *theory.gaussian_start(4), alpha=1e-8)
    assert flow.status is Status.FINISHED
