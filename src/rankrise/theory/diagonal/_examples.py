"""Networks of the paper with diagonal weights: linear, one attention head, and the transformer of Example 3.2.

Symbols:
    q           products u ⊙ v; of a head [a, b] with a = w_K ⊙ w_Q and b = w_V ⊙ w_O
    Z_l         tokens after layer l, (N, n, d); Z_0 = X
    W_A, W_B    feed-forward weights of a layer, (d, width), which stay fixed
    σ           activation of the feed-forward block, smooth
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.theory._tasks import ArrayLike, as_data, diagonal_attention, random_feed_forward
from rankrise.theory.diagonal._attention_head import AttentionHead
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork


class _Linear(DiagonalNetwork):
    """h(x; q) = Σ q_i x_i under mean squared error, with H = XᵀX / N formed once."""

    def __init__(self, x: Tensor, y: Tensor, *, l2: float) -> None:
        super().__init__(_linear_h, x.double(), y, num_weights=x.shape[1], l2=l2)
        self._gram = self._x.T @ self._x / len(x)

    def _chunk_gradient(self, x: Tensor, y: Tensor, q: Tensor) -> tuple[float, Tensor]:
        residual = x @ q - y
        return 0.5 * float(residual @ residual) / len(x), x.T @ residual / len(x)

    def _chunk_hessian(self, x: Tensor, y: Tensor, q: Tensor, index: Tensor) -> Tensor:
        return self._gram[:, index]  # every chunk returns the Gram matrix, and so does their mean


def _linear_h(x: Tensor, q: Tensor) -> Tensor:
    return x @ q


def linear(
    x: ArrayLike, y: ArrayLike, *, loss: str | Callable[[Tensor, Tensor], Tensor] = "mse", l2: float = 0.0
) -> DiagonalNetwork:
    """Build the linear diagonal network h(x; q) = Σ q_i x_i (Berthier 2022).

    Args:
        x: Features, (N, p).
        y: Targets, (N,).
        loss: As for `DiagonalNetwork`; mean squared error is in closed form.
        l2: As for `DiagonalNetwork`.

    >>> linear(torch.eye(2), torch.tensor([2.0, 4.0])).gradient(torch.zeros(2)).tolist()
    [1.0, 2.0]
    """
    x, y = as_data("x", x), as_data("y", y)
    if x.dim() != 2 or y.dim() != 1:
        raise ValueError(
            f"`x` must have shape (N, p) and `y` (N,); got {tuple(x.shape)} and {tuple(y.shape)}: "
            "flatten features into the second axis of x."
        )
    if loss == "mse":
        return _Linear(x, y, l2=l2)
    return DiagonalNetwork(_linear_h, x.double(), y, num_weights=x.shape[1], loss=loss, l2=l2)


def attention_head(
    x: ArrayLike, y: ArrayLike, *, loss: str | Callable[[Tensor, Tensor], Tensor] = "mse", l2: float = 0.0
) -> DiagonalNetwork:
    """Build the attention head h(X; q) = softmax(X diag(a) Xᵀ) X diag(b) with q = [a, b], p = 2d.

    a = w_K ⊙ w_Q and b = w_V ⊙ w_O. A gradient costs four batched products of N n² d multiplications each.

    Args:
        x: Tokens, (N, n, d).
        y: Targets, (N, n, d); labels (N, n) for cross-entropy.
        loss: As for `DiagonalNetwork`; mean squared error is in closed form.
        l2: As for `DiagonalNetwork`.

    >>> x = torch.ones(5, 3, 4)
    >>> attention_head(x, x).num_weights
    8
    """
    x, y = as_data("x", x), as_data("y", y)
    if x.dim() != 3 or (loss == "mse" and y.shape != x.shape):
        raise ValueError(
            f"`x` must have shape (N, n, d) and `y` the same; got {tuple(x.shape)} and {tuple(y.shape)}: "
            "stack samples along the first axis, tokens along the second."
        )
    if loss == "mse":
        return AttentionHead(x, y, l2=l2)
    return DiagonalNetwork(diagonal_attention, x.double(), y, num_weights=2 * x.shape[2], loss=loss, l2=l2)


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
    x: ArrayLike,
    y: ArrayLike,
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
        layers: Number L of layers.
        heads: Number H of heads in each layer.
        width: Width of the feed-forward block; d if None.
        activation: σ, twice continuously differentiable.
        feed_forward_scale: Feed-forward weights are Gaussian of standard deviation scale/√(fan in).
        seed: Seed of the feed-forward weights.
        loss: As for `DiagonalNetwork`.
        l2: As for `DiagonalNetwork`.

    >>> x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    >>> net = transformer(x, x, layers=2, heads=1)
    >>> net.num_weights, net.coordinates[5]
    (8, Coordinate(layer=1, head=0, circuit='kq', index=1))
    """
    x, y = as_data("x", x), as_data("y", y)
    w_a, w_b = random_feed_forward(x, layers=layers, heads=heads, width=width, scale=feed_forward_scale, seed=seed)
    d = x.shape[2]

    def h(x: Tensor, q: Tensor) -> Tensor:
        z = x
        for layer, diagonals in enumerate(q.view(layers, heads, 2 * d)):
            z = z + sum(diagonal_attention(z, diagonal) for diagonal in diagonals)
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
