"""The Jacobian of a network on a batch as a linear operator, and the empirical kernel K = V Vᵀ.

Legend: N samples, R rows for each, |θ| weights; V (N R, |θ|) has in its rows the
gradients of R numbers that the network gives for every sample. K is the empirical neural tangent kernel of these.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankrise._attention import differentiable_attention

Rows = Literal["sum", "outputs"] | Callable[[Tensor], Tensor]
Inputs = Tensor | Mapping[str, Any] | Sequence[Any]


class JacobianOperator:
    """V of a model on a batch, never stored: products with V and Vᵀ, its Gram matrix and its squared row norms.

    Everything is computed in float32 at least, with the weights and buffers as they are now and attention by plain
    matrix products.

    Args:
        model: The model, in evaluation mode.
        inputs: What it is called with; the first dimension of every tensor counts the samples.
        rows: "sum": the sum of all outputs of a sample over the root of their number, one row for each sample. It needs
            no labels, and its kernel is often called the pseudo-NTK. "outputs": every output by itself. Or a function
            from the outputs (n, …) to rows (n, R).
        parameters: Names of the weights that count; all trainable ones by default.
        chunk: Samples at a time.

    Raises:
        ValueError: The model is in training mode, or `parameters` names no weight.

    >>> model = nn.Linear(3, 2, bias=False).eval()
    >>> x = torch.tensor([[1.0, 2.0, 2.0], [2.0, 0.0, 0.0]])
    >>> operator = JacobianOperator(model, x)
    >>> operator.shape, operator.gram().round(decimals=4).tolist()  # x xᵀ
    ((2, 6), [[9.0, 2.0], [2.0, 4.0]])
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        rows: Rows = "sum",
        parameters: Collection[str] | None = None,
        chunk: int = 64,
    ) -> None:
        if any(module.training for module in model.modules()):
            raise ValueError(
                "The model must be in evaluation mode, so that its outputs do not change; call model.eval()."
            )
        if not callable(rows) and rows not in ("sum", "outputs"):
            raise ValueError(f"`rows` must be sum, outputs or a function; got {rows!r}.")
        own = {n: _wide(p.detach()) for n, p in model.named_parameters()}
        chosen = [
            n for n, p in model.named_parameters() if (p.requires_grad if parameters is None else n in parameters)
        ]
        if not chosen:
            raise ValueError("`parameters` must name weights of the model; it names none.")
        self._model, self._rows, self._chunk = model, rows, chunk
        self.weights = {name: own.pop(name) for name in chosen}
        self._rest = own | {n: _wide(b) for n, b in model.named_buffers()}
        first = next(iter(self.weights.values()))
        dtype = first.dtype
        args = (inputs,) if isinstance(inputs, Tensor) else () if isinstance(inputs, Mapping) else tuple(inputs)
        kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}

        def put(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return x.to(first.device, dtype if x.is_floating_point() else None)

        self._args, self._kwargs = tuple(map(put, args)), {key: put(value) for key, value in kwargs.items()}
        self._tensors = [x for x in (*self._args, *self._kwargs.values()) if isinstance(x, Tensor)]
        self._is_vectorised = True
        self.num_samples = len(self._tensors[0])
        with torch.no_grad(), differentiable_attention():
            self.num_rows = self._values(self.weights, slice(0, 1)).shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(N R, |θ|)."""
        return self.num_samples * self.num_rows, sum(weight.numel() for weight in self.weights.values())

    def matmul(self, columns: Tensor) -> Tensor:
        """V P for P (|θ|, k), by forward derivatives; (N R, k)."""
        return torch.stack([self._forward(column) for column in columns.T], dim=1)

    def rmatmul(self, columns: Tensor) -> Tensor:
        """Vᵀ Q for Q (N R, k), by backward derivatives; (|θ|, k)."""
        return torch.stack([self._backward(column) for column in columns.T], dim=1)

    def gram(self) -> Tensor:
        """K = V Vᵀ, (N R, N R), in float64; the gradients of two chunks are in memory at a time."""
        chunks = list(self._chunks())
        blocks: list[list[Tensor]] = [[torch.empty(0)] * len(chunks) for _ in chunks]
        for i, here in enumerate(chunks):
            left = self._gradients(here)
            for j in range(i + 1):
                right = left if i == j else self._gradients(chunks[j])
                block = torch.stack([(a.double() @ b.double().mT) for a, b in zip(left, right, strict=True)]).sum(0)
                blocks[i][j], blocks[j][i] = block, block.mT
        return torch.cat([torch.cat(line, dim=1) for line in blocks])

    def diagonal(self) -> Tensor:
        """The squared norms of the rows of V, (N R,), in float64; their sum is the trace of K."""
        parts = (self._gradients(here) for here in self._chunks())
        return torch.cat([torch.stack([g.double().square().sum(1) for g in part]).sum(0) for part in parts])

    def _chunks(self) -> list[slice]:
        return [slice(i, min(i + self._chunk, self.num_samples)) for i in range(0, self.num_samples, self._chunk)]

    def _values(self, weights: Mapping[str, Tensor], here: slice) -> Tensor:
        """The rows of some samples, (n, R)."""
        return self._of(weights, [x[here] for x in self._tensors])

    def _of(self, weights: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> Tensor:
        """The rows of a batch that consists of these tensors, (n, R)."""
        found = iter(tensors)
        args = tuple(next(found) if isinstance(x, Tensor) else x for x in self._args)
        kwargs = {key: next(found) if isinstance(x, Tensor) else x for key, x in self._kwargs.items()}
        result = torch.func.functional_call(self._model, {**self._rest, **weights}, args, kwargs)
        outputs = result if isinstance(result, Tensor) else getattr(result, "logits", None)
        if outputs is None:
            outputs = result[0]
        if callable(self._rows):
            return self._rows(outputs)
        flat = outputs.flatten(1)
        return flat if self._rows == "outputs" else flat.sum(1, keepdim=True) / math.sqrt(flat.shape[1])

    def _forward(self, column: Tensor) -> Tensor:
        sizes = [weight.numel() for weight in self.weights.values()]
        pieces = torch.split(column.to(next(iter(self.weights.values()))), sizes)
        tangent = {n: piece.view_as(w) for (n, w), piece in zip(self.weights.items(), pieces, strict=True)}
        images = []
        with differentiable_attention():
            for here in self._chunks():
                values = partial(self._values, here=here)
                images.append(torch.func.jvp(values, (self.weights,), (tangent,))[1].flatten())
        return torch.cat(images)

    def _backward(self, column: Tensor) -> Tensor:
        weights = {n: w.clone().requires_grad_() for n, w in self.weights.items()}
        with torch.enable_grad(), differentiable_attention():
            for here in self._chunks():
                values = self._values(weights, here)
                own = column[here.start * self.num_rows : here.stop * self.num_rows]
                values.backward(own.to(values).view_as(values))  # type: ignore[no-untyped-call]
        return torch.cat([_or_zero(w.grad, w).flatten() for w in weights.values()])

    def _gradients(self, here: slice) -> list[Tensor]:
        """The rows of V of some samples, (n R, size) for every weight."""
        with differentiable_attention():
            if self._is_vectorised:
                try:
                    return self._gradients_at_once(here)
                except RuntimeError:  # a network with a step that depends on its data
                    self._is_vectorised = False
            return self._gradients_one_by_one(here)

    def _gradients_at_once(self, here: slice) -> list[Tensor]:
        def of_sample(weights: Mapping[str, Tensor], *sample: Tensor) -> Tensor:
            return self._of(weights, [x[None] for x in sample])[0]

        tensors = [x[here] for x in self._tensors]
        each = torch.func.vmap(torch.func.jacrev(of_sample), in_dims=(None, *(0 for _ in tensors)))
        found = each(self.weights, *tensors)  # (n, R, …) for every weight
        return [found[name].flatten(end_dim=1).flatten(1) for name in self.weights]

    def _gradients_one_by_one(self, here: slice) -> list[Tensor]:
        with torch.enable_grad():
            weights = {n: w.clone().requires_grad_() for n, w in self.weights.items()}
            own = list(weights.values())
            values = self._values(weights, here).flatten()
            rows = [torch.autograd.grad(v, own, retain_graph=True, allow_unused=True) for v in values]
        return [torch.stack([_or_zero(row[i], w).flatten() for row in rows]) for i, w in enumerate(own)]


def _or_zero(gradient: Tensor | None, weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if gradient is None else gradient


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
