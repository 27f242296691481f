"""What every data set is: a task, its sizes, and batches that are pure functions of (seed, epoch, position)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from rankrise._arguments import as_count
from rankrise.lab.data._order import Span, epoch_order, held_out_spans, train_spans

Task = Literal["classify", "next_token", "regress"]

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
