"""The bits are splitmix64's, and every tensor of them equals the arithmetic of Python's integers."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.data._mix import below, bits, key

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
