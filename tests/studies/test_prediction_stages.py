"""The search over learning rates ends with the best between two others, and never takes one that diverged."""

import math

import pytest
from studies.prediction_stages import best_rate, is_bracketed, next_rate

GRID = (1e-3, 2e-3, 4e-3)


def search(loss):
    losses = {}
    while (rate := next_rate(losses, GRID)) is not None:
        assert rate not in losses
        losses[rate] = loss(rate)
    return losses


@pytest.mark.parametrize("best", [2.5e-4, 1e-3, 2e-3, 4e-3, 1.6e-2])
def test_the_best_has_neighbours(best):
    losses = search(lambda rate: abs(math.log(rate / best)))
    assert best_rate(losses) == pytest.approx(best)
    assert is_bracketed(losses)
    assert set(GRID) <= set(losses)


def test_the_search_is_bounded():
    losses = search(lambda rate: -rate)
    assert len(losses) == len(GRID) + 4
    assert not is_bracketed(losses)


def test_a_rate_that_diverged_is_a_neighbour_but_never_the_best():
    losses = search(lambda rate: math.nan if rate > 3e-3 else 1 / rate)
    assert best_rate(losses) == 2e-3
    assert len(losses) == 3
