"""The transformer of Example 3.2: diagonal attention weights are trained, feed-forward weights are fixed.

Symbols:
    Z_l         tokens after layer l, (N, n, d); Z_0 = X
    a, b        products w_K ⊙ w_Q and w_V ⊙ w_O of one head
    W_A, W_B    feed-forward weights of a layer, (d, width), fixed
    σ           activation of the feed-forward block, smooth
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.theory._networks import DiagonalNetwork, _attention_h


@dataclass(frozen=True)
class Coordinate:
    """Where a product q_i lives: layer and head from 0, circuit "kq" (a) or "vo" (b), index within the diagonal."""

    layer: int
    head: int
    circuit: str
    index: int


class Transformer(DiagonalNetwork):
    """A `DiagonalNetwork` that knows its coordinates; built by `transformer`.

    Attributes:
        coordinates: One `Coordinate` per product, p = 2 d H L of them.
    """

    coordinates: tuple[Coordinate, ...]


def transformer(
    x: Tensor,
    y: Tensor,
    *,
    layers: int,
    heads: int,
    width: int | None = None,
    activation: Callable[[Tensor], Tensor] = torch.nn.functional.gelu,
    feed_forward_scale: float = 0.5,
    seed: int = 0,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "mse",
    l2: float = 0.0,
) -> Transformer:
    """Build the transformer of Example 3.2 with L layers and H heads.

    Z̃_l = Z_{l-1} + Σ_i attention_i(Z_{l-1}),  Z_l = Z̃_l + σ(Z̃_l W_A) W_Bᵀ,  p = 2 d H L.

    With H ≥ 2 the heads of a layer are exchangeable: g is identical across them at q = 0, and Assumption 4.2 cannot
    hold. `incremental_stages` reports the tie.

    Args:
        x: Tokens, (N, n, d).
        y: Targets for Z_L, (N, n, d), or labels (N, n) for cross-entropy.
        layers: L.
        heads: H, per layer.
        width: Of the feed-forward block; d if None.
        activation: σ, twice continuously differentiable.
        feed_forward_scale: Feed-forward weights are Gaussian of standard deviation scale/√(fan in).
        seed: Of the feed-forward weights.
        loss: As for `DiagonalNetwork`.
        l2: As for `DiagonalNetwork`.

    >>> x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    >>> net = transformer(x, x, layers=2, heads=1)
    >>> net.num_weights, net.coordinates[5]
    (8, Coordinate(layer=1, head=0, circuit='kq', index=1))
    """
    if x.dim() != 3:
        raise ValueError(f"`x` must have shape (N, n, d); got {tuple(x.shape)}: samples, tokens, dimension.")
    if layers < 1 or heads < 1:
        raise ValueError(f"`layers` and `heads` must be at least 1; got {layers} and {heads}: ask for a network.")
    d = x.shape[2]
    width = d if width is None else width
    generator = torch.Generator().manual_seed(seed)
    w_a = torch.randn(layers, d, width, generator=generator, dtype=torch.float64) * (feed_forward_scale / d**0.5)
    w_b = torch.randn(layers, d, width, generator=generator, dtype=torch.float64) * (feed_forward_scale / width**0.5)
    w_a, w_b = w_a.to(x.device), w_b.to(x.device)

    def h(x: Tensor, q: Tensor) -> Tensor:
        z = x
        for layer, diagonals in enumerate(q.view(layers, heads, 2 * d)):
            z = z + sum(_attention_h(z, diagonal) for diagonal in diagonals)
            z = z + activation(z @ w_a[layer]) @ w_b[layer].T
        return z

    net = Transformer(h, x.double(), y, num_weights=2 * d * heads * layers, loss=loss, l2=l2)
    net.coordinates = tuple(
        Coordinate(layer, head, circuit, index)
        for layer in range(layers)
        for head in range(heads)
        for circuit in ("kq", "vo")
        for index in range(d)
    )
    return net
