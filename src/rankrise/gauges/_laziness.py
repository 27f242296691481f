"""Laziness: how far a network in training is from its linearisation at the start.

Legend: f(w) the outputs on a fixed batch, all of them in one vector; w₀ and w the weights at the start and now,
Δ = w − w₀; J₀ and J the Jacobians of f there.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise._attention import differentiable_attention

Weights = Mapping[str, Tensor]
Function = Callable[[Weights], Tensor]

_DIFFERENCE = 1e-3  # step of a finite difference, as a share of the norm of the weights
_SMALLEST = 1e-6  # a smaller relative change of the outputs is mostly rounding


@dataclass(frozen=True)
class Laziness:
    """How lazy a network is, as numbers without a unit.

    Attributes:
        linearisation_error: ‖f − f₀ − J₀Δ‖ / ‖f − f₀‖; 0 for a linear model, about 1 where the linearisation predicts
            as badly as "nothing has changed". NaN while the outputs have not moved.
        jacobian_change: ‖J − J₀‖_F / ‖J₀‖_F, estimated from random tangents.
        weight_change: ‖Δ‖ / ‖w₀‖.
    """

    linearisation_error: Tensor
    jacobian_change: Tensor
    weight_change: Tensor


@dataclass(frozen=True)
class Start:
    """What `laziness` needs of the network at its start; `linearise` makes it."""

    weights: dict[str, Tensor]
    outputs: Tensor
    images: Tensor  # (tangents, outputs): J₀ ξ for every random tangent ξ
    names: tuple[str, ...]  # the weights that the tangents move
    seed: int


@torch.no_grad()
def linearise(
    function: Function, weights: Weights, *, tangents: int = 4, names: Collection[str] | None = None, seed: int = 0
) -> Start:
    """Keep the outputs at the start, and the images of random tangents under the Jacobian there.

    Args:
        function: Takes the weights by name, and returns a tensor of outputs; it must be differentiable.
        weights: w₀; it is copied.
        tangents: Number of random tangents; a change of the Jacobian is then known to about a factor 1 ± 1/√tangents.
        names: The weights that the tangents move; all by default.
        seed: Seed of the tangents, which are drawn again instead of being stored.
    """
    kept = {name: weight.detach().clone() for name, weight in weights.items()}
    moved = tuple(kept if names is None else names)
    outputs = function(kept)
    images = [jvp(function, kept, xi)[1].flatten() for xi in _tangents(kept, moved, tangents, seed)]
    return Start(kept, outputs.detach().flatten(), torch.stack(images), moved, seed)


@torch.no_grad()
def laziness(function: Function, weights: Weights, start: Start) -> Laziness:
    """Compare a network with its linearisation at the start.

    Cost: one Jacobian-vector product at the start's weights, and one at the present weights for each tangent.

    Args:
        function: The function that `start` was made from.
        weights: w, under the names and in the dtypes of the start.
        start: What `linearise` returned.

    >>> def square(weights):  # f(w) = w + w², from w = 0 to w = 0.1
    ...     return weights["w"] + weights["w"] ** 2
    >>> start = linearise(square, {"w": torch.zeros(3, dtype=torch.float64)})
    >>> found = laziness(square, {"w": torch.full((3,), 0.1, dtype=torch.float64)}, start)
    >>> [round(x.item(), 4) for x in (found.linearisation_error, found.jacobian_change)]  # 0.01/0.11, and 2 · 0.1
    [0.0909, 0.2]
    """
    now = {name: weight.detach() for name, weight in weights.items()}
    delta = {name: now[name] - weight for name, weight in start.weights.items()}
    length, size = _norm(start.weights), _norm(delta)
    _, predicted = jvp(function, start.weights, delta)
    squares, outputs = [], None
    for xi, image in zip(_tangents(now, start.names, len(start.images), start.seed), start.images, strict=True):
        outputs, moved = jvp(function, now, xi)
        squares.append((moved.flatten() - image).double().square().sum())
    outputs = function(now) if outputs is None else outputs
    change = (outputs.flatten() - start.outputs).double()
    error = (change - predicted.flatten().double()).norm() / change.norm()
    has_moved = change.norm() > _SMALLEST * start.outputs.double().norm()
    whole = start.images.double().square().sum()
    return Laziness(
        linearisation_error=torch.where(has_moved, error, math.nan),
        jacobian_change=(torch.stack(squares).sum() / whole).sqrt() if squares else torch.tensor(math.nan),
        weight_change=size / length,
    )


def jvp(function: Function, weights: Weights, tangent: Weights) -> tuple[Tensor, Tensor]:
    """Return the outputs at `weights`, and their derivative in the direction `tangent`.

    Attention is computed by plain matrix products here, because fused attention has no forward derivative. Where
    another part of the network has none, a central difference takes the place of the derivative, and a warning says so.

    >>> value, slope = jvp(lambda w: w["w"] ** 2, {"w": torch.tensor(3.0)}, {"w": torch.tensor(1.0)})
    >>> value.item(), slope.item()
    (9.0, 6.0)
    """
    primals, tangents = dict(weights), {name: tangent[name] for name in weights}
    with differentiable_attention():
        try:
            outputs, image = torch.func.jvp(function, (primals,), (tangents,))  # type: ignore[misc]
        except (NotImplementedError, RuntimeError) as error:
            outputs, image = _instead(function, primals, tangents, error)
    return outputs, image


def _instead(function: Function, weights: Weights, tangent: Weights, error: Exception) -> tuple[Tensor, Tensor]:
    """Take finite differences in place of a derivative; if the network itself fails, raise the error of the network."""
    try:
        outputs, image = function(weights), _difference(function, weights, tangent)
    except Exception:
        raise error from None
    warnings.warn(
        "The network has a part without a forward derivative, so finite differences take its place, at less precision.",
        stacklevel=3,
    )
    return outputs, image


def _difference(function: Function, weights: Weights, tangent: Weights) -> Tensor:
    size = _norm(tangent)
    if size == 0:
        return torch.zeros_like(function(weights))
    step = _DIFFERENCE * (_norm(weights) / size).item()
    ahead, behind = (function({n: w + sign * step * tangent[n] for n, w in weights.items()}) for sign in (1, -1))
    return (ahead - behind) / (2 * step)


def _tangents(weights: Weights, names: Collection[str], count: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Draw tangents that are standard normal along the weights in `names`, and zero along the others."""
    for number in range(count):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        yield {
            name: torch.randn(weight.shape, generator=generator).to(weight)
            if name in names
            else torch.zeros_like(weight)
            for name, weight in weights.items()
        }


def _norm(weights: Weights) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(torch.stack([weight.double().norm() for weight in weights.values()]))
    return length
