"""Losses and scores of the three tasks.

classify     cross-entropy of the logits (B, classes), mean over samples
next_token   cross-entropy of the logits (B, T, vocabulary), mean over tokens
regress      ½‖f(x) − y‖² per sample, mean over samples, as in `rankrise.theory`
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    from rankrise.lab.data._dataset import Task


def mean_loss(task: "Task", outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a batch, in float32.

    >>> mean_loss("regress", torch.ones(4, 3, 2), torch.zeros(4, 3, 2))
    tensor(3.)
    """
    if task == "regress":
        return 0.5 * (outputs.float() - targets).square().flatten(1).sum(1).mean()
    return cross_entropy(outputs.flatten(0, -2).float(), targets.flatten())


def num_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many of the targets are the largest logit, in float32.

    >>> num_correct(torch.eye(3), torch.tensor([0, 1, 0]))
    tensor(2.)
    """
    return (outputs.argmax(-1) == targets).sum(dtype=torch.float32)
