"""Data sets that live on the device as a whole: images as bytes, tokens as int32, vectors as float32.

Per epoch the order goes to the device once; per batch there are three kernels for images and no wait for the device.
"""

from collections.abc import Iterator
from copy import copy
from typing import Self

import torch
from torch import Tensor

from rankrise.lab.data._augment import channel_index, draw_views, look, with_margin
from rankrise.lab.data._dataset import Batch, Dataset, Task
from rankrise.lab.data._normalise import Normalisation, normalise
from rankrise.lab.data._order import Span


class Pairs(Dataset):
    """Inputs and targets as tensors, row by row, as they are: the teacher task, and a user's own."""

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        *,
        task: Task = "regress",
        num_classes: int = 0,
    ) -> None:
        self.task, self.num_classes = task, num_classes
        self._train_pairs, self._test_pairs = train, test
        self.num_train, self.num_test = len(train[0]), len(test[0])
        self.input_shape = tuple(train[0].shape[1:])

    def to(self, device: torch.device | str) -> Self:
        """The same data on another device."""
        (x, y), (x_test, y_test) = self._train_pairs, self._test_pairs
        return type(self)(
            (x.to(device), y.to(device)),
            (x_test.to(device), y_test.to(device)),
            task=self.task,
            num_classes=self.num_classes,
        )

    def _train(self, order: Tensor, spans: Iterator[Span], seed: int, epoch: int) -> Iterator[Batch]:
        x, y = self._train_pairs
        order = order.to(x.device)
        for begin, end in spans:
            rows = order[begin:end]
            yield Batch(x[rows], y[rows])

    def _test(self, spans: Iterator[Span]) -> Iterator[Batch]:
        x, y = self._test_pairs
        return (Batch(x[begin:end], y[begin:end]) for begin, end in spans)


class Images(Dataset):
    """Images as bytes (n, C, S, S) with their labels (n,); training images hold the margin that crops need."""

    task = "classify"

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        *,
        num_classes: int,
        normalisation: Normalisation,
        augment: tuple[str, ...] = (),
    ) -> None:
        self.num_train, self.num_test = len(train[0]), len(test[0])
        self.input_shape = tuple(train[0].shape[1:])
        self.num_classes = num_classes
        self._normalisation, self._augment = normalisation, augment
        self._images, self._labels = with_margin(train[0], augment), train[1]
        self._test_images, self._test_labels = test
        self._place(self._images.device)

    def _place(self, device: torch.device | str) -> None:
        self._images, self._labels = self._images.to(device), self._labels.to(device)
        self._test_images, self._test_labels = self._test_images.to(device), self._test_labels.to(device)
        self._shift, self._scale = self._normalisation.tables(device)
        self._channels = channel_index(self._images)

    def to(self, device: torch.device | str) -> Self:
        """The same data on another device."""
        placed = copy(self)
        placed._place(device)
        return placed

    def _train(self, order: Tensor, spans: Iterator[Span], seed: int, epoch: int) -> Iterator[Batch]:
        order = order.to(self._images.device)
        labels = self._labels[order]
        size = self.input_shape[-1]
        views = draw_views(order, size=size, augment=self._augment, seed=seed, epoch=epoch) if self._augment else None
        for begin, end in spans:
            rows = order[begin:end]
            if views is None:
                images = self._images[rows]
            else:
                images = look(self._images, rows, views.cut(begin, end), self._channels)
            yield Batch(normalise(images, self._shift, self._scale), labels[begin:end])

    def _test(self, spans: Iterator[Span]) -> Iterator[Batch]:
        for begin, end in spans:
            images = normalise(self._test_images[begin:end], self._shift, self._scale)
            yield Batch(images, self._test_labels[begin:end])


class Tokens(Dataset):
    """A text as one row of int32 tokens, cut into blocks of `context`; what is left at its end is dropped."""

    task = "next_token"

    def __init__(self, train: Tensor, test: Tensor, *, context: int, vocab_size: int) -> None:
        self._tokens, self._test_tokens = train, test
        self.num_train, self.num_test = num_blocks(train, context), num_blocks(test, context)
        self.input_shape = (context,)
        self.num_classes = vocab_size

    def to(self, device: torch.device | str) -> Self:
        """The same data on another device."""
        (context,) = self.input_shape
        return type(self)(
            self._tokens.to(device), self._test_tokens.to(device), context=context, vocab_size=self.num_classes
        )

    def _train(self, order: Tensor, spans: Iterator[Span], seed: int, epoch: int) -> Iterator[Batch]:
        inputs, targets = self._blocks(self._tokens, self.num_train)
        order = order.to(inputs.device)
        for begin, end in spans:
            rows = order[begin:end]
            yield Batch(inputs[rows].long(), targets[rows].long())

    def _test(self, spans: Iterator[Span]) -> Iterator[Batch]:
        inputs, targets = self._blocks(self._test_tokens, self.num_test)
        return (Batch(inputs[begin:end].long(), targets[begin:end].long()) for begin, end in spans)

    def _blocks(self, tokens: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """Inputs and next tokens, (num, context) each, as views."""
        (context,) = self.input_shape
        length = num * context
        return tokens[:length].view(num, context), tokens[1 : length + 1].view(num, context)


def num_blocks(tokens: Tensor, context: int) -> int:
    """Blocks of `context` tokens that have a next token each."""
    return max(0, (len(tokens) - 1) // context)
