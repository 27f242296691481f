"""The leading singular directions of a Jacobian that is never formed.

Legend: V (n, |θ|) with n = N R rows, centred to H V by taking out the mean row; K = H V Vᵀ H; b columns in a block, q
blocks in the Krylov space span[Ω, KΩ, …, K^{q−1}Ω] of a random block Ω.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rankrise.kernels._operator import JacobianOperator

Method = Literal["auto", "krylov", "gram"]
_MOST_ROWS = 4096  # of a Gram matrix that "auto" decomposes
_AT_ONCE = 8  # columns of |θ| numbers in memory beside those that are returned


@dataclass(frozen=True)
class LowRank:
    """Leading singular triplets of V, or of H V if it was centred: V ≈ left diag(values) rightᵀ.

    Attributes:
        values: Singular values, from the largest down, (k,), float64.
        left: Their directions among the rows, (n, k), float64.
        right: Their directions among the weights, (|θ|, k), in the precision of the weights.
        energy: Share of the trace of K that the k directions carry.
        trace: The trace of K, exact up to rounding.
        residuals: ‖K u − σ² u‖ / σ₁² of every direction u, (k,); zero where the direction is exact.
        method: "krylov" or "gram": how they were found.
    """

    values: Tensor
    left: Tensor
    right: Tensor
    energy: float
    trace: float
    residuals: Tensor
    method: Literal["krylov", "gram"]


def top_directions(
    operator: JacobianOperator,
    k: int,
    *,
    oversample: int = 8,
    krylov: int = 4,
    centre: bool = True,
    method: Method = "auto",
    seed: int = 0,
) -> LowRank:
    """The k leading singular triplets of V, by block Krylov or from the Gram matrix.

    Block Krylov keeps all q blocks of b = k + `oversample` columns, orthogonalises twice, and takes the Ritz values of
    K. It costs q b products with V and Vᵀ and n q b numbers; the directions among the weights, |θ| k numbers, are
    multiplied out once at the end. The Gram matrix is exact and costs a gradient of every row, once for each pair of
    chunks, and n² numbers. Where n is small the Gram matrix is by far the cheaper one.

    Args:
        operator: V.
        k: How many directions. There are fewer if V has no more that are above rounding.
        oversample: Columns of a block beyond k.
        krylov: Number of blocks, q.
        centre: Whether to take the mean row out first. Without this the common mode of all samples comes first.
        method: "krylov", "gram", or "auto": whichever needs fewer derivatives, and Krylov above 4096 rows.
        seed: Of the random block.

    Raises:
        ValueError: A number is below 1, or the method is unknown.

    Reference: Musco and Musco, "Randomized block Krylov methods for stronger and faster approximate singular value
    decomposition", 2015.

    >>> x = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> found = top_directions(JacobianOperator(torch.nn.Linear(3, 1, bias=False).eval(), x), 2, centre=False)
    >>> found.values.round(decimals=4).tolist(), round(found.energy, 4)
    ([3.0, 2.0], 0.9286)
    """
    if k < 1 or krylov < 1 or oversample < 0:
        raise ValueError(
            f"`k` and `krylov` must be at least 1 and `oversample` at least 0; got {k}, {krylov} and {oversample}."
        )
    if method not in get_args(Method):
        raise ValueError(f"`method` must be one of {', '.join(get_args(Method))}; got {method!r}.")
    columns = min(k + oversample, operator.shape[0])
    chosen = _cheaper(operator, krylov * columns) if method == "auto" else method
    if chosen == "gram":
        kernel = operator.gram()
        if centre:
            kernel = _centred(_centred(kernel).mT)
        trace = kernel.trace()
        basis = torch.linalg.eigh((kernel + kernel.mT) / 2).eigenvectors.flip(1)[:, :columns]
        image = kernel @ basis
    else:
        trace = _trace(operator, centre=centre)
        basis, image = _krylov_space(operator, columns, krylov, centre=centre, seed=seed)
    small = basis.mT @ image
    squares, rotation = torch.linalg.eigh((small + small.mT) / 2)
    squares, rotation = squares.flip(0)[:k], rotation.flip(1)[:, :k]
    rounding = torch.finfo(next(iter(operator.weights.values())).dtype).eps
    kept = squares > rounding * squares[:1].clamp_min(0)
    squares, rotation = squares[kept], rotation[:, kept]
    left = basis @ rotation
    residuals = (image @ rotation - left * squares).norm(dim=0) / squares[:1]
    values = squares.sqrt()
    right = operator.rmatmul(_centred(left) if centre else left)
    return LowRank(
        values=values,
        left=left,
        right=right / values.to(right),
        energy=float(squares.sum() / trace) if len(squares) else 0.0,
        trace=float(trace),
        residuals=residuals,
        method=chosen,
    )


def _cheaper(operator: JacobianOperator, num_columns: int) -> Literal["krylov", "gram"]:
    """The method that takes fewer derivatives: a product with V and one with Vᵀ count as two gradients of each row."""
    rows, samples = operator.shape[0], operator.num_samples
    gradients = rows * (operator.num_chunks + 1) / 2
    return "gram" if rows <= _MOST_ROWS and gradients <= 2 * num_columns * samples else "krylov"


def _trace(operator: JacobianOperator, *, centre: bool) -> Tensor:
    trace = operator.column_squares().sum()
    if not centre:
        return trace
    count = operator.shape[0]
    ones = torch.full((count, 1), count**-0.5, dtype=torch.float64, device=trace.device)
    return trace - operator.rmatmul(ones).double().square().sum()


def _krylov_space(
    operator: JacobianOperator, columns: int, blocks: int, *, centre: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of the Krylov space and K times it, both (n, at most blocks × columns)."""
    count, device = operator.shape[0], next(iter(operator.weights.values())).device
    block = torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)
    block = _centred(block) if centre else block
    basis = block.new_zeros(count, 0)
    images: list[Tensor] = []
    for _ in range(blocks):
        block = _new_directions(block, basis)
        if not block.shape[1]:
            break
        basis = torch.cat([basis, block], dim=1)
        block = _kernel_times(operator, block, centre=centre)
        images.append(block)
    return basis, torch.cat(images, dim=1)


def _new_directions(block: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal columns for what the block has outside the span of the basis; none for what is rounding."""
    for _ in range(2):
        block = block / block.norm(dim=0).clamp_min(torch.finfo(block.dtype).tiny)
        block = block - basis @ (basis.mT @ block)
        left, sigma, _ = torch.linalg.svd(block, full_matrices=False)
        block = left[:, sigma > 1e-10 * len(block)]
    return block


def _kernel_times(operator: JacobianOperator, block: Tensor, *, centre: bool) -> Tensor:
    parts = []
    for some in torch.split(block, _AT_ONCE, dim=1):
        image = operator.matmul(operator.rmatmul(_centred(some) if centre else some)).double()
        parts.append(_centred(image) if centre else image)
    return torch.cat(parts, dim=1)


def _centred(columns: Tensor) -> Tensor:
    return columns - columns.mean(0, keepdim=True)
