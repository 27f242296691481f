"""Networks with full matrices: an attention head, a transformer, and matrix sensing, the case with known answers.

Symbols:
    A, B        W_K W_Qᵀ and W_V W_Oᵀ of a head, (d, d): head(X) = softmax(X A Xᵀ) X B
    Z_l         tokens after layer l, (N, n, d); Z_0 = X
    W_1, W_2    feed-forward weights of a layer, (d, width), which stay fixed
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.theory._tasks import ArrayLike, as_data, random_feed_forward
from rankrise.theory.matrix._matrix_network import MatrixNetwork

_LARGEST_BATCH = 1 << 21  # numbers in one temporary of a batch of Hessian products


@dataclass(frozen=True)
class Circuit:
    """Where a product lives: layer and head from 0, circuit "kq" (A) or "vo" (B)."""

    layer: int
    head: int
    circuit: str


class MatrixTransformer(MatrixNetwork):
    """A network of attention heads; `circuits[j]` tells where the product M_j lives.

    Attributes:
        circuits: One `Circuit` per product.
    """

    circuits: tuple[Circuit, ...]


class _Head(MatrixTransformer):
    """One attention head under mean squared error, with gradients and Hessian products in closed form.

    Per sample, with S = softmax(X A Xᵀ), M = S X, R = M B - Y, E = R Bᵀ Xᵀ and P = S ⊙ (E - rowsum(S ⊙ E)):
    ∂L/∂A = Xᵀ P X and ∂L/∂B = Mᵀ R. Hessian products follow by the product rule.
    """

    circuits = (Circuit(0, 0, "kq"), Circuit(0, 0, "vo"))

    def _chunk_gradient(self, x: Tensor, y: Tensor, flat: Tensor) -> tuple[float, Tensor]:
        a, b = self._split(flat)
        s, m, r, e = _head_parts(x, y, a, b)
        p = s * (e - (s * e).sum(-1, keepdim=True))
        tokens = x.flatten(0, 1)
        slopes = tokens.T @ (p @ x).flatten(0, 1), m.flatten(0, 1).T @ r.flatten(0, 1)
        return 0.5 * float(r.square().sum()) / len(x), torch.cat([slope.flatten() for slope in slopes]) / len(x)

    def _chunk_hessian(self, x: Tensor, y: Tensor, flat: Tensor, along: Tensor) -> Tensor:
        a, b = self._split(flat)
        parts = _head_parts(x, y, a, b)
        step = max(1, _LARGEST_BATCH // (x.shape[0] * x.shape[1] * max(x.shape[1:])))
        rows = [self._hessian_rows(x, b, parts, batch) for batch in torch.split(along, step)]
        return torch.cat(rows) / len(x)

    def _hessian_rows(self, x: Tensor, b: Tensor, parts: tuple[Tensor, ...], along: Tensor) -> Tensor:
        s, m, r, e = parts
        da, db = (v[:, None] for v in self._split(along))  # (k, 1, d, d), against (N, n, d)
        dlogits = x @ da @ x.mT
        ds = s * (dlogits - (s * dlogits).sum(-1, keepdim=True))
        dm = ds @ x
        dr = dm @ b + m @ db
        de = (dr @ b.T + r @ db.mT) @ x.mT
        dp = ds * (e - (s * e).sum(-1, keepdim=True))
        dp = dp + s * (de - (ds * e + s * de).sum(-1, keepdim=True))
        tokens = x.flatten(0, 1)
        to_a = tokens.T @ (dp @ x).flatten(1, 2)
        to_b = dm.flatten(1, 2).mT @ r.flatten(0, 1) + m.flatten(0, 1).T @ dr.flatten(1, 2)
        return torch.cat([to_a.flatten(1), to_b.flatten(1)], dim=1)


def _head_parts(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = torch.softmax(x @ a @ x.mT, dim=-1)  # (N, n, n)
    m = s @ x  # (N, n, d)
    r = m @ b - y
    return s, m, r, r @ b.T @ x.mT


class _Sensing(MatrixNetwork):
    """h(X; M) = ⟨X, M⟩ under mean squared error: a quadratic, whose matrix is formed once."""

    def __init__(self, x: Tensor, y: Tensor, *, l2: float) -> None:
        super().__init__(_measure, x, y, shapes=[(x.shape[1], x.shape[2])], l2=l2)
        rows = self._x.flatten(1)
        self._gram = rows.T @ rows / len(x)
        self._moment = rows.T @ self._y / len(x)
        self._energy = float(self._y @ self._y) / len(x)

    def _chunk_gradient(self, x: Tensor, y: Tensor, flat: Tensor) -> tuple[float, Tensor]:
        if len(x) != len(self._x):
            return super()._chunk_gradient(x, y, flat)
        moved = self._gram @ flat
        return 0.5 * float(flat @ (moved - 2 * self._moment)) + 0.5 * self._energy, moved - self._moment

    def _chunk_hessian(self, x: Tensor, y: Tensor, flat: Tensor, along: Tensor) -> Tensor:
        return along @ self._gram  # every chunk returns the whole matrix, and so does their mean


def _measure(x: Tensor, m: Tensor) -> Tensor:
    return (x * m).sum(dim=(-2, -1))


def _attend(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(x @ a @ x.mT, dim=-1) @ x @ b


def matrix_head(
    x: ArrayLike, y: ArrayLike, *, loss: str | Callable[[Tensor, Tensor], Tensor] = "mse", l2: float = 0.0
) -> MatrixTransformer:
    """Build the attention head h(X; A, B) = softmax(X A Xᵀ) X B with A = W_K W_Qᵀ and B = W_V W_Oᵀ.

    Args:
        x: Tokens, (N, n, d).
        y: Targets, (N, n, d); labels (N, n) for cross-entropy.
        loss: As for `MatrixNetwork`; mean squared error is in closed form.
        l2: As for `MatrixNetwork`.

    >>> x = torch.ones(5, 3, 4)
    >>> matrix_head(x, x).shapes
    ((4, 4), (4, 4))
    """
    x, y = as_data("x", x), as_data("y", y)
    if x.dim() != 3 or (loss == "mse" and y.shape != x.shape):
        raise ValueError(
            f"`x` must have shape (N, n, d) and `y` the same; got {tuple(x.shape)} and {tuple(y.shape)}: "
            "stack samples along the first axis, tokens along the second."
        )
    kind = _Head if loss == "mse" else MatrixTransformer
    net = kind(_attend, x.double(), y, shapes=[(x.shape[2],) * 2] * 2, loss=loss, l2=l2)
    net.circuits = _Head.circuits
    return net


def matrix_transformer(
    x: ArrayLike,
    y: ArrayLike,
    *,
    layers: int,
    heads: int,
    width: int | None = None,
    activation: Callable[[Tensor], Tensor] = torch.tanh,
    feed_forward_scale: float = 1.0,
    seed: int = 0,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "mse",
    l2: float = 0.0,
) -> MatrixTransformer:
    """Build Example 3.2 with full matrices: L layers of H heads and fixed feed-forward blocks, residual throughout.

    Z ← Z + Σ_h softmax(Z A_h Zᵀ) Z B_h, then Z ← Z + σ(Z W_1) W_2ᵀ with Gaussian W_1, W_2 that are not trained.

    Args:
        x: Tokens, (N, n, d).
        y: Targets, (N, n, d); labels (N, n) for cross-entropy.
        layers: L.
        heads: H of each layer.
        width: Width of the feed-forward block; d if None.
        activation: σ, twice continuously differentiable.
        feed_forward_scale: Feed-forward weights are Gaussian of standard deviation scale/√(fan in).
        seed: Seed of the feed-forward weights.
        loss: As for `MatrixNetwork`.
        l2: As for `MatrixNetwork`.

    >>> x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    >>> net = matrix_transformer(x, x, layers=2, heads=1)
    >>> len(net.shapes), net.circuits[3]
    (4, Circuit(layer=1, head=0, circuit='vo'))
    """
    x, y = as_data("x", x), as_data("y", y)
    w_1, w_2 = random_feed_forward(x, layers=layers, heads=heads, width=width, scale=feed_forward_scale, seed=seed)
    d = x.shape[2]

    def h(x: Tensor, *products: Tensor) -> Tensor:
        z = x
        for layer in range(layers):
            of_layer = products[2 * heads * layer : 2 * heads * (layer + 1)]
            z = z + torch.stack([_attend(z, a, b) for a, b in zip(of_layer[::2], of_layer[1::2], strict=True)]).sum(0)
            z = z + activation(z @ w_1[layer]) @ w_2[layer].T
        return z

    net = MatrixTransformer(h, x.double(), y, shapes=[(d, d)] * (2 * heads * layers), loss=loss, l2=l2)
    net.circuits = tuple(
        Circuit(layer, head, circuit) for layer in range(layers) for head in range(heads) for circuit in ("kq", "vo")
    )
    return net


def matrix_sensing(x: ArrayLike, y: ArrayLike, *, l2: float = 0.0) -> MatrixNetwork:
    """Build matrix sensing, h(X; M) = ⟨X, M⟩ under mean squared error, the case that is understood best (GLRL).

    Args:
        x: Measurement matrices, (N, d, d').
        y: Measurements, (N,).
        l2: As for `MatrixNetwork`.

    >>> net = matrix_sensing(torch.eye(4).reshape(4, 2, 2), torch.tensor([2.0, 0.0, 0.0, 4.0]))
    >>> net.loss_and_gradients([torch.zeros(2, 2)])[1][0].tolist()
    [[0.5, 0.0], [0.0, 1.0]]

    Reference: Li, Luo, Lyu, "Towards resolving the implicit bias of gradient descent for matrix factorization: greedy
    low-rank learning", ICLR 2021.
    """
    x, y = as_data("x", x), as_data("y", y)
    if x.dim() != 3 or y.shape != x.shape[:1]:
        raise ValueError(
            f"`x` must have shape (N, d, d') and `y` (N,); got {tuple(x.shape)} and {tuple(y.shape)}: "
            "stack measurement matrices along the first axis."
        )
    return _Sensing(x.double(), y.double(), l2=l2)
