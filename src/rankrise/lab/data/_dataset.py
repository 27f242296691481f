"""What every data set is: a task, its sizes, and batches that are pure functions of (seed, epoch, position)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from rankrise._arguments import as_count
from rankrise.lab.data._mix import Purpose, bits, key

Span = tuple[int, int]  # positions [begin, end) in the order of an epoch


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """Return the order of an epoch: a uniform permutation of 0, …, n - 1 that is a pure function of the arguments.

    Samples are sorted by 64 random bits each, so the order depends on no generator, device or version of torch. The
    cost is n log n: 50,000 samples take 2 ms.

    Args:
        seed: The run's seed.
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
    """Return the positions of this rank's rows in each whole batch of an epoch, from batch `start` on.

    Raises:
        ValueError: If the epoch has no whole batch, or the ranks would not get equal shares.

    >>> list(train_spans(10, batch_size=4, start=0, rank=1, world_size=2))
    [(2, 4), (6, 8)]
    """
    _check(batch_size, rank, world_size)
    if batch_size % world_size:
        raise ValueError(
            f"`batch_size` must be a multiple of `world_size`, so that all ranks have the same number of rows; "
            f"got {batch_size} and {world_size}."
        )
    if batch_size > n:
        raise ValueError(f"`batch_size` must be at most the {n} training samples there are; got {batch_size}.")
    share = batch_size // world_size
    first = rank * share
    return ((i * batch_size + first, i * batch_size + first + share) for i in range(start, n // batch_size))


def held_out_spans(n: int, *, batch_size: int, rank: int, world_size: int) -> Iterator[Span]:
    """Return the positions of this rank's rows in each batch; the last may be short, and an empty share is left out.

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


Task = Literal["classify", "next_token", "regress"]
Task.__doc__ = "What a data set is for: one of three names."

_FEW = 16  # samples that a fingerprint reads from each split


class Batch(NamedTuple):
    """Rows of a data set, on its device.

    Attributes:
        inputs: Images (B, C, H, W), float32, normalised; tokens (B, T), int64; vectors (B, n, d), float32.
        targets: Labels (B,), int64; the next tokens (B, T), int64; vectors (B, n, d), float32.
    """

    inputs: Tensor
    targets: Tensor


class Dataset(ABC):
    """Batches for training and for testing, made by `load_dataset`, or from your own tensors by `from_tensors`.

    The order of an epoch and the augmentation of a sample are pure functions of (seed, epoch, index). Therefore a run
    resumes within an epoch from two integers, and the batches of all ranks together equal those of one process bit for
    bit.

    Attributes:
        task: `"classify"`, `"next_token"` or `"regress"`.
        num_train: Number of training samples; for a text, of blocks of `context` tokens.
        num_test: Number of test samples, likewise.
        input_shape: Shape of one input, without the batch.
        num_classes: Number of classes, or size of the vocabulary; 0 for regression.
    """

    task: Task
    num_train: int
    num_test: int
    input_shape: tuple[int, ...]
    num_classes: int

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """Return the same data on another device, where its batches are then made."""

    @abstractmethod
    def _train(self, order: Tensor, spans: Iterator[Span], seed: int, epoch: int) -> Iterator[Batch]:
        """Yield batches of the training samples at the given positions of `order`."""

    @abstractmethod
    def _test(self, spans: Iterator[Span]) -> Iterator[Batch]:
        """Yield batches of the test samples at the given positions."""

    def fingerprint(self) -> tuple[float, ...]:
        """Return a few numbers that identify the data: moments of the first samples of both splits.

        The numbers of other data are almost never equal; those of the same data on another device or machine agree to
        1e-5. The cost is that of reading 16 samples of each split.
        """
        here = self.to("cpu")
        num_train, num_test = min(_FEW, self.num_train), min(_FEW, self.num_test)
        train = here._train(epoch_order(0, 0, self.num_train), iter([(0, num_train)]), 0, 0)
        test = here._test(iter([(0, num_test)] if num_test else []))
        return tuple(
            moment for batches in (train, test) for batch in batches for part in batch for moment in _moments(part)
        )

    def num_batches(self, batch_size: int) -> int:
        """Return the number of whole batches in an epoch; a partial last batch is dropped."""
        return self.num_train // as_count(batch_size, "batch_size", least=1)

    def train_batches(
        self, *, batch_size: int, seed: int, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Yield the batches of an epoch in the order of `epoch_order`; a partial last batch is dropped.

        Args:
            batch_size: Number b of rows of a batch over all ranks.
            seed: Seed of the order and of the augmentation.
            epoch: Counted from 0.
            start: Number of batches to skip, which costs nothing.
            rank: This rank r, which gets the rows [r b / w, (r + 1) b / w) of every batch.
            world_size: The number w of ranks; it must divide `batch_size`.

        Raises:
            ValueError: If there is no whole batch, or an argument breaks its rule above.
        """
        start = as_count(start, "start")
        order = epoch_order(seed, epoch, self.num_train)
        spans = train_spans(self.num_train, batch_size=batch_size, start=start, rank=rank, world_size=world_size)
        return self._train(order, spans, seed, epoch)

    def test_batches(self, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield all test samples in order, each on one rank; the last batch may be short, or missing on some ranks."""
        return self._test(held_out_spans(self.num_test, batch_size=batch_size, rank=rank, world_size=world_size))


def _moments(values: Tensor) -> tuple[float, float, float]:
    """Return the mean, the mean square, and a mean in which every position has a weight of its own."""
    flat = values.cpu().flatten().double().nan_to_num()  # the same numbers wherever the data lies
    weights = torch.arange(len(flat), dtype=torch.float64).cos()
    return float(flat.mean()), float(flat.square().mean()), float((flat * weights).mean())
