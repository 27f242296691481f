"""Subsets are balanced, nested and seeded; random labels are uniform and belong to samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankrise.lab.data._subset import choose, random_labels, select


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
