"""A cross-entropy whose gradient sums to zero over the classes in every number format.

The gradient of the cross-entropy with respect to the logits is p_c − t_c for every class c, with p = softmax and t the
targets; it sums to 0. Once the softmax of the right class rounds to 1, its entry is exactly 0 while the others are not:
the sum is no longer 0, and every step moves the mean of the last layer the same way.
"""

from typing import Any, Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]


class _ZeroSum(torch.autograd.Function):
    """Cross-entropy of each sample, (n,), from logits (n, classes) and targets (n, classes) that sum to 1."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
        log_p = logits.log_softmax(-1)
        ctx.save_for_backward(log_p, targets, labels)
        return -(targets * log_p).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        log_p, targets, labels = ctx.saved_tensors
        gradient = (log_p.exp() - targets).scatter(-1, labels[:, None], 0.0)
        own = -gradient.sum(-1, keepdim=True)  # the entry of the right class: minus the sum of the others
        return gradient.scatter(-1, labels[:, None], own) * grads[0][:, None], None, None


def zero_sum_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Compute PyTorch's `cross_entropy`, with a gradient that sums to zero over the classes after rounding too.

    The value is that of PyTorch. In the gradient, the entry of the right class is −Σ p_c over the other classes in
    place of p_y − 1; the two are equal in exact arithmetic. This cures slingshots, which are late spikes of the loss of
    a network that has fitted its data, and which begin when the softmax rounds to 1. Everything is computed in the
    dtype of the logits.

    Args:
        logits: (n, classes), or (n, classes, …) as PyTorch takes them.
        targets: Classes, (n,) or (n, …).
        ignore_index: Targets of this class are left out.
        label_smoothing: Share of the target that is spread over all classes, from 0 to 1.
        reduction: "mean" over the targets that count, "sum", or "none".

    Raises:
        ValueError: An option or a shape is out of its range.

    >>> logits = torch.tensor([[30.0, 0.0, 1.0]], requires_grad=True)
    >>> for loss in (torch.nn.functional.cross_entropy, zero_sum_cross_entropy):
    ...     (gradient,) = torch.autograd.grad(loss(logits, torch.tensor([0])), logits)
    ...     print(gradient[0, 0].item() == 0, abs(gradient.sum().item()) < 1e-20)
    True False
    False True
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"`reduction` must be mean, sum or none; got {reduction!r}.")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"`label_smoothing` must be from 0 to 1; got {label_smoothing}.")
    if logits.ndim < 2 or targets.shape != logits.shape[:1] + logits.shape[2:]:
        raise ValueError(
            "`targets` must hold a class for every row of `logits`, "
            f"{tuple(logits.shape[:1] + logits.shape[2:])}; got {tuple(targets.shape)}."
        )
    classes = logits.shape[1]
    rows, labels = logits.movedim(1, -1).reshape(-1, classes), targets.flatten()
    counts = labels != ignore_index
    kept = torch.where(counts, labels, 0)
    spread = torch.full_like(rows, label_smoothing / classes)
    smooth = spread.scatter_add(-1, kept[:, None], torch.full_like(rows[:, :1], 1 - label_smoothing))
    losses = torch.where(counts, _ZeroSum.apply(rows, smooth, kept), 0.0)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return losses.reshape(targets.shape)
    return losses.sum() / counts.sum() if reduction == "mean" else losses.sum()
