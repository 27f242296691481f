"""A stack of square linear layers, whose product is all that it computes, and whose depth is what makes it greedy."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

Init = Literal["orthogonal", "normal", "default"]


class LinearSubnetwork(nn.Module):
    """W_L … W_1, square matrices without biases or activations, to be put behind an encoder.

    What it can represent is what one matrix can. Trained by gradients from small weights it learns directions one after
    another, the strong ones first, so that a code behind it fills few dimensions (Jing, Zbontar and LeCun, arXiv
    2010.00679; Sun et al., arXiv 2107.01301). After training `collapse` makes one layer of it.

    Args:
        dim: Size of the code, k.
        depth: Number of matrices, L; with none it is the identity.
        gain: Factor on every initial matrix. Modes of the product start at gain^L.
        init: "orthogonal": gain times a random orthogonal matrix. "normal": entries of standard deviation gain / √k.
            "default": as torch.nn.Linear, without the gain.
        seed: Of the initial weights.

    Raises:
        ValueError: A size is out of range, or the start is unknown.

    >>> network = LinearSubnetwork(4, 3, gain=0.5)
    >>> torch.linalg.svdvals(network.product()).round(decimals=4).tolist()
    [0.125, 0.125, 0.125, 0.125]
    """

    def __init__(self, dim: int, depth: int, *, gain: float = 0.5, init: Init = "orthogonal", seed: int = 0) -> None:
        super().__init__()
        if dim < 1 or depth < 0 or not gain > 0:
            raise ValueError(
                f"`dim` must be at least 1, `depth` at least 0, `gain` positive; got {dim}, {depth}, {gain:g}."
            )
        generator = torch.Generator().manual_seed(seed)
        self.dim = dim
        self.factors = nn.ParameterList(
            initial_factor(dim, dim, gain=gain, init=init, generator=generator) for _ in range(depth)
        )

    def forward(self, code: Tensor) -> Tensor:
        """Apply all matrices to codes (…, k)."""
        for factor in self.factors:
            code = code @ factor.mT
        return code

    def product(self) -> Tensor:
        """The matrix that they amount to, (k, k)."""
        first = next(iter(self.factors), None)
        product = torch.eye(self.dim) if first is None else torch.eye(self.dim, dtype=first.dtype, device=first.device)
        for factor in self.factors:
            product = factor @ product
        return product

    def collapse(self) -> nn.Linear:
        """One layer without a bias that computes the same."""
        product = self.product().detach()
        layer = nn.Linear(self.dim, self.dim, bias=False, dtype=product.dtype, device=product.device)
        layer.weight = nn.Parameter(product)
        return layer


def initial_factor(rows: int, columns: int, *, gain: float, init: Init, generator: torch.Generator) -> Tensor:
    """A random matrix (rows, columns) in the default precision; "orthogonal" has orthonormal rows or columns × gain."""
    if init not in get_args(Init):
        raise ValueError(f"`init` must be one of {', '.join(get_args(Init))}; got {init!r}.")
    factor: Tensor
    if init == "default":
        factor = (2 * torch.rand(rows, columns, generator=generator) - 1) / columns**0.5
    elif init == "normal":
        factor = gain / columns**0.5 * torch.randn(rows, columns, generator=generator)
    else:
        drawn = torch.randn(rows, columns, generator=generator)
        q = torch.linalg.qr(drawn if rows >= columns else drawn.mT).Q
        factor = gain * (q if rows >= columns else q.mT)
    return factor
