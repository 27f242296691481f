"""Your own tensors as a data set."""

from typing import Any

import torch
from torch import Tensor

from rankrise._arguments import as_count, check_choice
from rankrise.lab.data._dataset import Dataset, Task
from rankrise.lab.data._memory import Pairs

_DTYPES = {  # of inputs and of targets
    "classify": (torch.float32, torch.int64),
    "next_token": (torch.int64, torch.int64),
    "regress": (torch.float32, torch.float32),
}


def from_tensors(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, task: Task, num_classes: int | None = None
) -> Dataset:
    """Make a data set of tensors in memory, one sample a row, used as they are: normalise them first.

    Args:
        train: Inputs and targets. For `"classify"` inputs float32 and labels (n,) int64; for `"next_token"` tokens and
            next tokens, both (n, T) int64; for `"regress"` both float32.
        test: Likewise.
        task: Which of the three.
        num_classes: Classes, or size of the vocabulary; one more than the largest target or token unless given.

    Raises:
        ValueError: Another dtype or shape, an empty split, or a label out of range; says which.

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
