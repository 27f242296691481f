"""What a network is given to learn: data that is checked, the losses by name, and tasks with known answers.

Symbols:
    x, y    inputs and targets, samples along the first axis; for attention tokens (N, n, d)
    q       the teacher's products [a, b] = [w_K ⊙ w_Q, w_V ⊙ w_O]
    u0, v0  θ0, the start before the factor α
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankrise._arguments import did_you_mean

ArrayLike: TypeAlias = Tensor | NDArray[Any] | Sequence[Any]

# Data is streamed in chunks whose x takes this many bytes, so that the temporaries of a chunk stay in cache.
CHUNK_BYTES = 1 << 19


def as_data(name: str, values: ArrayLike) -> Tensor:
    """Return numbers that a user gives as a dense, real tensor that is detached from any graph.

    A tensor keeps its dtype and its device. An array or a nested list is copied to the CPU; Python's floats become
    float64.

    Args:
        name: The argument's name, for the message.
        values: A tensor, a numpy array, or nested lists of numbers.

    Raises:
        ValueError: If the values are complex, sparse, without numbers (a meta tensor), or no numbers at all.

    >>> as_data("y", [2.0, -4.0]).dtype
    torch.float64
    """
    tensor = values if isinstance(values, Tensor) else _from_array(name, values)
    if tensor.is_complex():
        raise ValueError(
            f"`{name}` must be real; got {tensor.dtype}: pass its real part, or real and imaginary parts as features."
        )
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise ValueError(f"`{name}` must be dense; got {kind}: pass a tensor that stores every entry (`to_dense()`).")
    if tensor.is_meta:
        raise ValueError(
            f"`{name}` must hold numbers; got a tensor on the meta device, which has only a shape: "
            "create it on the CPU or on a GPU."
        )
    return tensor.detach()


def as_samples(x: ArrayLike, y: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return inputs and targets as `as_data` does, once they are finite and have the same number of samples.

    Raises:
        ValueError: If the numbers of samples differ or are zero, a sample has no entry, or an entry is not finite.

    >>> x, y = as_samples([[1.0], [2.0]], [0, 1])
    >>> x.shape, y.dtype
    (torch.Size([2, 1]), torch.int64)
    """
    x, y = as_data("x", x), as_data("y", y)
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y) or len(x) == 0:
        counts = [str(len(data)) if data.dim() else "a single number" for data in (x, y)]
        raise ValueError(
            f"`x` and `y` must hold the same, positive number of samples; got {counts[0]} and {counts[1]}: "
            "put samples along the first axis of both."
        )
    for name, data in (("x", x), ("y", y)):
        if data.numel() == 0:
            raise ValueError(
                f"`{name}` must hold at least one number for every sample; got shape {tuple(data.shape)}: "
                "leave no axis empty."
            )
        if data.is_floating_point() and not bool(data.isfinite().all()):
            bad = int((~data.isfinite()).sum())
            raise ValueError(f"`{name}` must be finite; got {bad} entries that are not: drop or repair those samples.")
    return x, y


def _from_array(name: str, values: object) -> Tensor:
    try:
        array = np.array(values, order="C")
        if array.dtype.kind not in "biufc":
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"`{name}` must be an array of numbers; got {type(values).__name__}: "
            "pass a tensor, a numpy array, or nested lists of equal lengths."
        ) from None
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


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
        hint = did_you_mean(loss, LOSSES) or "Or pass a callable loss(prediction, y)."
        raise ValueError(f"`loss` must be one of {', '.join(map(repr, LOSSES))}; got {loss!r}. {hint}")
    return loss, LOSSES[loss]


def diagonal_attention(x: Tensor, q: Tensor) -> Tensor:
    """Return softmax(X diag(a) Xᵀ) X diag(b) for tokens x (N, n, d) and products q = [a, b], 2d numbers."""
    a, b = q.chunk(2)
    return torch.softmax((x * a) @ x.mT, dim=-1) @ x * b


def random_feed_forward(
    x: Tensor, *, layers: int, heads: int, width: int | None, scale: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw the fixed feed-forward weights of a toy transformer, both (layers, d, width), for tokens x (N, n, d).

    They are Gaussian of standard deviation scale/√(fan in).

    Raises:
        ValueError: If x is no batch of tokens, or there is no layer or no head.
    """
    if x.dim() != 3 or x.shape[2] == 0:
        raise ValueError(f"`x` must have shape (N, n, d), d ≥ 1; got {tuple(x.shape)}: samples, tokens, dimension.")
    if layers < 1 or heads < 1:
        raise ValueError(f"`layers` and `heads` must be at least 1; got {layers} and {heads}: ask for a network.")
    d = x.shape[2]
    width = d if width is None else width
    generator = torch.Generator().manual_seed(seed)
    w_1 = torch.randn(layers, d, width, generator=generator, dtype=torch.float64) * (scale / d**0.5)
    w_2 = torch.randn(layers, d, width, generator=generator, dtype=torch.float64) * (scale / width**0.5)
    return w_1.to(x.device), w_2.to(x.device)


class TeacherTask(NamedTuple):
    """Inputs, targets and the products that made them."""

    x: Tensor
    y: Tensor
    q: Tensor


def teacher_task(*, samples: int = 1000, tokens: int = 10, dim: int = 50, seed: int = 0) -> TeacherTask:
    """Draw the paper's toy: isotropic Gaussian tokens, targets from a teacher attention head.

    y = softmax(X diag(w_K ⊙ w_Q) Xᵀ) X diag(w_V ⊙ w_O), each of w_K, w_Q, w_V, w_O standard normal. All numbers are
    drawn on the CPU in float64 by a generator of their own, so that the task is a function of the arguments and the
    global generator is untouched.

    Args:
        samples: Number N of sequences.
        tokens: Tokens n per sequence.
        dim: Dimension d of a token; the student has 2d weights.
        seed: Seed of the generator.

    >>> x, y, q = teacher_task(samples=5, tokens=3, dim=4)
    >>> x.shape == y.shape == (5, 3, 4), q.shape
    (True, torch.Size([8]))
    """
    for name, value in (("samples", samples), ("tokens", tokens), ("dim", dim)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1; got {value}: ask for a task that is not empty.")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, tokens, dim, generator=generator, dtype=torch.float64)
    w_k, w_q, w_v, w_o = torch.randn(4, dim, generator=generator, dtype=torch.float64)
    q = torch.cat([w_k * w_q, w_v * w_o])
    return TeacherTask(x, diagonal_attention(x, q), q)


def gaussian_start(num_weights: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw θ0 = (u0, v0), two vectors of p standard normal numbers, to be scaled by α.

    >>> u0, v0 = gaussian_start(8, seed=1)
    >>> u0.shape, v0.shape
    (torch.Size([8]), torch.Size([8]))
    """
    generator = torch.Generator().manual_seed(seed)
    u0, v0 = torch.randn(2, num_weights, generator=generator, dtype=torch.float64)
    return u0, v0
