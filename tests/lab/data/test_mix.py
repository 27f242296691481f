"""Random bits equal a plain splitmix64; subsets are balanced and nested; random labels belong to samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.data._mix import below, bits, choose, key, random_labels, select

MASK = 2**64 - 1
words = st.integers(0, MASK)


def splitmix64(state):
    """Steele, Lea, Flood 2014: the finaliser of the state."""
    z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


@given(words, st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5))
def test_tensor_arithmetic_is_that_of_integers(word, index):
    expected = [splitmix64((word + i * 0x9E3779B97F4A7C15) & MASK) for i in index]
    assert [b & MASK for b in bits(word, torch.tensor(index)).tolist()] == expected


def test_known_values():  # the published first outputs from state 1234567
    state = 1234567 + 0x9E3779B97F4A7C15
    first = bits(state & MASK, torch.arange(3)).tolist()
    assert [b & MASK for b in first] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(words, st.integers(1, 2**31 - 1))
def test_below_stays_below(word, n):
    values = below(bits(word, torch.arange(50)), n)
    assert int(values.min()) >= 0
    assert int(values.max()) < n


def test_values_are_uniform():
    counts = torch.bincount(below(bits(key(0, 1), torch.arange(90_000)), 9))
    assert bool((counts - 10_000).abs().max() < 400)  # four standard deviations


def test_keys_of_purposes_seeds_and_epochs_differ():
    keys = {key(seed, purpose, epoch) for seed in range(10) for purpose in range(10) for epoch in range(10)}
    assert len(keys) == 1000


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.data())
def test_subset_is_balanced_and_nested(labels, data):
    labels = torch.tensor(labels)
    num = data.draw(st.integers(1, len(labels)))
    chosen = choose(labels, num, seed=0, what="num_train")
    assert len(set(chosen.tolist())) == num
    assert chosen.tolist() == sorted(chosen.tolist())
    got, there = torch.bincount(labels[chosen], minlength=5), torch.bincount(labels, minlength=5)
    most = int(got.max())
    assert bool((got >= there.clamp(max=most - 1)).all())  # nobody lags by more than one, unless used up
    if num > 1:
        assert set(choose(labels, num - 1, seed=0, what="num_train").tolist()) < set(chosen.tolist())


def test_seed_chooses():
    labels = torch.arange(100) % 10
    assert choose(labels, 20, seed=0, what="n").tolist() != choose(labels, 20, seed=1, what="n").tolist()


def test_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match="`num_test` must be at most the 3 samples there are; got 4"):
        choose(torch.zeros(3, dtype=torch.int64), 4, seed=0, what="num_test")


def test_random_labels_are_uniform_and_belong_to_samples():
    counts = torch.bincount(random_labels(10_000, 10, seed=0))
    assert bool((counts - 1000).abs().max() < 130)
    images, labels = torch.arange(50)[:, None], torch.arange(50) % 5
    _, everything = select((images, labels), None, seed=0, what="n", relabel=5)
    kept, some = select((images, labels), 20, seed=0, what="n", relabel=5)
    assert torch.equal(some, everything[kept[:, 0]])
    assert not torch.equal(everything, labels)
