"""Stage times against α: first order in 1/log(1/α), predictions closer than the limit."""

import math

import pytest
import torch

from rankrise import theory


def test_distance_from_the_limit_falls_like_one_over_log_alpha() -> None:
    x, y, _ = theory.teacher_task(samples=60, tokens=4, dim=3, seed=0)
    net = theory.attention_head(x, y)
    u0, v0 = theory.gaussian_start(6, seed=0)
    stages = theory.incremental_stages(net)
    seen: list[float] = []
    alphas = [-64, -1024, -16384]
    t_end = 1.05 * float(stages.times[-1])
    table = theory.stage_times(net, u0, v0, log10_alphas=alphas, t_end=t_end, stages=stages, on_alpha=seen.append)
    assert seen == alphas
    assert table.measured.shape == table.predicted.shape == (3, len(table.coordinates))
    assert bool((table.distances.diff() < 0).all())
    assert table.order == pytest.approx(1.0, abs=0.1)
    assert table.in_order[-1]
    assert bool((table.prediction_errors < 5e-3).all())
    assert bool(((table.predicted - table.measured).abs().amax(dim=1) < table.distances).all())


def test_order_needs_two_distances() -> None:
    net = theory.linear(torch.eye(1), torch.ones(1))
    table = theory.stage_times(net, torch.tensor([1.0]), torch.tensor([0.5]), log10_alphas=[-8], t_end=2.0)
    assert math.isnan(table.order)


@pytest.mark.parametrize("silent", [False, True])
def test_nothing_activates(silent: bool) -> None:
    """Before T_1, or where there is no gradient at all: an empty table, not an error."""
    net = theory.linear(torch.eye(2), torch.zeros(2) if silent else torch.tensor([2.0, -4.0]))
    table = theory.stage_times(net, *theory.gaussian_start(2), log10_alphas=[-8, -32], t_end=0.1)
    assert table.coordinates == ()
    assert table.num_activated == (0, 0)
    assert bool(table.distances.isnan().all() and table.prediction_errors.isnan().all())
    assert table.in_order == (True, True)
    assert math.isnan(table.order)


def test_an_empty_list_of_alphas_is_refused() -> None:
    x, y, _ = theory.teacher_task(samples=60, tokens=4, dim=3, seed=0)
    with pytest.raises(ValueError, match=r"`log10_alphas` must hold at least one value"):
        theory.stage_times(theory.attention_head(x, y), *theory.gaussian_start(6), log10_alphas=[], t_end=1.0)
