"""Intruder dimensions: leading directions of a tuned weight that are new to its base.

Shuttleworth, Andreas, Torralba and Sharma (2024), "LoRA vs full fine-tuning: an illusion of equivalence", call a left
singular vector of the tuned weight an intruder if its largest |cosine| with any singular vector of the base is below
1/2. Where singular values of the base lie close together, any change turns their vectors among themselves, so that rule
also reports vectors that were in the base all along. Here a direction is compared with the subspace of the base's
leading directions, which such turns leave alone.

Symbols:
    W0, W   base and tuned, (m, n)
    U0      leading K left singular vectors of W0
    u_j     left singular vectors of W, j ≤ k = K / 4
    c_j     ‖U0ᵀ u_j‖, the cosine between u_j and the span of U0. A random direction has c ≈ √(K / m) ≤ 0.36
    e_j     ‖W0ᵀ u_j‖² / ‖Wᵀ u_j‖², how much of u_j was in the base. A base whose singular values are all alike has no
            leading directions, so that c_j says nothing there; e_j is 1 for every direction of such a base
    G       random, with ‖G‖ = ‖W − W0‖: the null is the least c_j of W0 + G
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_BASE, _MOST_TUNED = 40, 10
_PARTS = 8  # K is at most an eighth of the smaller side, so that a random direction is far from the span
_FIRST, _AGAIN = 12, 6  # iterations from a random start, and from the directions of the base
_SPARE = 8
_INTRUDER = 0.5  # the cosine below which the paper calls a direction an intruder
_MARGIN = 0.8  # share of the cosine of the null, which differs by a few percent from draw to draw
_DRAWS = 8
_IN_THE_BASE = 0.5  # a direction with a larger e_j is not new


@dataclass(frozen=True)
class Intruders:
    """How many of the leading directions of a tuned weight are new to its base."""

    num: int
    num_directions: int  # k
    least_cosine: float  # min c_j
    null: float | None  # the same of a random change of the same size, least of eight draws; None where num would be 0


def find_intruders(base: Tensor, tuned: Tensor) -> Intruders | None:
    """Count the leading directions of `tuned` whose cosine with the leading directions of `base` is below 1/2.

    The change also has to be more than half of the direction (e_j < 1/2), and the cosine has to lie below 0.8 of what
    random changes of the same size give, which counts where a change is as large as the weight.
    `studies/diff_alarms.py` measures both errors.

    Cost: O(m n K) for each of 2 iterations, and where there is a candidate of 8 more. Directions are counted as rows
    of the weights are stored: outputs of a Linear, as PEFT's `reduce_intruder_dimension` counts them.

    Args:
        base: (m, n), float32 or float64, finite.
        tuned: Likewise.

    Returns:
        None for a weight whose smaller side is below 16, or one that is zero.

    >>> generator = torch.Generator().manual_seed(0)
    >>> base, noise = (torch.randn(128, 96, generator=generator) for _ in range(2))
    >>> spike = torch.randn(128, 1, generator=generator) @ torch.randn(1, 96, generator=generator)
    >>> [find_intruders(base, base + change).num for change in (0.3 * noise, 0.3 * spike)]
    [0, 1]
    """
    smaller = min(base.shape)
    num_base = min(_MOST_BASE, smaller // _PARTS)
    if num_base < 2 or not (bool(base.any()) and bool(tuned.any())):
        return None
    num = min(_MOST_TUNED, max(1, num_base // 4))
    generator = torch.Generator("cpu").manual_seed(0)
    width = min(smaller, num_base + _SPARE)
    start = torch.randn(base.shape[1], width, generator=generator).to(base)
    left, right = _leading(base, start, _FIRST)
    span = left[:, :num_base]
    more = torch.randn(base.shape[1], min(_SPARE, base.shape[1] - width), generator=generator).to(base)
    start = torch.cat([right, more], 1)
    cosines, directions = _cosines(tuned, start, span, num)
    least, null = float(cosines.min()), None
    is_new = _strength(base, directions) < _IN_THE_BASE * _strength(tuned, directions)
    if (is_new & (cosines < _INTRUDER)).any():
        size = float(torch.linalg.vector_norm(tuned - base))
        draws = (torch.randn(base.shape, generator=generator).to(base) for _ in range(_DRAWS))
        null = min(float(_cosines(base + size / float(d.norm()) * d, start, span, num)[0].min()) for d in draws)
    limit = _INTRUDER if null is None else min(_INTRUDER, _MARGIN * null)
    return Intruders(int((is_new & (cosines < limit)).sum()), num, least, null)


def _cosines(weight: Tensor, start: Tensor, span: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """c_j of the leading directions of a weight, and the directions u_j, (m, num)."""
    left, _ = _leading(weight, start, _AGAIN)
    cosines: Tensor = torch.linalg.vector_norm(span.mT @ left[:, :num], dim=0)
    return cosines, left[:, :num]


def _strength(weight: Tensor, directions: Tensor) -> Tensor:
    """‖weightᵀ u_j‖², in float64, where no square of a float32 leaves the range."""
    return (weight.mT @ directions).double().square().sum(0)


def _leading(weight: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Leading left and right singular vectors, descending, by subspace iteration on the right ones."""
    scaled = weight / max(float(weight.abs().max()), math.sqrt(torch.finfo(weight.dtype).tiny))
    right = torch.linalg.qr(start).Q
    for _ in range(iterations):
        right = torch.linalg.qr(scaled.mT @ (scaled @ right)).Q
    left, triangle = torch.linalg.qr(scaled @ right)
    u, _, vh = torch.linalg.svd(triangle)
    return left @ u, right @ vh.mT
