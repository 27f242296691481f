"""Networks whose weights enter as products of full matrices: h(x; M_1 … M_m), M_j = A_j B_jᵀ.

Symbols:
    M_j         products, (d_j, d'_j) each; all a network depends on
    L(M)        loss, the mean over samples of ℓ(y, h(x; M)), plus ½ λ Σ ‖M_j‖² where an ℓ2 penalty is asked for
    G_j(M)      -∂L/∂M_j: dA_j/dt = G_j B_j, dB_j/dt = G_jᵀ A_j
    p           number of entries of all products, Σ d_j d'_j
"""

import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rankrise.theory._data_loss import DataLoss
from rankrise.theory._tasks import ArrayLike, as_data


class MatrixNetwork(DataLoss):
    """Loss, gradients and Hessian products of any network h(x; A_1 B_1ᵀ … A_m B_mᵀ) as functions of the products.

    L(M) = E ℓ(y, h(x; M)) + ½ l2 Σ ‖M_j‖². Everything is float64. Data is streamed in chunks, so memory stays small.

    Args:
        h: `h(x, M_1, ..., M_m)` → predictions, one per sample along the first axis; built from torch functions that are
            twice continuously differentiable.
        x: Inputs, samples along the first axis: a tensor, an array or nested lists.
        y: Targets, samples along the first axis; labels (integers) for cross-entropy.
        shapes: Shape (d_j, d'_j) of each product.
        loss: "mse", "cross_entropy", or a callable `loss(prediction, y)` that returns the mean over samples.
        l2: Strength of an optional penalty ½ l2 Σ ‖M_j‖² on the products.

    Attributes:
        h: The network function.
        shapes: Shape of each product.
        device: The device of the data.
        loss_name: The name of the loss, "custom" for a callable.

    Raises:
        ValueError: If an argument breaks its rule.

    >>> net = MatrixNetwork(lambda x, m: x @ m, torch.eye(2), 2 * torch.eye(2), shapes=[(2, 2)])
    >>> net.loss_and_gradients([torch.zeros(2, 2)])[1][0].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    _call = "h(x, M_1, …)"
    _remedy = "pass the shapes that h expects as `shapes`"

    def __init__(
        self,
        h: Callable[..., Tensor],
        x: ArrayLike,
        y: ArrayLike,
        *,
        shapes: Sequence[tuple[int, int]],
        loss: str | Callable[[Tensor, Tensor], Tensor] = "mse",
        l2: float = 0.0,
    ) -> None:
        self.shapes = _checked_shapes(shapes)
        super().__init__(h, x, y, loss=loss, l2=l2, penalty="the penalty ½ l2 Σ ‖M‖²")

    @property
    def num_products(self) -> int:
        """The number p of entries of all products."""
        return sum(rows * columns for rows, columns in self.shapes)

    def loss(self, products: Sequence[ArrayLike]) -> float:
        """Return L(M)."""
        flat = self._flat(products)
        with torch.no_grad():
            total = sum(float(self._chunk_loss(x, y, flat)) * len(x) for x, y in self._chunks())
        return self._finite(total / self.num_samples) + 0.5 * self.l2 * float(flat @ flat)

    def loss_and_gradients(self, products: Sequence[ArrayLike]) -> tuple[float, tuple[Tensor, ...]]:
        """Return L(M) and G_j = -∂L/∂M_j, one matrix per product, from one pass over the data.

        Raises:
            ValueError: If h or its derivative is not finite at M.
        """
        return self._loss_and_gradients(self._flat(products), self._chunks(), self.num_samples)

    def batch_gradients(self, products: Sequence[ArrayLike], index: Tensor) -> tuple[Tensor, ...]:
        """Return G_j of the loss over the samples `index` only, for stochastic gradients."""
        batch = iter([(self._x[index], self._y[index])])
        return self._loss_and_gradients(self._flat(products), batch, len(index))[1]

    def hessian_products(self, products: Sequence[ArrayLike], directions: Sequence[ArrayLike]) -> tuple[Tensor, ...]:
        """Return the derivative of ∂L/∂M_j along k directions at once.

        Args:
            products: M_1 … M_m.
            directions: One tensor (k, d_j, d'_j) per product.

        Returns:
            One tensor (k, d_j, d'_j) per product: ∇²L applied to each direction.
        """
        flat = self._flat(products)
        given = [as_data("directions", direction) for direction in directions]
        along = torch.cat([v.to(flat).reshape(len(v), -1) for v in given], dim=1)  # (k, p)
        result = self.l2 * along
        for x, y in self._chunks():
            result = result + self._chunk_hessian(x, y, flat, along) * (len(x) / self.num_samples)
        if not bool(result.isfinite().all()):
            raise ValueError(
                "The second derivative of `h` must be finite; got NaN or infinity: h must be twice continuously "
                "differentiable."
            )
        return self._split(result)

    def _loss_and_gradients(
        self, flat: Tensor, chunks: Iterator[tuple[Tensor, Tensor]], num_samples: int
    ) -> tuple[float, tuple[Tensor, ...]]:
        loss, slope = 0.0, torch.zeros_like(flat)
        for x, y in chunks:
            weight = len(x) / num_samples
            part, part_slope = self._chunk_gradient(x, y, flat)
            loss += weight * part
            slope = slope + weight * part_slope
        if not bool(slope.isfinite().all()):
            raise ValueError(
                "The derivative of `h` must be finite; got NaN or infinity: check h for divisions, logarithms and "
                "roots at zero."
            )
        return self._finite(loss) + 0.5 * self.l2 * float(flat @ flat), self._split(0.0 - slope - self.l2 * flat)

    def _arguments(self, w: Tensor) -> tuple[Tensor, ...]:
        return self._split(w)

    def _products_in_words(self) -> str:
        return f"matrices of shapes {list(self.shapes)}"

    def _chunk_hessian(self, x: Tensor, y: Tensor, flat: Tensor, along: Tensor) -> Tensor:
        """Return ∇²L of one chunk applied to the rows of `along`, by reverse mode twice."""
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            loss = self._chunk_loss(x, y, flat)
            if not loss.requires_grad:  # h does not depend on its matrices
                return torch.zeros_like(along)
            (slope,) = torch.autograd.grad(loss, flat, create_graph=True, materialize_grads=True)
            if not slope.requires_grad:  # ℓ(h) is linear in the products
                return torch.zeros_like(along)
            (result,) = torch.autograd.grad(slope, flat, along, is_grads_batched=True, materialize_grads=True)
        return result

    def _split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the matrices that lie one after another along the last axis."""
        parts = torch.split(flat, [rows * columns for rows, columns in self.shapes], dim=-1)
        return tuple(part.reshape(*part.shape[:-1], *shape) for part, shape in zip(parts, self.shapes, strict=True))

    def _flat(self, products: Sequence[ArrayLike]) -> Tensor:
        matrices = [as_data("products", matrix) for matrix in products]
        shapes = tuple(tuple(matrix.shape) for matrix in matrices)
        if shapes != self.shapes:
            raise ValueError(
                f"`products` must be matrices of shapes {list(self.shapes)}; got {list(shapes)}: "
                "pass A @ B.T of each pair of factors."
            )
        return torch.cat([matrix.to(self.device, torch.float64).flatten() for matrix in matrices])

    def _finite(self, loss: float) -> float:
        if loss - loss != 0:  # NaN or infinite
            raise ValueError(
                f"`h` and its loss must be finite; got a loss of {loss}: check h for divisions, logarithms, overflow."
            )
        return loss


def _checked_shapes(shapes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [(operator.index(rows), operator.index(columns)) for rows, columns in shapes]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or min(map(min, pairs)) < 1:
        raise ValueError(
            f"`shapes` must hold a pair (rows, columns) of positive numbers for each product; got {shapes!r}: "
            "pass for example [(4, 4), (4, 4)]."
        )
    return tuple(pairs)
