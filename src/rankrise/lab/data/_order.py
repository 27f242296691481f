"""In which order an epoch visits the samples, and which rows of a batch are whose."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rankrise._arguments import as_count
from rankrise.lab.data._mix import Purpose, bits, key

Span = tuple[int, int]  # positions [begin, end) in the order of an epoch


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """The order of an epoch: a permutation of 0, …, n - 1, uniform and a pure function of its arguments.

    Samples are sorted by 64 random bits each, so it depends on no generator, device or version of torch. Time n log n:
    50,000 take 2 ms.

    Args:
        seed: Of the run.
        epoch: Counted from 0.
        n: Number of samples.

    Returns:
        (n,), int64, on the CPU.

    >>> epoch_order(0, 0, 6).tolist() != epoch_order(0, 1, 6).tolist()
    True
    >>> sorted(epoch_order(0, 0, 6).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    seed, epoch, n = as_count(seed, "seed"), as_count(epoch, "epoch"), as_count(n, "n")
    return torch.argsort(bits(key(seed, Purpose.ORDER, epoch), torch.arange(n)), stable=True)


def train_spans(n: int, *, batch_size: int, start: int, rank: int, world_size: int) -> Iterator[Span]:
    """Positions of this rank's rows in each whole batch of an epoch, from batch `start` on.

    Raises:
        ValueError: The epoch has no whole batch, or the ranks would not get equal shares.

    >>> list(train_spans(10, batch_size=4, start=0, rank=1, world_size=2))
    [(2, 4), (6, 8)]
    """
    _check(batch_size, rank, world_size)
    if batch_size % world_size:
        raise ValueError(
            f"`batch_size` must be a multiple of `world_size`, so that every rank has as many rows; "
            f"got {batch_size} and {world_size}."
        )
    if batch_size > n:
        raise ValueError(f"`batch_size` must be at most the {n} training samples there are; got {batch_size}.")
    share = batch_size // world_size
    first = rank * share
    return ((i * batch_size + first, i * batch_size + first + share) for i in range(start, n // batch_size))


def held_out_spans(n: int, *, batch_size: int, rank: int, world_size: int) -> Iterator[Span]:
    """Positions of this rank's rows in each batch; the last may be short, and nothing is yielded for no rows.

    >>> list(held_out_spans(5, batch_size=4, rank=0, world_size=2))
    [(0, 2)]
    >>> list(held_out_spans(5, batch_size=4, rank=1, world_size=2))
    [(2, 4), (4, 5)]
    """
    _check(batch_size, rank, world_size)
    spans = (_share(i, min(batch_size, n - i), rank, world_size) for i in range(0, n, batch_size))
    return ((begin, end) for begin, end in spans if begin < end)


def _share(begin: int, rows: int, rank: int, world_size: int) -> Span:
    return begin + rows * rank // world_size, begin + rows * (rank + 1) // world_size


def _check(batch_size: int, rank: int, world_size: int) -> None:
    as_count(batch_size, "batch_size", least=1)
    as_count(world_size, "world_size", least=1)
    if as_count(rank, "rank") >= world_size:
        raise ValueError(f"`rank` must be below `world_size`; got {rank} of {world_size}.")
