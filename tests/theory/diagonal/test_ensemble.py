"""Ensembles: the numbers of each network are those of Algorithm 1 alone, and quantiles are taken over networks."""

import math

import pytest
import torch

from rankrise import theory


def heads(num, dim=2):
    for seed in range(num):
        task = theory.teacher_task(samples=20, tokens=3, dim=dim, seed=seed)
        yield theory.attention_head(task.x, task.y)


def test_every_network_has_the_stages_it_has_alone():
    told = []
    found = theory.stage_ensemble(heads(4), on_network=told.append)
    assert told == [1, 2, 3, 4]
    for n, net in enumerate(heads(4)):
        stages = theory.incremental_stages(net)
        assert found.orders[n] == stages.coordinates
        assert torch.equal(found.times[n, : len(stages.times)], stages.times)
        assert bool(found.times[n, len(stages.times) :].isinf().all())
        assert found.num_stages[n] == len(stages.times)
        assert found.num_left[n] == sum(len(certificate.left) for certificate in stages.certificates)
        assert found.smallest_gap[n] == min(certificate.winner_gap for certificate in stages.certificates)
        assert found.last_time[n] == stages.times[-1]
        assert found.statuses[n] is stages.status
    assert bool(found.prediction_error.isnan().all())


def test_networks_may_differ_in_size_and_ties_are_counted():
    tied = theory.linear(torch.eye(2), torch.tensor([2.0, 2.0]))
    found = theory.stage_ensemble([*heads(1), tied])
    assert found.num_stages.tolist() == [4, 1]
    assert found.num_ties.tolist() == [0, 1]
    assert found.times.shape == (2, 4)


def test_errors_are_those_of_stage_times_for_as_many_networks_as_are_asked_for():
    found = theory.stage_ensemble(heads(2), log10_alpha=-32, num_predicted=1, seed=5)
    (net,) = heads(1)
    alone = theory.stage_times(net, *theory.gaussian_start(4, seed=5), log10_alphas=[-32])
    assert found.prediction_error[0] == alone.prediction_errors[0]
    assert 0 < found.prediction_error[0] < 0.1
    assert math.isnan(found.prediction_error[1])
    assert torch.equal(found.quantiles("prediction_error", [0.5]), alone.prediction_errors)


def test_quantiles_are_over_networks():
    found = theory.stage_ensemble(heads(3))
    expected = torch.quantile(found.last_time, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    assert torch.equal(found.quantiles("last_time"), expected)
    assert bool(found.quantiles("prediction_error").isnan().all())
    assert "smallest_gap" in str(found)
    with pytest.raises(ValueError, match=r"`name` must be one of num_stages, .*got 'num_ledt'\. Did you mean 'num_le"):
        found.quantiles("num_ledt")


def test_no_network_is_refused():
    with pytest.raises(ValueError, match="`networks` must hold at least one network; got none"):
        theory.stage_ensemble([])
