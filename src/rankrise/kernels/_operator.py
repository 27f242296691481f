"""The Jacobian of a network on a batch as a linear operator, and the empirical kernel K = V Vᵀ.

Legend: N samples, R rows for each, |θ| weights; V (N R, |θ|) has in its rows the
gradients of R numbers that the network gives for every sample. K is the empirical neural tangent kernel of these.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankrise._attention import differentiable_attention
from rankrise.kernels._rows import Rows, check_rows, rows_of

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Inputs = Tensor | Mapping[str, Any] | Sequence[Any]


class JacobianOperator:
    """V of a model on a batch, never stored: products with V and Vᵀ, its Gram matrix and its squared row norms.

    Everything is computed in float32 at least, with the weights and buffers as they are now and attention by plain
    matrix products.

    Args:
        model: The model, in evaluation mode.
        inputs: What it is called with; the first dimension of every tensor counts the samples.
        rows: "sum": the sum of all outputs of a sample over the root of their number, one row for each sample. It needs
            no labels, and its kernel is often called the pseudo-NTK. "outputs": every output by itself. "lse": the
            logarithm of the sum of the exponentials of the outputs, a classifier read as an unnormalised density of its
            inputs; summed over positions over the root of their number. "fisher": √p ∇ log p of every class, so that
            VᵀV is the exact Fisher matrix. Or a function from the outputs (n, …) to rows (n, R).
        parameters: Names of the weights that count; all trainable ones by default.
        chunk: Samples at a time. `gram`, `diagonal` and `column_squares` hold a gradient for each of their rows.

    Raises:
        ValueError: The model is in training mode, `rows` is unknown, or `parameters` names no weight.

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
        check_rows(rows)
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
        self._scale: Tensor | None = None
        self.num_samples = len(self._tensors[0])
        with torch.no_grad(), differentiable_attention():
            self.num_rows = self._values(self.weights, slice(0, 1)).shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(N R, |θ|)."""
        return self.num_samples * self.num_rows, sum(weight.numel() for weight in self.weights.values())

    @property
    def num_chunks(self) -> int:
        """How many chunks of samples are computed one after another."""
        return len(self._chunks())

    def scaled(self, scale: Tensor) -> "JacobianOperator":
        """The operator V diag(scale), say for whitening.

        Args:
            scale: A factor for each weight, (|θ|,).

        Raises:
            ValueError: The scale has another shape.
        """
        if scale.shape != (self.shape[1],):
            raise ValueError(f"`scale` must be ({self.shape[1]},), a factor for each weight; got {tuple(scale.shape)}.")
        other = copy.copy(self)
        own = scale.to(next(iter(self.weights.values())))
        other._scale = own if self._scale is None else own * self._scale
        return other

    def matmul(self, columns: Tensor) -> Tensor:
        """V P for P (|θ|, k), by forward derivatives; (N R, k)."""
        self._check(columns, self.shape[1])
        return torch.stack([self._forward(column) for column in columns.T], dim=1)

    def rmatmul(self, columns: Tensor) -> Tensor:
        """Vᵀ Q for Q (N R, k), by backward derivatives; (|θ|, k)."""
        self._check(columns, self.shape[0])
        weights = {n: w.detach().requires_grad_() for n, w in self.weights.items()}
        own, first = list(weights.values()), next(iter(weights.values()))
        total = torch.zeros(columns.shape[1], self.shape[1], dtype=first.dtype, device=first.device)
        with torch.enable_grad(), differentiable_attention():
            for here in self._chunks():
                values = self._values(weights, here)
                rows = columns[here.start * self.num_rows : here.stop * self.num_rows].to(values)
                for line, column in zip(total, rows.T, strict=True):
                    found = torch.autograd.grad(
                        values, own, column.view_as(values), retain_graph=True, allow_unused=True
                    )
                    for part, gradient in zip(self._split(line), found, strict=True):
                        if gradient is not None:
                            part += gradient.flatten()
        return (total if self._scale is None else total * self._scale).T

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
        sums = [torch.stack([g.square().sum(1, dtype=torch.float64) for g in part]).sum(0) for part in parts]
        return torch.cat(sums)

    def column_squares(self) -> Tensor:
        """The squared norms of the columns of V, (|θ|,), in float64: the diagonal of VᵀV; its sum is the trace of K."""
        first = next(iter(self.weights.values()))
        total = torch.zeros(self.shape[1], dtype=torch.float64, device=first.device)
        for here in self._chunks():
            for part, g in zip(self._split(total), self._gradients(here), strict=True):
                part += g.square().sum(0, dtype=torch.float64)
        return total

    def to_scipy(self) -> "LinearOperator":
        """The operator for SciPy's solvers, such as `scipy.sparse.linalg.svds`; its vectors are NumPy arrays."""
        from scipy.sparse.linalg import LinearOperator

        first = next(iter(self.weights.values()))

        def matmat(x: Any) -> Any:
            return self.matmul(torch.tensor(x, dtype=first.dtype, device=first.device)).cpu().numpy()

        def rmatmat(x: Any) -> Any:
            return self.rmatmul(torch.tensor(x, dtype=first.dtype, device=first.device)).cpu().numpy()

        return LinearOperator(
            shape=self.shape,
            matvec=lambda x: matmat(x.reshape(-1, 1))[:, 0],
            rmatvec=lambda x: rmatmat(x.reshape(-1, 1))[:, 0],
            matmat=matmat,
            rmatmat=rmatmat,
            dtype=str(first.dtype).removeprefix("torch."),
        )

    def _check(self, columns: Tensor, length: int) -> None:
        if columns.ndim != 2 or len(columns) != length:
            raise ValueError(f"`columns` must be ({length}, k); got {tuple(columns.shape)}.")

    def _split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """The parts of a vector (|θ|,) that belong to the weights, in their order."""
        return torch.split(vector, [weight.numel() for weight in self.weights.values()])

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
        return rows_of(outputs, self._rows)

    def _forward(self, column: Tensor) -> Tensor:
        vector = column.to(next(iter(self.weights.values())))
        pieces = self._split(vector if self._scale is None else vector * self._scale)
        tangent = {n: piece.view_as(w) for (n, w), piece in zip(self.weights.items(), pieces, strict=True)}
        images = []
        with differentiable_attention():
            for here in self._chunks():
                values = partial(self._values, here=here)
                images.append(torch.func.jvp(values, (self.weights,), (tangent,))[1].flatten())
        return torch.cat(images)

    def _gradients(self, here: slice) -> list[Tensor]:
        """The rows of V of some samples, (n R, size) for every weight."""
        found = self._plain_gradients(here)
        if self._scale is not None:
            found = [g * part for g, part in zip(found, self._split(self._scale), strict=True)]
        return found

    def _plain_gradients(self, here: slice) -> list[Tensor]:
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
