"""The loss of a network over its samples, which networks of diagonal weights and of full matrices have in common.

Symbols:
    h       the network as a function of its inputs x and of its products
    w       all products as one vector: q of a diagonal network, the entries of M_1 … M_m one after another
    ℓ       loss of a prediction, the mean over samples
"""

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from rankrise.theory._tasks import CHUNK_BYTES, ArrayLike, as_samples, resolve_loss


class DataLoss:
    """Checked samples, streamed in chunks so that memory stays small, and ℓ(h(x; w), y) with its gradient on a chunk.

    Args:
        h: The network function.
        x: Inputs, samples along the first axis.
        y: Targets, samples along the first axis.
        loss: As for `DiagonalNetwork`.
        l2: Strength of the penalty on the products.
        penalty: The penalty in words, for messages.

    Attributes:
        h: The network function.
        l2: Strength of the penalty.
        device: The device of the data, on which products are expected.
        loss_name: The name of the loss, "custom" for a callable.

    Raises:
        ValueError: If an argument breaks its rule.
    """

    _call: ClassVar[str]  # a call of h as the user writes it
    _remedy: ClassVar[str]  # what to do if h expects other products

    def __init__(
        self,
        h: Callable[..., Tensor],
        x: ArrayLike,
        y: ArrayLike,
        *,
        loss: str | Callable[[Tensor, Tensor], Tensor],
        l2: float,
        penalty: str,
    ) -> None:
        x, y = as_samples(x, y)
        if not 0 <= l2 < math.inf:
            raise ValueError(f"`l2` must be zero or positive; got {l2}: it is the finite strength of {penalty}.")
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
    def data(self) -> tuple[Tensor, Tensor]:
        """The inputs and the targets, in the form in which the network uses them."""
        return self._x, self._y

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, self.num_samples, self._chunk):
            yield self._x[start : start + self._chunk], self._y[start : start + self._chunk]

    def _arguments(self, w: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments that h takes after x."""
        raise NotImplementedError

    def _products_in_words(self) -> str:
        """Describe the products that h is given."""
        raise NotImplementedError

    def _chunk_loss(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        loss = self._loss(self._predict(x, w), y)
        if loss.numel() != 1:
            raise ValueError(
                f"`loss` must return one number, the mean over samples; got a tensor of shape {tuple(loss.shape)}: "
                "end it with .mean()."
            )
        return loss.reshape(())

    def _predict(self, x: Tensor, w: Tensor) -> Tensor:
        """Return h(x; w), or say that h expects other products or leaves torch."""
        try:
            prediction = self.h(x, *self._arguments(w))
        except (RuntimeError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(
                f"`{self._call}` must take x of shape {tuple(x.shape)} and {self._products_in_words()}, and be built "
                f"from torch functions; it raised {type(error).__name__}: {str(error)[:200]}. Correct h, or "
                f"{self._remedy}."
            ) from error
        if not isinstance(prediction, Tensor):
            raise ValueError(
                f"`{self._call}` must return a tensor; got {type(prediction).__name__}: build h from torch functions, "
                "because its derivatives are needed."
            )
        if prediction.is_complex():
            raise ValueError(f"`{self._call}` must be real; got {prediction.dtype}: return its real part or its size.")
        return prediction

    def _chunk_gradient(self, x: Tensor, y: Tensor, w: Tensor) -> tuple[float, Tensor]:
        """Return the loss and ∂L/∂w of one chunk, by reverse mode."""
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            loss = self._chunk_loss(x, y, w)
            if not loss.requires_grad:  # h does not depend on its products
                return float(loss), torch.zeros_like(w)
            (slope,) = torch.autograd.grad(loss, w, materialize_grads=True)
        return float(loss.detach()), slope
