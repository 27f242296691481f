"""Losses by name, means over samples: mean squared error and cross-entropy."""

import difflib
from collections.abc import Callable

import torch
from torch import Tensor


def mse(prediction: Tensor, y: Tensor) -> Tensor:
    """Mean squared error ½‖y − h‖², summed over outputs and averaged over samples.

    >>> mse(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)).item()
    2.5
    """
    if prediction.shape != y.shape:
        raise ValueError(
            f"`h(x, q)` must have the shape of `y` for mean squared error; got {tuple(prediction.shape)} and "
            f"{tuple(y.shape)}: reshape one of them."
        )
    return 0.5 * (prediction - y).square().sum() / len(y)


def cross_entropy(prediction: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of logits `prediction` (N, ..., classes) and labels `y` (N, ...), averaged over samples.

    >>> round(cross_entropy(torch.zeros(1, 2), torch.tensor([0])).item(), 4)
    0.6931
    """
    if prediction.shape[:-1] != y.shape:
        raise ValueError(
            f"`h(x, q)` must have the shape of the labels plus an axis of classes; got {tuple(prediction.shape)} and "
            f"{tuple(y.shape)}: return one logit per class along the last axis."
        )
    if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < prediction.shape[-1]:
        raise ValueError(
            f"`y` must hold integer labels from 0 to {prediction.shape[-1] - 1} for cross-entropy; got {y.dtype} from "
            f"{float(y.min()):g} to {float(y.max()):g}: number the classes from 0 and convert with y.long()."
        )
    log_p = torch.log_softmax(prediction, dim=-1)
    return -log_p.gather(-1, y.unsqueeze(-1)).sum() / len(y)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": mse, "cross_entropy": cross_entropy}


def resolve_loss(loss: str | Callable[[Tensor, Tensor], Tensor]) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return the name of a loss and the loss; "custom" for a callable."""
    if callable(loss):
        return "custom", loss
    if loss not in LOSSES:
        close = difflib.get_close_matches(loss, LOSSES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "or pass a callable loss(prediction, y)."
        raise ValueError(f"`loss` must be one of {', '.join(map(repr, LOSSES))}; got {loss!r}: {hint}")
    return loss, LOSSES[loss]
