"""Networks with diagonal weights: f(x; u, v) = h(x; q), q = u ⊙ v.

Symbols:
    q       products u ⊙ v, p numbers; all a network depends on
    h       the network as a function of q, twice continuously differentiable
    L(q)    loss, the mean over samples of ℓ(y, h(x; q)), plus ½ λ ‖q‖² where an ℓ2 penalty is asked for
    g(q)    -∂L/∂q, the sign of the paper: du/dt = v ⊙ g, dv/dt = u ⊙ g
    H(q)    ∂²L/∂q²
"""

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rankrise.theory._data_loss import DataLoss
from rankrise.theory._tasks import ArrayLike, as_data


class Landscape(Protocol):
    """What the flow needs of a network: L, g and columns of H as functions of q, and the same for fewer coordinates."""

    def loss_and_gradient(self, q: Tensor, /) -> tuple[float, Tensor]:
        """Return L and g = -∂L/∂q."""
        ...

    def hessian_columns(self, q: Tensor, index: Sequence[int], /) -> Tensor:
        """Return the columns `index` of ∂²L/∂q²."""
        ...

    def restricted(self, index: Sequence[int], /) -> "Landscape":
        """Return the landscape of the coordinates `index` alone, all others being zero."""
        ...


class DiagonalNetwork(DataLoss):
    """Loss, gradient and Hessian columns of any network h(x; u ⊙ v) as functions of the products q.

    L(q) = E ℓ(y, h(x; q)) + ½ l2 ‖q‖². Everything is float64. Data is streamed in chunks, so memory stays small.

    Args:
        h: `h(x, q)` → predictions, one per sample along the first axis; built from differentiable torch functions.
        x: Inputs, samples along the first axis: a tensor, an array or nested lists.
        y: Targets, samples along the first axis; labels (integers) for cross-entropy.
        num_weights: The number p of products.
        loss: "mse", "cross_entropy", or a callable `loss(prediction, y)` that returns the mean over samples.
        l2: Strength of an optional penalty ½ l2 ‖q‖² on the products.

    Attributes:
        h: The network function.
        num_weights: p.
        device: The device of the data, on which q is expected.
        loss_name: The name of the loss, "custom" for a callable.

    Raises:
        ValueError: If an argument breaks its rule.

    >>> net = DiagonalNetwork(lambda x, q: torch.tanh(x @ q), torch.eye(2), torch.tensor([0.5, 1.0]), num_weights=2)
    >>> net.gradient(torch.zeros(2)).tolist()
    [0.25, 0.5]
    """

    _call = "h(x, q)"
    _remedy = "pass the length of q that h expects as `num_weights`"

    def __init__(
        self,
        h: Callable[[Tensor, Tensor], Tensor],
        x: ArrayLike,
        y: ArrayLike,
        *,
        num_weights: int,
        loss: str | Callable[[Tensor, Tensor], Tensor] = "mse",
        l2: float = 0.0,
    ) -> None:
        if not (_is_whole(num_weights) and num_weights >= 1):
            raise ValueError(
                f"`num_weights` must be a whole number from 1 on; got {num_weights!r}: pass the length of q."
            )
        super().__init__(h, x, y, loss=loss, l2=l2, penalty="the penalty ½ l2 ‖q‖²")
        self.num_weights = int(num_weights)

    def loss(self, q: ArrayLike) -> float:
        """Return L(q)."""
        q = self._checked(q)
        with torch.no_grad():
            total = sum(float(self._chunk_loss(x, y, q)) * len(x) for x, y in self._chunks())
        return self._finite_loss(total / self.num_samples, q) + 0.5 * self.l2 * float(q @ q)

    def gradient(self, q: ArrayLike) -> Tensor:
        """Return g(q) = -∂L/∂q, p numbers."""
        return self.loss_and_gradient(q)[1]

    def loss_and_gradient(self, q: ArrayLike) -> tuple[float, Tensor]:
        """Return L(q) and g(q) = -∂L/∂q from one pass over the data.

        Raises:
            ValueError: If h or its derivative is not finite at q.
        """
        return self._loss_and_gradient(self._checked(q), self._chunks(), self.num_samples)

    def batch_gradient(self, q: ArrayLike, index: Tensor) -> Tensor:
        """Return g(q) of the loss over the samples `index` only, for stochastic gradients.

        Args:
            q: Products, p numbers.
            index: Indices of samples, at least one.
        """
        return self._loss_and_gradient(self._checked(q), [(self._x[index], self._y[index])], len(index))[1]

    def _loss_and_gradient(
        self, q: Tensor, chunks: Iterable[tuple[Tensor, Tensor]], num_samples: int
    ) -> tuple[float, Tensor]:
        loss, slope = 0.0, torch.zeros_like(q)
        for x, y in chunks:
            weight = len(x) / num_samples
            part, part_slope = self._chunk_gradient(x, y, q)
            loss += weight * part
            slope += weight * part_slope
        loss = self._finite_loss(loss, q)
        if not bool(slope.isfinite().all()):
            bad = (~slope.isfinite()).nonzero().flatten().tolist()
            raise ValueError(
                f"The derivative of `h(x, q)` must be finite; got NaN or infinity for coordinates {bad[0]} to "
                f"{bad[-1]} at {_describe(q)}: check h for divisions, logarithms and roots at zero."
            )
        return loss + 0.5 * self.l2 * float(q @ q), -(slope + self.l2 * q)

    def hessian_columns(self, q: ArrayLike, index: Sequence[int] | Tensor) -> Tensor:
        """Return the columns `index` of H(q) = ∂²L/∂q².

        Args:
            q: Products, p numbers.
            index: The coordinates whose columns are wanted.

        Returns:
            A (p, len(index)) tensor.
        """
        q = self._checked(q)
        index = torch.as_tensor(index, dtype=torch.long, device=self.device)
        columns = torch.zeros(self.num_weights, len(index), dtype=torch.float64, device=self.device)
        if len(index) == 0:
            return columns
        for x, y in self._chunks():
            columns += self._chunk_hessian(x, y, q, index) * (len(x) / self.num_samples)
        if not bool(columns.isfinite().all()):
            raise ValueError(
                f"The second derivative of `h(x, q)` must be finite; got NaN or infinity at {_describe(q)}: "
                "h must be twice continuously differentiable."
            )
        columns[index, torch.arange(len(index), device=self.device)] += self.l2
        return columns

    def restricted(self, index: Sequence[int]) -> Landscape:
        """Return L, g and H as functions of the coordinates `index` alone, all others being zero.

        >>> net = DiagonalNetwork(lambda x, q: x @ q, torch.eye(3), torch.tensor([3.0, 6.0, 9.0]), num_weights=3)
        >>> net.restricted([0, 2]).loss_and_gradient(torch.zeros(2))[1].tolist()
        [1.0, 3.0]
        """
        return _Restricted(self, torch.as_tensor(index, dtype=torch.long, device=self.device))

    def _arguments(self, w: Tensor) -> tuple[Tensor, ...]:
        return (w,)

    def _products_in_words(self) -> str:
        return f"q of `num_weights` = {self.num_weights} numbers"

    def _chunk_hessian(self, x: Tensor, y: Tensor, q: Tensor, index: Tensor) -> Tensor:
        """Return columns of ∂²L/∂q² of one chunk, by reverse mode twice; all columns share the first pass."""
        with torch.enable_grad():
            q = q.detach().requires_grad_()
            loss = self._chunk_loss(x, y, q)
            none = torch.zeros(len(q), len(index), dtype=q.dtype, device=q.device)
            if not loss.requires_grad:  # h does not depend on q
                return none
            (slope,) = torch.autograd.grad(loss, q, create_graph=True, materialize_grads=True)
            if not slope.requires_grad:  # ℓ(h) is linear in q
                return none
            columns = [
                torch.autograd.grad(slope[i], q, retain_graph=True, materialize_grads=True)[0] for i in index.tolist()
            ]
        return torch.stack(columns, dim=1)

    def _checked(self, q: ArrayLike) -> Tensor:
        q = as_data("q", q)
        if q.shape != (self.num_weights,):
            raise ValueError(
                f"`q` must have shape ({self.num_weights},), one product per weight; got {tuple(q.shape)}: "
                "pass u * v of this network."
            )
        return q.to(device=self.device, dtype=torch.float64)

    def _finite_loss(self, loss: float, q: Tensor) -> float:
        if loss - loss != 0:  # NaN or infinite
            raise ValueError(
                f"`h(x, q)` and its loss must be finite; got a loss of {loss} at {_describe(q)}: "
                "check h for divisions, logarithms and overflow in that range."
            )
        return loss


class _Restricted:
    """Any network as a function of some coordinates, by filling the others with zeros."""

    def __init__(self, net: DiagonalNetwork, index: Tensor) -> None:
        self._net, self._index = net, index

    def loss_and_gradient(self, q: Tensor, /) -> tuple[float, Tensor]:
        loss, gradient = self._net.loss_and_gradient(self._whole(q))
        return loss, gradient[self._index]

    def hessian_columns(self, q: Tensor, index: Sequence[int], /) -> Tensor:
        return self._net.hessian_columns(self._whole(q), self._index[list(index)])[self._index]

    def restricted(self, index: Sequence[int], /) -> Landscape:
        return _Restricted(self._net, self._index[list(index)])

    def _whole(self, q: Tensor) -> Tensor:
        whole = torch.zeros(self._net.num_weights, dtype=torch.float64, device=self._index.device)
        whole[self._index] = q.to(whole)
        return whole


def _is_whole(value: object) -> bool:
    """Say whether a value is a whole number of Python or numpy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _describe(q: Tensor) -> str:
    """Say which coordinates of q are not zero, and how large they are."""
    moved = q.nonzero().flatten().tolist()
    if not moved:
        return "q = 0"
    return f"q with coordinates {moved[0]} to {moved[-1]} in [{float(q.min()):.3g}, {float(q.max()):.3g}]"
