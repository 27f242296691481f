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


Task = Literal["classify", "next_token", "regress"]
Task.__doc__ = "What a data set is for: one of three names."

_FEW = 16  # samples of a fingerprint


class Batch(NamedTuple):
    """Rows of a data set, on its device.

    Attributes:
        inputs: Images (B, C, H, W), float32, normalised; tokens (B, T), int64; vectors (B, n, d), float32.
        targets: Labels (B,), int64; the next tokens (B, T), int64; vectors (B, n, d), float32.
    """

    inputs: Tensor
    targets: Tensor


class Dataset(ABC):
    """Batches for training and for testing; made by `load_dataset`, or of your own tensors by `from_tensors`.

    The order of an epoch and the augmentation of a sample are pure functions of (seed, epoch, index): a run resumes in
    mid-epoch from two integers, and the batches of all ranks together are those of one process, bit for bit.

    Attributes:
        task: `"classify"`, `"next_token"` or `"regress"`.
        num_train: Training samples; of a text, blocks of `context` tokens.
        num_test: Test samples, likewise.
        input_shape: Shape of one input, without the batch.
        num_classes: Classes, or size of the vocabulary; 0 for regression.
    """

    task: Task
    num_train: int
    num_test: int
    input_shape: tuple[int, ...]
    num_classes: int

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same data on another device; batches are made there."""

    @abstractmethod
    def _train(self, order: Tensor, spans: Iterator[Span], seed: int, epoch: int) -> Iterator[Batch]:
        """Batches of the training samples at the given positions of `order`."""

    @abstractmethod
    def _test(self, spans: Iterator[Span]) -> Iterator[Batch]:
        """Batches of the test samples at the given positions."""

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that other data does not share: moments of the first samples of both splits.

        Seldom equal for other data, close (to 1e-5) for the same data on another device or machine. Costs as much as
        reading 16 samples of each split.
        """
        here = self.to("cpu")
        num_train, num_test = min(_FEW, self.num_train), min(_FEW, self.num_test)
        train = here._train(epoch_order(0, 0, self.num_train), iter([(0, num_train)]), 0, 0)
        test = here._test(iter([(0, num_test)] if num_test else []))
        return tuple(
            moment for batches in (train, test) for batch in batches for part in batch for moment in _moments(part)
        )

    def num_batches(self, batch_size: int) -> int:
        """Batches of an epoch: whole ones, the rest is dropped."""
        return self.num_train // as_count(batch_size, "batch_size", least=1)

    def train_batches(
        self, *, batch_size: int, seed: int, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """The batches of an epoch, in `epoch_order`; a last partial batch is dropped.

        Args:
            batch_size: Rows of a batch over all ranks.
            seed: Of the order and of the augmentation.
            epoch: Counted from 0.
            start: Batches to skip, at no cost.
            rank: Yields rows [r b / w, (r + 1) b / w) of every batch of b rows.
            world_size: The number w of ranks; divides `batch_size`.

        Raises:
            ValueError: There is no whole batch, or an argument is not as above.
        """
        start = as_count(start, "start")
        order = epoch_order(seed, epoch, self.num_train)
        spans = train_spans(self.num_train, batch_size=batch_size, start=start, rank=rank, world_size=world_size)
        return self._train(order, spans, seed, epoch)

    def test_batches(self, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """All test samples, in order, each on one rank; the last batch may be short, or missing on some ranks."""
        return self._test(held_out_spans(self.num_test, batch_size=batch_size, rank=rank, world_size=world_size))


def _moments(values: Tensor) -> tuple[float, float, float]:
    """Mean, mean square, and a mean in which every place has another weight."""
    flat = values.cpu().flatten().double().nan_to_num()  # the same numbers wherever the data lies
    weights = torch.arange(len(flat), dtype=torch.float64).cos()
    return float(flat.mean()), float(flat.square().mean()), float((flat * weights).mean())
