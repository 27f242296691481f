"""Random bits as a pure function of integers (splitmix64), and what is drawn with them: subsets and random labels.

The arithmetic is that of int64, which wraps alike on every device. No generator has a state here, so there is nothing
to save, advance or share: the bits of sample 7 are the same whoever asks for them, in whatever batch. Quality: the
finaliser passes BigCrush on a counter (Steele, Lea, Flood, OOPSLA 2014).
"""

from enum import IntEnum

import torch
from torch import Tensor

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Purpose(IntEnum):
    """What the bits are for: the same (seed, epoch, index) gives independent bits for each purpose."""

    ORDER = 1
    FLIP = 2
    CROP = 3
    SUBSET = 4
    LABELS = 5
    TEMPLATES = 6
    NOISE = 7
    CHAIN = 8
    WALK = 9
    TEST = 10


def key(*parts: int) -> int:
    """Fold integers into one integer of 64 bits; their order matters.

    >>> key(0, 1) != key(1, 0)
    True
    """
    z = 0
    for part in parts:
        z = ((z ^ (part & _MASK)) + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * _FIRST) & _MASK
        z = ((z ^ (z >> 27)) * _SECOND) & _MASK
        z ^= z >> 31
    return z


def bits(key: int, index: Tensor) -> Tensor:
    """Return 64 random bits for every integer of `index`, as int64 on the device of `index`.

    >>> import torch
    >>> both = bits(3, torch.arange(2))
    >>> torch.equal(both[1:], bits(3, torch.tensor([1])))
    True
    """
    z = index * _signed(_GOLDEN) + _signed(key)
    z = (z ^ _shift(z, 30)) * _signed(_FIRST)
    z = (z ^ _shift(z, 27)) * _signed(_SECOND)
    return z ^ _shift(z, 31)


def below(random: Tensor, n: int) -> Tensor:
    """Return integers in [0, n), n < 2³¹, from the upper 32 bits; no value is more than n 2⁻³² likelier than another.

    >>> import torch
    >>> sorted(set(below(bits(0, torch.arange(100)), 3).tolist()))
    [0, 1, 2]
    """
    return (_shift(random, 32) * n) >> 32


def _shift(z: Tensor, k: int) -> Tensor:
    """Shift right and fill with zeros, whereas `>>` alone repeats the sign."""
    return (z >> k) & ((1 << (64 - k)) - 1)


def _signed(z: int) -> int:
    return z - 2**64 if z >= 2**63 else z


def choose(labels: Tensor, num: int | None, *, seed: int, what: str) -> Tensor:
    """Return ascending indices of `num` samples with equal classes as far as possible; all samples if `num` is None.

    Every class is shuffled; then the first sample of each class is taken, then the second, and so on. Therefore a
    smaller choice is part of a larger one.

    Args:
        labels: (n,), int64.
        num: Number of samples to choose.
        seed: Seed of the shuffles.
        what: The setting's name, for the message.

    Raises:
        ValueError: If there are fewer than `num` samples.

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
    """Return uniform labels for the samples 0, …, num - 1, whatever the samples show.

    >>> torch.equal(random_labels(9, 10, seed=0)[:5], random_labels(5, 10, seed=0))
    True
    """
    return below(bits(key(seed, Purpose.LABELS), torch.arange(num)), num_classes)


def select(
    samples: tuple[Tensor, Tensor], num: int | None, *, seed: int, what: str, relabel: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return `num` of the samples, with random labels of `relabel` classes if that number is given.

    The random label of a sample does not depend on how many other samples are kept.
    """
    images, labels = samples
    chosen = choose(labels, num, seed=seed, what=what)
    if relabel is not None:
        labels = random_labels(len(labels), relabel, seed=seed)
    return images if len(chosen) == len(images) else images[chosen], labels[chosen]
