"""Ranks for a budget: against brute force, and the proof's own statement about greedy."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise.checkpoints.lora._allocation import allocate_ranks, ranks_for_energy

gains = st.lists(st.floats(0, 100, allow_subnormal=False), min_size=0, max_size=4).map(lambda g: sorted(g)[::-1])
problems = st.lists(st.tuples(gains, st.integers(1, 9)), min_size=1, max_size=4)


def choices(squares, sizes=None):
    for ranks in itertools.product(*(range(len(g) + 1) if sizes is None else (0, *sizes) for g in squares)):
        yield ranks, sum(sum(g[:r]) for g, r in zip(squares, ranks, strict=True))


def cost(costs, ranks):
    return sum(c * r for c, r in zip(costs, ranks, strict=True))


@settings(max_examples=300, deadline=None)
@given(problems, st.integers(0, 60))
def test_no_ranks_within_the_budget_capture_one_direction_more(problem, budget):
    squares, costs = zip(*problem, strict=True)
    found = allocate_ranks(squares, costs, budget)
    best = max(energy for ranks, energy in choices(squares) if cost(costs, ranks) <= budget)
    left_out = max((g[r] for g, r in zip(squares, found.ranks, strict=True) if r < len(g)), default=0.0)
    assert found.parameters == cost(costs, found.ranks) <= budget
    assert found.energy == pytest.approx(sum(sum(g[:r]) for g, r in zip(squares, found.ranks, strict=True)))
    assert found.energy <= best + 1e-9 * max(1, best)
    assert best <= found.energy + found.gap + 1e-9 * max(1, best)
    assert found.gap <= left_out


@settings(max_examples=200, deadline=None)
@given(problems, st.integers(0, 60))
def test_greedy_is_best_wherever_it_spends_the_budget_exactly(problem, num_steps):
    squares, costs = zip(*problem, strict=True)
    steps = sorted((-g / costs[i], i, j) for i, gains in enumerate(squares) for j, g in enumerate(gains))[:num_steps]
    ranks = [sum(1 for _, i, _ in steps if i == module) for module in range(len(costs))]
    energy = sum(sum(g[:r]) for g, r in zip(squares, ranks, strict=True))
    spent = cost(costs, ranks)
    assert energy >= max(e for r, e in choices(squares) if cost(costs, r) <= spent) - 1e-9


@settings(max_examples=100, deadline=None)
@given(problems, st.integers(0, 80))
def test_ranks_in_sizes_stay_within_their_stated_gap(problem, budget):
    squares, costs = zip(*problem, strict=True)
    found = allocate_ranks(squares, costs, budget, sizes=(2, 4))
    best = max(energy for ranks, energy in choices(squares, (2, 4)) if cost(costs, ranks) <= budget)
    assert found.parameters <= budget
    assert set(found.ranks) <= {0, 2, 4}
    assert found.energy <= best + 1e-9
    assert best <= found.energy + found.gap + 1e-9 * max(1, best)


@settings(max_examples=200, deadline=None)
@given(problems, st.floats(0, 1))
def test_energy_is_reached_and_every_direction_is_needed(problem, share):
    squares, costs = zip(*problem, strict=True)
    wanted = share * sum(map(sum, squares))
    ranks = ranks_for_energy(squares, costs, wanted)
    energy = sum(sum(g[:r]) for g, r in zip(squares, ranks, strict=True))
    assert energy >= wanted * (1 - 1e-9)
    for g, r in zip(squares, ranks, strict=True):
        assert not r or energy - g[r - 1] < wanted * (1 + 1e-9) or wanted == 0


def test_hundreds_of_modules_take_no_time():
    squares = [[1.0 / (i + 1) / j**2 for j in range(1, 65)] for i in range(224)]
    costs = [(8192, 5120, 11008 + 4096)[i % 3] for i in range(224)]
    found = allocate_ranks(squares, costs, 20_000_000)
    left_out = max(g[r] for g, r in zip(squares, found.ranks, strict=True) if r < len(g))
    assert found.gap < min(left_out, 1e-5 * found.energy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [1, 2], 3), "one for each module; got 2 for 1"),
        (([[1.0]], [0], 3), "must be positive; got 0"),
        (([[1.0]], [1], -3), "must not be negative; got -3"),
        (([[1.0, 2.0]], [1], 3), "must fall"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        allocate_ranks(*arguments)


def test_any_number_of_shapes():
    """A cost of its own for each of 1500 modules."""
    squares = [[1.0 + 1 / n, 0.5] for n in range(1, 1501)]
    costs = list(range(100, 1600))
    found = allocate_ranks(squares, costs, 20_000)
    assert found.parameters <= 20_000
    assert found.gap < 0.02 * found.energy
    assert sum(found.ranks) > 100
