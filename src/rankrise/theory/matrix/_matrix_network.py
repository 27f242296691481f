"""Networks whose weights enter as products of full matrices: h(x; M_1 … M_m), M_j = A_j B_jᵀ.

Symbols:
    M_j         products, (d_j, d'_j) each; all a network depends on
    L(M)        loss, the mean over samples of ℓ(y, h(x; M)), plus ½ λ Σ ‖M_j‖² where an ℓ2 penalty is asked for
    G_j(M)      -∂L/∂M_j: dA_j/dt = G_j B_j, dB_j/dt = G_jᵀ A_j
    p           number of entries of all products, Σ d_j d'_j
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rankrise.theory._tasks import CHUNK_BYTES, ArrayLike, as_data, as_samples, resolve_loss


class MatrixNetwork:
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
        x, y = as_samples(x, y)
        if not 0 <= l2 < math.inf:
            raise ValueError(
                f"`l2` must be zero or positive; got {l2}: it is the finite strength of the penalty ½ l2 Σ ‖M‖²."
            )
        self.h = h
        self.l2 = float(l2)
        self.device = x.device
        self.loss_name, self._loss = resolve_loss(loss)
        self._x = x.double() if x.is_floating_point() else x
        self._y = (y.double() if self.loss_name == "mse" or y.is_floating_point() else y).to(x.device)
        self._chunk = max(1, CHUNK_BYTES // max(1, self._x[0].numel() * self._x.element_size()))

    @property
    def num_samples(self) -> int:
        """The number N of samples."""
        return len(self._x)

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

    def _chunk_loss(self, x: Tensor, y: Tensor, flat: Tensor) -> Tensor:
        loss = self._loss(self.h(x, *self._split(flat)), y)
        if loss.numel() != 1:
            raise ValueError(
                f"`loss` must return one number, the mean over samples; got a tensor of shape {tuple(loss.shape)}: "
                "end it with .mean()."
            )
        return loss.reshape(())

    def _chunk_gradient(self, x: Tensor, y: Tensor, flat: Tensor) -> tuple[float, Tensor]:
        """Return the loss and ∂L/∂M of one chunk, by reverse mode."""
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            loss = self._chunk_loss(x, y, flat)
            if not loss.requires_grad:  # h does not depend on its matrices
                return float(loss), torch.zeros_like(flat)
            (slope,) = torch.autograd.grad(loss, flat, materialize_grads=True)
        return float(loss.detach()), slope

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

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, self.num_samples, self._chunk):
            yield self._x[start : start + self._chunk], self._y[start : start + self._chunk]

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
    pairs = [tuple(shape) for shape in shapes]
    if not pairs or any(len(pair) != 2 or min(pair) < 1 for pair in pairs):
        raise ValueError(
            f"`shapes` must hold a pair (rows, columns) of positive numbers for each product; got {pairs}: "
            "pass for example [(4, 4), (4, 4)]."
        )
    return tuple((int(rows), int(columns)) for rows, columns in pairs)
