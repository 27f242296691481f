"""Features of inputs: their gradients along the leading directions of the Fisher kernel of a network.

Legend: U_x is the gradient of a row of x, a row of V; I the diagonal of E[U Uᵀ] over the inputs of the fit;
D = I + δ max I with the damping δ; P (|θ|, k) the leading right singular directions of the centred V D^(−1/2). The
feature of x is (U_x − mean U) D^(−1/2) P. K(x, z) = U_xᵀ D⁻¹ U_z is the Fisher kernel with a diagonal Fisher matrix.

The idea is that of the Neural Fisher Kernel (Zhang, Zhai, Littwin, Susskind, arXiv 2202.01944). Its text was not at
hand: the rows, the damping and the solver here are our own.
"""

import os
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from rankrise.kernels._low_rank import top_directions
from rankrise.kernels._operator import Inputs, JacobianOperator
from rankrise.kernels._rows import ROW_KINDS, Rows, check_rows
from rankrise.store import UntrustedInputError, load_tensors, save_tensors, show

_OWN = -1  # in a file: rows of a function, which the file does not hold
_PARTS = ("directions", "mean", "norms", "rows", "values")


class FisherFeatures:
    """Inputs as k numbers for each row: where their gradients point among the leading directions of the kernel.

    Args:
        k: How many directions.
        rows: Whose gradients, as for `JacobianOperator`. "lse" and "sum" give k numbers for an input, "outputs" and
            "fisher" k for each output.
        whiten: Whether to divide every weight's gradients by the root of their mean square, the diagonal of the Fisher
            matrix.
        damping: δ, added to that mean square in units of its largest value. The features depend on it: a smaller one
            gives weights with tiny gradients the same say as all others.
        chunk: Samples at a time.
        seed: Of the random block of `top_directions`.

    >>> x = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-3.0, 0.0], [0.0, -1.0]])
    >>> model = nn.Linear(2, 1, bias=False).eval()
    >>> features = FisherFeatures(1, rows="sum", whiten=False).fit(model, x)
    >>> features.transform(x).abs().round(decimals=4).flatten().tolist()
    [3.0, 0.0, 3.0, 0.0]
    """

    values: Tensor
    """Singular values of the centred, whitened V on the inputs of the fit, (k,)."""

    def __init__(
        self,
        k: int = 32,
        *,
        rows: Rows = "lse",
        whiten: bool = True,
        damping: float = 1e-8,
        chunk: int = 64,
        seed: int = 0,
    ) -> None:
        check_rows(rows)
        if k < 1 or not damping >= 0:
            raise ValueError(f"`k` must be at least 1 and `damping` at least 0; got {k} and {damping}.")
        self.k, self.rows, self.whiten, self.damping, self.chunk, self.seed = k, rows, whiten, damping, chunk, seed

    def fit(self, model: nn.Module, inputs: Inputs) -> Self:
        """Find the directions for a model, in evaluation mode, on some inputs."""
        operator = JacobianOperator(model, inputs, rows=self.rows, chunk=self.chunk)
        first = next(iter(operator.weights.values()))
        scale = torch.ones(operator.shape[1], dtype=first.dtype, device=first.device)
        if self.whiten:
            squares = operator.column_squares() / operator.shape[0]
            largest = squares.max()
            if largest > 0:
                damped = (squares / largest + self.damping) * largest
                scale = torch.where(damped > 0, damped.rsqrt(), 0.0).to(first)
        found = top_directions(operator.scaled(scale), self.k, seed=self.seed)
        self.values = found.values
        self._directions = scale[:, None] * found.right
        self._mean = operator.matmul(self._directions).mean(0)
        self._model, self._norms = model, _norms(operator)
        return self

    def transform(self, inputs: Inputs) -> Tensor:
        """The features of inputs, (N, R k).

        Raises:
            ValueError: Nothing was fitted or loaded, or the weights of the model have changed since.
        """
        if not hasattr(self, "_model"):
            raise ValueError("`transform` must come after `fit` or `load`; neither was called.")
        operator = JacobianOperator(self._model, inputs, rows=self.rows, chunk=self.chunk)
        self._check_weights(operator)
        return (operator.matmul(self._directions) - self._mean).reshape(operator.num_samples, -1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the directions to a safetensors file; the model is not part of it.

        Raises:
            ValueError: Nothing was fitted.
            OSError: The file cannot be written.
        """
        if not hasattr(self, "_model"):
            raise ValueError("`save` must come after `fit`; nothing was fitted.")
        kind = _OWN if callable(self.rows) else ROW_KINDS.index(self.rows)
        parts = (self._directions, self._mean, self._norms, torch.tensor(kind), self.values)
        save_tensors(Path(path), dict(zip(_PARTS, parts, strict=True)), "features")

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: nn.Module, *, rows: Rows | None = None, chunk: int = 64
    ) -> "FisherFeatures":
        """Read directions that were saved, for the same model with the same weights.

        Args:
            path: The file; it may come from somebody else.
            model: The model of the fit.
            rows: The function that was given as rows; to be left out for rows that have a name.
            chunk: Samples at a time.

        Raises:
            ValueError: The file is missing, damaged, or of a network with other weights; or `rows` does not fit it.
        """
        held = load_tensors(Path(path))
        where = show(Path(path).name)
        try:
            directions, mean, norms, kind, values = (held[name] for name in _PARTS)
            k = len(values)
            fits = (
                len(held) == len(_PARTS)
                and k > 0
                and directions.ndim == 2
                and (directions.shape[1:], mean.shape, values.shape) == ((k,), (k,), (k,))
                and (kind.shape, kind.dtype) == ((), torch.int64)
                and _OWN <= int(kind) < len(ROW_KINDS)
                and all(bool(x.is_floating_point() and x.isfinite().all()) for x in (directions, mean, norms, values))
            )
        except (KeyError, TypeError):  # a part is missing, or `values` is a single number
            fits = False
        if not fits:
            raise UntrustedInputError(f"{where} must hold what FisherFeatures.save wrote; it holds something else.")
        if (int(kind) == _OWN) != callable(rows) or (rows is not None and not callable(rows)):
            needed = "the function of the fit" if int(kind) == _OWN else "left out"
            raise ValueError(f"`rows` must be {needed} for {where}; got {rows!r}.")
        features = cls(k, rows=ROW_KINDS[int(kind)] if rows is None else rows, chunk=chunk)
        first = next(model.parameters())
        features.values = values
        features._directions = directions.to(first.device)
        features._mean, features._norms = mean.to(first.device), norms.to(first.device)
        features._model = model
        return features

    def _check_weights(self, operator: JacobianOperator) -> None:
        """Refuse a model whose weights are not those of the fit, by the norm of each weight and by their number."""
        now = _norms(operator)
        same = now.shape == self._norms.shape and len(self._directions) == operator.shape[1]
        if not (same and torch.allclose(now, self._norms, rtol=1e-6, atol=0)):
            raise ValueError(
                "The weights of the model must be those that the features were fitted to; they differ. Fit again."
            )


def _norms(operator: JacobianOperator) -> Tensor:
    return torch.stack([weight.double().norm() for weight in operator.weights.values()])
