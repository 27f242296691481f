"""Orders are pure permutations; spans share every batch among ranks without gap or overlap."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.data import epoch_order
from rankrise.lab.data._order import held_out_spans, train_spans


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000), st.integers(0, 200))
def test_order_is_a_pure_permutation(seed, epoch, n):
    order = epoch_order(seed, epoch, n)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, epoch_order(seed, epoch, n))


def test_orders_differ_by_seed_and_epoch():
    orders = [tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9


def test_order_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    epoch_order(0, 0, 10)
    assert torch.equal(before, torch.random.get_rng_state())


def test_order_of_a_version_is_that_of_every_version():  # a run must resume in the order it began with
    assert epoch_order(7, 3, 8).tolist() == [6, 2, 3, 4, 7, 1, 5, 0]


def test_every_position_is_uniform():
    first = torch.bincount(torch.stack([epoch_order(0, epoch, 4) for epoch in range(4000)])[:, 0], minlength=4)
    assert bool((first - 1000).abs().max() < 120)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 5), st.integers(0, 8))
def test_ranks_together_are_one_process(n, share, world_size, start):
    batch_size = share * world_size
    if batch_size > n:
        return
    whole = list(train_spans(n, batch_size=batch_size, start=start, rank=0, world_size=1))
    ranks = [
        train_spans(n, batch_size=batch_size, start=start, rank=r, world_size=world_size) for r in range(world_size)
    ]
    for (begin, end), *parts in zip(whole, *ranks, strict=True):
        assert [i for part in parts for i in range(*part)] == list(range(begin, end))
    assert whole == [(i, i + batch_size) for i in range(start * batch_size, n - batch_size + 1, batch_size)]


@given(st.integers(0, 60), st.integers(1, 12), st.integers(1, 5))
def test_nothing_is_dropped_in_testing(n, batch_size, world_size):
    spans = [held_out_spans(n, batch_size=batch_size, rank=r, world_size=world_size) for r in range(world_size)]
    assert sorted(i for rank in spans for span in rank for i in range(*span)) == list(range(n))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 5, "world_size": 2}, "`batch_size` must be a multiple of `world_size`.*got 5 and 2"),
        ({"batch_size": 11}, "`batch_size` must be at most the 10 training samples there are; got 11"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"batch_size": 2.0}, "`batch_size` must be a whole number; got 2.0"),
        ({"batch_size": True}, "`batch_size` must be a whole number; got True"),
        ({"rank": 2, "world_size": 2}, "`rank` must be below `world_size`; got 2 of 2"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_spans(10, **({"batch_size": 2, "start": 0, "rank": 0, "world_size": 1} | arguments))
