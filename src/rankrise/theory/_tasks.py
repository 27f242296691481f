"""Data and starts for experiments with known answers: the paper's toy and Gaussian θ0.

Symbols:
    x, y    tokens (N, n, d) and the teacher's outputs (N, n, d)
    q       the teacher's products [w_K ⊙ w_Q, w_V ⊙ w_O]
    u0, v0  θ0, the start before the factor α
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.theory._networks import _attention_h


class TeacherTask(NamedTuple):
    """Inputs, targets and the products that made them."""

    x: Tensor
    y: Tensor
    q: Tensor


def teacher_task(*, samples: int = 1000, tokens: int = 10, dim: int = 50, seed: int = 0) -> TeacherTask:
    """Draw the paper's toy: isotropic Gaussian tokens, targets from a teacher attention head.

    y = softmax(X diag(w_K ⊙ w_Q) Xᵀ) X diag(w_V ⊙ w_O), each of w_K, w_Q, w_V, w_O standard normal. Drawn on the CPU
    in float64 by a generator of its own: the task is a function of the arguments, the global generator is untouched.

    Args:
        samples: Number N of sequences.
        tokens: Tokens n per sequence.
        dim: Dimension d of a token; the student has 2d weights.
        seed: Of the generator.

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
    return TeacherTask(x, _attention_h(x, q), q)


def gaussian_start(num_weights: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw θ0 = (u0, v0), two vectors of p standard normal numbers, to be scaled by α.

    >>> u0, v0 = gaussian_start(8, seed=1)
    >>> u0.shape, v0.shape
    (torch.Size([8]), torch.Size([8]))
    """
    generator = torch.Generator().manual_seed(seed)
    u0, v0 = torch.randn(2, num_weights, generator=generator, dtype=torch.float64)
    return u0, v0
