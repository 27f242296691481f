"""Data sets that live on the device as a whole: images as bytes, tokens as int32, vectors as float32.

The order goes to the device once per epoch. A batch of images takes three kernels and no wait for the device.
An augmented image is the stored one seen through index tables: pixel (y, x) comes from (rows[y], columns[x]). The
tables of an epoch are made in a few kernels on the device from random bits that belong to the sample and not to the
batch; a batch then costs one gather, and two more kernels to normalise it.
"""

from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankrise._arguments import as_count, check_choice
from rankrise.lab.data._dataset import Batch, Dataset, Span, Task
from rankrise.lab.data._mix import Purpose, below, bits, key


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation per channel of pixels scaled to [0, 1]; `white` is the byte that is white."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: int = 255

    def tables(self, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Return the shift and the scale of stored bytes, (C, 1, 1) each."""
        shift = torch.tensor(self.mean, dtype=torch.float64) * self.white
        scale = 1 / (torch.tensor(self.std, dtype=torch.float64) * self.white)
        return shift[:, None, None].float().to(device), scale[:, None, None].float().to(device)


# Statistics of the training images: CIFAR's and ImageNet's as usually published, the digits' as measured here; other
# data is only centred.
CIFAR10 = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DIGITS = Normalisation((0.3053,), (0.3760,), white=16)
CENTRED = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def normalise(images: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return (images - shift) · scale in float32, with two roundings that are never fused: equal on every device."""
    return torch.sub(images, shift).mul_(scale)


class Views(NamedTuple):
    """Where the pixels of augmented images come from: row and column indices, (n, S) each, int64."""

    rows: Tensor
    columns: Tensor

    def cut(self, begin: int, end: int) -> "Views":
        """Return the tables of the images [begin, end)."""
        return Views(self.rows[begin:end], self.columns[begin:end])


def margin(size: int, augment: Collection[str]) -> int:
    """Return how many black pixels are added on every side before a random crop: size // 8, so 4 for CIFAR's 32.

    >>> margin(32, ("crop",)), margin(64, ("flip", "crop")), margin(32, ("flip",))
    (4, 8, 0)
    """
    return size // 8 if "crop" in augment else 0


def with_margin(images: Tensor, augment: Collection[str]) -> Tensor:
    """Return images (n, C, S, S) with the black border that `draw_views` assumes."""
    width = margin(images.shape[-1], augment)
    return pad(images, (width,) * 4) if width else images


def draw_views(index: Tensor, *, size: int, augment: Collection[str], seed: int, epoch: int) -> Views:
    """Draw flips and crops for the samples `index`, each a function of (seed, epoch, sample) alone.

    Args:
        index: Samples of the training set, (n,), on the device of the images.
        size: Side S of the images, without their margin.
        augment: `"flip"` exchanges left and right in half of the images; `"crop"` takes a uniformly drawn S × S window
            of the image with its margin.
        seed: The run's seed.
        epoch: Counted from 0.

    >>> views = draw_views(torch.arange(4), size=8, augment=("crop",), seed=0, epoch=0)
    >>> views.rows.shape, int(views.rows.max()) < 8 + 2 * margin(8, ("crop",))
    (torch.Size([4, 8]), True)
    """
    line = torch.arange(size, device=index.device)
    top = left = torch.zeros_like(index)
    if "crop" in augment:
        num_offsets = 2 * margin(size, augment) + 1
        random = bits(key(seed, Purpose.CROP, epoch), index)
        top, left = below(random, num_offsets), below(random << 32, num_offsets)
    rows, columns = top[:, None] + line, left[:, None] + line
    if "flip" in augment:
        flipped = bits(key(seed, Purpose.FLIP, epoch), index) < 0  # the sign is a fair bit
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
    return Views(rows, columns)


def look(images: Tensor, index: Tensor, views: Views, channels: Tensor) -> Tensor:
    """Return images[index] seen through `views`, (B, C, S, S), in one gather; `channels` comes from `channel_index`."""
    rows, columns = views.rows[:, None, :, None], views.columns[:, None, None, :]
    return images[index[:, None, None, None], channels, rows, columns]


def channel_index(images: Tensor) -> Tensor:
    """Return 0, …, C - 1 as (C, 1, 1), the last argument of `look`."""
    return torch.arange(images.shape[1], device=images.device)[:, None, None]


class Pairs(Dataset):
    """Inputs and targets as tensors, used row by row without change: the teacher task, and a user's own tensors."""

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
        """Return the same data on another device."""
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
        """Return the same data on another device."""
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
    """A text as one row of int32 tokens, cut into blocks of `context`; an incomplete block at the end is dropped."""

    task = "next_token"

    def __init__(self, train: Tensor, test: Tensor, *, context: int, vocab_size: int) -> None:
        self._tokens, self._test_tokens = train, test
        self.num_train, self.num_test = num_blocks(train, context), num_blocks(test, context)
        self.input_shape = (context,)
        self.num_classes = vocab_size

    def to(self, device: torch.device | str) -> Self:
        """Return the same data on another device."""
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
        """Return inputs and next tokens, (num, context) each, as views."""
        (context,) = self.input_shape
        length = num * context
        return tokens[:length].view(num, context), tokens[1 : length + 1].view(num, context)


def num_blocks(tokens: Tensor, context: int) -> int:
    """Return the number of blocks of `context` tokens in which every token has a next one."""
    return max(0, (len(tokens) - 1) // context)


_DTYPES = {  # from a task to the dtypes of its inputs and of its targets
    "classify": (torch.float32, torch.int64),
    "next_token": (torch.int64, torch.int64),
    "regress": (torch.float32, torch.float32),
}


def from_tensors(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, task: Task, num_classes: int | None = None
) -> Dataset:
    """Make a data set of tensors in memory, one sample per row. They are used as they are: normalise them first.

    Args:
        train: Inputs and targets. For `"classify"` inputs float32 and labels (n,) int64; for `"next_token"` tokens and
            next tokens, both (n, T) int64; for `"regress"` both float32.
        test: Inputs and targets, likewise.
        task: `"classify"`, `"next_token"` or `"regress"`.
        num_classes: Number of classes or size of the vocabulary; if None, one more than the largest label or token.

    Raises:
        ValueError: If a dtype or shape is wrong, a split is empty, or a label is out of range; the message says which.

    >>> images, labels = torch.randn(100, 1, 8, 8), torch.arange(100) % 10
    >>> dataset = from_tensors((images[:80], labels[:80]), (images[80:], labels[80:]), task="classify")
    >>> dataset.num_train, dataset.input_shape, dataset.num_classes
    (80, (1, 8, 8), 10)
    """
    check_choice("task", task, _DTYPES)
    for name, pair in (("train", train), ("test", test)):
        _check_pair(name, pair, task)
    if train[0].shape[1:] != test[0].shape[1:]:
        shapes = f"{tuple(train[0].shape[1:])} and {tuple(test[0].shape[1:])}"
        raise ValueError(f"Inputs of `train` and `test` must have one shape; got {shapes}.")
    if task == "regress":
        return Pairs(train, test)
    seen = [tensor for pair in (train, test) for tensor in pair if not tensor.is_floating_point()]
    least, largest = min(int(t.min()) for t in seen), max(int(t.max()) for t in seen)
    num_classes = largest + 1 if num_classes is None else as_count(num_classes, "num_classes", least=1)
    if least < 0 or largest >= num_classes:
        raise ValueError(
            f"Labels and tokens must be from 0 to {num_classes - 1}; got {least if least < 0 else largest}."
        )
    return Pairs(train, test, task=task, num_classes=num_classes)


def _check_pair(name: str, pair: Any, task: Task) -> None:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, Tensor) for part in pair)
    if not is_pair:
        raise ValueError(f"`{name}` must be a pair of tensors (inputs, targets); got {type(pair).__name__}.")
    inputs, targets = pair
    for part, tensor, dtype in zip(("inputs", "targets"), (inputs, targets), _DTYPES[task], strict=True):
        if tensor.dtype != dtype:
            raise ValueError(f"The {part} of `{name}` must be {dtype} for {task!r}; got {tensor.dtype}. Convert them.")
    if inputs.ndim < 2 or len(inputs) != len(targets) or len(inputs) == 0:
        shapes = f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ValueError(f"`{name}` must have as many inputs as targets, a row each and at least one; got {shapes}.")
    if (task == "classify" and targets.ndim != 1) or (task == "next_token" and targets.shape != inputs.shape):
        wanted = "(n,)" if task == "classify" else f"{tuple(inputs.shape)}"
        raise ValueError(f"The targets of `{name}` must have shape {wanted} for {task!r}; got {tuple(targets.shape)}.")
