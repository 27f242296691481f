"""Phase B of tied coordinates that a symmetry of the network exchanges: they stay equal, whatever rounding says.

Symbols:
    class       tied coordinates whose products are equal up to sign
    z           one product per class, m numbers; q = E z with E (p, m) of entries 0 and ±1
    g_z         mean of ± g over a class: ds/dt of each of its members as long as they are equal
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rankrise.theory._networks import DiagonalNetwork
from rankrise.theory._rosenbrock import Array, Index
from rankrise.theory._status import Status
from rankrise.theory._transition import _STATIONARY, Transition, settle


class _Quotient:
    """L, g_z and its derivative as functions of z."""

    def __init__(self, net: DiagonalNetwork, expand: Tensor) -> None:
        self._net, self._expand = net, expand
        self._size = expand.abs().sum(dim=0)

    def loss_and_gradient(self, z: Tensor, /) -> tuple[float, Tensor]:
        loss, g = self._net.loss_and_gradient(self._expand @ z)
        return loss, self._expand.T @ g.cpu() / self._size

    def hessian_columns(self, z: Tensor, index: Sequence[int], /) -> Tensor:
        members = self._expand[:, list(index)]  # (p, k)
        used = members.abs().sum(dim=1).nonzero().flatten()
        columns = self._net.hessian_columns(self._expand @ z, used).cpu() @ members[used]
        return self._expand.T @ columns / self._size[:, None]


def settle_symmetric(net: DiagonalNetwork, q: Array, classes: Sequence[Index], *, scale: float) -> Transition | None:
    """Follow the balanced flow from q with each class moving as one.

    Args:
        net: The network.
        q: Start; |q| is equal within a class.
        classes: Disjoint sets of coordinates that tied.
        scale: As for `settle`.

    Returns:
        Where it rests, without its path; None if that is no stationary point of the network, so that the tie was no
        symmetry.
    """
    first = np.arange(len(q))
    for members in classes:
        first[members] = members[0]
    kept, label = np.unique(first, return_inverse=True)
    expand = np.zeros((len(q), len(kept)))
    expand[np.arange(len(q)), label] = np.where(q * q[first] < 0, -1.0, 1.0)
    end = settle(_Quotient(net, torch.from_numpy(expand)), q[kept], scale=scale, saddles=True)
    if end.status is not Status.FINISHED:
        return None
    products = expand @ end.products
    support = np.flatnonzero(products)
    loss, g = net.loss_and_gradient(torch.from_numpy(products))
    gradient: Array = g.cpu().numpy()
    if float(np.abs(gradient[support]).max(initial=0.0)) > _STATIONARY * scale:
        return None
    hessian = net.hessian_columns(torch.from_numpy(products), support.tolist()).cpu().numpy()[support]
    counts = end.num_gradients + 1, end.num_columns + len(support)
    return Transition(products, loss, gradient, hessian, (), Status.FINISHED, *counts)
