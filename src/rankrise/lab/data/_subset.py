"""Fewer samples, and labels that mean nothing: both seeded, both independent of how many samples there are."""

import torch
from torch import Tensor

from rankrise.lab.data._mix import Purpose, below, bits, key


def choose(labels: Tensor, num: int | None, *, seed: int, what: str) -> Tensor:
    """Indices of `num` samples with equal classes as far as possible, ascending; all unless `num` is given.

    Every class is shuffled; then the first of each class are taken, then the second, and so on. So the choice of a
    smaller number is part of that of a larger one.

    Args:
        labels: (n,), int64.
        num: How many.
        seed: Of the shuffles.
        what: The setting's name, for the message.

    Raises:
        ValueError: There are fewer than `num`.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 2])
    >>> labels[choose(labels, 4, seed=0, what="num_train")].tolist()
    [0, 0, 1, 2]
    """
    n = len(labels)
    if num is None or num == n:
        return torch.arange(n)
    if num > n:
        raise ValueError(f"`{what}` must be at most the {n} samples there are; got {num}.")
    shuffled = torch.argsort(bits(key(seed, Purpose.SUBSET), torch.arange(n)))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    counts = torch.bincount(labels)
    turn = torch.arange(n) - (counts.cumsum(0) - counts)[labels[by_class]]  # place within its class
    rank = torch.empty(n, dtype=torch.int64)
    rank[by_class] = turn
    return torch.sort(shuffled[torch.argsort(rank[shuffled], stable=True)][:num]).values


def random_labels(num: int, num_classes: int, *, seed: int) -> Tensor:
    """Uniform labels for samples 0, …, num - 1, whatever they show.

    >>> torch.equal(random_labels(9, 10, seed=0)[:5], random_labels(5, 10, seed=0))
    True
    """
    return below(bits(key(seed, Purpose.LABELS), torch.arange(num)), num_classes)


def select(
    samples: tuple[Tensor, Tensor], num: int | None, *, seed: int, what: str, relabel: int | None = None
) -> tuple[Tensor, Tensor]:
    """`num` of the samples, with random labels of `relabel` classes if given.

    A random label belongs to its sample, however many others are kept.
    """
    images, labels = samples
    chosen = choose(labels, num, seed=seed, what=what)
    if relabel is not None:
        labels = random_labels(len(labels), relabel, seed=seed)
    return images if len(chosen) == len(images) else images[chosen], labels[chosen]
