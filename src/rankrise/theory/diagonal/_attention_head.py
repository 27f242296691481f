"""One attention head with diagonal weights under mean squared error: loss, gradient and Hessian in closed form.

Symbols, all per sample; i and j number tokens, k and l coordinates:
    X_a, X_b   tokens (n, d), restricted to the key-query and to the value-output coordinates that are asked about
    a, b       the products of these coordinates; q = [a, b]
    S          softmax(X diag(a) Xᵀ), row i sums to 1
    M, R       S X_b and M diag(b) - Y
    G, P       ∂L/∂S = R diag(b) X_bᵀ, and ∂L/∂Z = S ⊙ (G - rowsum(S ⊙ G)) for the logits Z
    ρ          R + M diag(b)
    K          X_b diag(b²) X_bᵀ, the second derivative of L in a row of S
    W_i        the second derivative of L in row i of Z, (n, n): S_ij S_il (K_jl - e_ij - e_il) + δ_jl P_ij with
               e_ij = κ_ij - ½ S_i·κ_i + G_ij - S_i·G_i and κ = S K
    V          V_ij,k = x_ik x_jk = ∂Z_ij/∂a_k, which does not depend on a because the logits are linear in a

A product that is zero changes neither the logits nor the other outputs, so that a head cut to the coordinates that are
not zero has the same gradient and Hessian on them: this is what makes phase B of Algorithm 1 cheap.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rankrise.theory._tasks import ArrayLike, diagonal_attention
from rankrise.theory.diagonal._diagonal_network import DiagonalNetwork, Landscape

_CHUNK_BYTES = 1 << 19  # the gradient is summed over chunks in which x takes this many bytes
_BLOCK_BYTES = 1 << 20  # a whole Hessian is summed over chunks in which V takes this many bytes


class AttentionHead(DiagonalNetwork):
    """One attention head under mean squared error, with gradient and Hessian columns in closed form."""

    def __init__(self, x: Tensor, y: Tensor, *, l2: float) -> None:
        super().__init__(diagonal_attention, x.double(), y, num_weights=2 * x.shape[2], l2=l2)
        self._last_cut = _CutHead(self, torch.zeros(0, dtype=torch.long, device=self.device))

    def loss_and_gradient(self, q: ArrayLike) -> tuple[float, Tensor]:
        """Return L(q) and g(q) = -∂L/∂q, as in `DiagonalNetwork`.

        The head that is cut to the coordinates that are not zero is kept for the next call, because the support rarely
        changes from one call to the next.
        """
        q = self._checked(q)
        support = q.nonzero().flatten()
        if 4 * len(support) > 3 * len(q):
            return super().loss_and_gradient(q)
        if not torch.equal(support, self._last_cut.index):
            self._last_cut = _CutHead(self, support)
        return self._last_cut.loss_and_whole_gradient(q)

    def restricted(self, index: Sequence[int]) -> Landscape:
        """Return the head cut to some coordinates, all others being zero."""
        return _CutHead(self, torch.as_tensor(index, dtype=torch.long, device=self.device))

    def _chunk_gradient(self, x: Tensor, y: Tensor, q: Tensor) -> tuple[float, Tensor]:
        a, b = q.chunk(2)
        loss, slope = _gradient(x, x, y, a, b)
        return loss / len(x), slope / len(x)

    def _chunk_hessian(self, x: Tensor, y: Tensor, q: Tensor, index: Tensor) -> Tensor:
        a, b = q.chunk(2)
        return _hessian(x, x, y, a, b, index) / len(x)


class _CutHead:
    """The head as a function of the coordinates `index` alone; the data of the other coordinates are not used.

    Args:
        net: The whole head.
        index: The coordinates that remain.
    """

    def __init__(self, net: AttentionHead, index: Tensor) -> None:
        d = net.num_weights // 2
        self._net, self.index = net, index
        self._in_order = torch.argsort(index, stable=True)  # key-query products first, as in q
        index = index[self._in_order]
        self._num_a = int((index < d).sum())
        of_a, of_b = index[: self._num_a], index[self._num_a :] - d
        x, y = net._x, net._y
        self._x_a, self._x_b, self._y = x[..., of_a], x[..., of_b], y[..., of_b]
        rest = torch.ones(d, dtype=torch.bool, device=net.device)
        rest[of_b] = False
        self._rest = 0.5 * float(y[..., rest].square().sum()) / len(x)  # the outputs whose b is zero
        width = max(x.shape[1], d)
        self._chunk = max(1, _CHUNK_BYTES // (8 * x.shape[1] * width))

    def loss_and_gradient(self, q: Tensor, /) -> tuple[float, Tensor]:
        """Return L and g on the coordinates that remain."""
        a, b = self._parts(q)
        loss, slope = 0.0, torch.zeros_like(torch.cat([a, b]))
        for x_a, x_b, y in self._chunks():
            part, part_slope = _gradient(x_a, x_b, y, a, b)
            loss += part
            slope += part_slope
        loss = self._net._finite_loss(self._rest + loss / len(self._y), self._whole(q))
        q = q.to(slope.device)
        gradient = torch.empty_like(q)
        gradient[self._in_order] = -slope / len(self._y)
        return loss + 0.5 * self._net.l2 * float(q @ q), gradient - self._net.l2 * q

    def loss_and_whole_gradient(self, whole: Tensor) -> tuple[float, Tensor]:
        """Return L and g on all coordinates of the head, for products that are zero off the coordinates that remain."""
        a, b = self._parts(whole[self.index])
        loss, d = 0.0, self._net.num_weights // 2
        slope = torch.zeros_like(whole)
        of_b = self.index[self._in_order][self._num_a :]
        cut, every = self._chunks(), _chunks(self._chunk, self._net._x, self._net._y)
        for (x_a, x_b, target), (x, y) in zip(cut, every, strict=True):
            s, m, r, p = _slopes(x_a, x_b, target, a, b)
            loss += 0.5 * float(r.flatten() @ r.flatten())
            slope[:d] += _column_sum(x, p @ x)
            slope[d:] -= _column_sum(s @ x, y)  # where b = 0, R is -Y
            slope[of_b] += _column_sum(m, m) * b
        loss = self._net._finite_loss(self._rest + loss / len(self._y), whole)
        return loss + 0.5 * self._net.l2 * float(whole @ whole), -slope / len(self._y) - self._net.l2 * whole

    def hessian_columns(self, q: Tensor, index: Sequence[int], /) -> Tensor:
        """Return columns of ∂²L/∂q² on the coordinates that remain."""
        a, b = self._parts(q)
        place = torch.argsort(self._in_order)  # where each coordinate lies in [a, b]
        asked = torch.as_tensor(index, dtype=torch.long, device=place.device)
        columns = sum(
            (_hessian(x_a, x_b, y, a, b, place[asked]) for x_a, x_b, y in self._chunks()),
            torch.zeros(len(place), len(asked), dtype=torch.float64, device=place.device),
        )
        columns = columns[place] / len(self._y)
        columns[asked, torch.arange(len(asked), device=place.device)] += self._net.l2
        return columns

    def restricted(self, index: Sequence[int]) -> Landscape:
        """Return the head cut to some of the coordinates that remain."""
        return _CutHead(self._net, self.index[torch.as_tensor(index, dtype=torch.long, device=self.index.device)])

    def _parts(self, q: Tensor) -> tuple[Tensor, Tensor]:
        q = q.to(self.index.device)[self._in_order]
        return q[: self._num_a], q[self._num_a :]

    def _whole(self, q: Tensor) -> Tensor:
        whole = torch.zeros(self._net.num_weights, dtype=torch.float64, device=self.index.device)
        whole[self.index] = q.to(whole.device)
        return whole

    def _chunks(self) -> Iterator[tuple[Tensor, ...]]:
        return _chunks(self._chunk, self._x_a, self._x_b, self._y)


def _chunks(size: int, *data: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same samples of several tensors, `size` at a time."""
    for start in range(0, len(data[0]), size):
        yield tuple(tensor[start : start + size] for tensor in data)


def _softmax(z: Tensor) -> Tensor:
    """Return softmax over the last axis; over ten entries this is three times as fast as `torch.softmax`."""
    z = (z - z.amax(dim=-1, keepdim=True)).exp_()
    return z.div_(z.sum(dim=-1, keepdim=True))


def _gradient(x_a: Tensor, x_b: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[float, Tensor]:
    """Return the loss and [∂L/∂a, ∂L/∂b], both summed over samples: colsum(X_a ⊙ P X_a) and colsum(M ⊙ R)."""
    _, m, r, p = _slopes(x_a, x_b, y, a, b)
    loss = 0.5 * float(r.flatten() @ r.flatten())
    return loss, torch.cat([_column_sum(x_a, p @ x_a), _column_sum(m, r)])


def _slopes(x_a: Tensor, x_b: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return S, M, R and P."""
    s = _softmax((x_a * a) @ x_a.mT)  # (N, n, n)
    m = s @ x_b  # (N, n, |b|)
    r = m * b - y
    g = (r * b) @ x_b.mT  # (N, n, n)
    return s, m, r, g.sub_((s * g).sum(-1, keepdim=True)).mul_(s)


def _hessian(x_a: Tensor, x_b: Tensor, y: Tensor, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    """Return the columns `index` of ∂²L/∂[a, b]², summed over samples; if they are many, all are computed at once."""
    if 3 * len(index) > len(a) + len(b):
        return _all_columns(x_a, x_b, y, a, b)[:, index]
    return _few_columns(x_a, x_b, y, a, b, index)


def _all_columns(x_a: Tensor, x_b: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return ∂²L/∂[a, b]².

    H_aa = Σ_i V_iᵀ W_i V_i, H_ab = Vᵀ (S_ij ρ_i x_j) - (X_a ⊙ S X_a)ᵀ (ρ ⊙ M), and H_bb = diag(colsum(M ⊙ M)). The sums
    over samples and pairs of tokens are single matrix products.
    """
    num_a, n = len(a), x_a.shape[1]
    block = torch.zeros(num_a + len(b), num_a + len(b), dtype=a.dtype, device=a.device)
    rows = max(1, _BLOCK_BYTES // (8 * n * n * max(1, num_a, len(b))))
    for u_a, u_b, target in _chunks(rows, x_a, x_b, y):
        s, m, rho, g = _parts(u_a, u_b, target, a, b)
        v = (u_a[:, :, None] * u_a[:, None]).flatten(0, 2)  # (N n n, |a|)
        w = _row_hessian(s, g, (u_b * b.square()) @ u_b.mT)
        bent = (w.flatten(1, 2) @ u_a).view(*s.shape, -1).mul_(u_a[:, :, None]).flatten(0, 2)  # W_i V_i
        pairs = (rho[:, :, None] * u_b[:, None]).mul_(s[..., None]).flatten(0, 2)  # S_ij ρ_il x_jl, (N n n, |b|)
        block[:num_a, :num_a] += v.T @ bent
        block[:num_a, num_a:] += v.T @ pairs - (u_a * (s @ u_a)).flatten(0, 1).T @ (rho * m).flatten(0, 1)
        block[num_a:, num_a:].diagonal().add_(m.square().sum(dim=(0, 1)))
    block[num_a:, :num_a] = block[:num_a, num_a:].T
    return block


def _few_columns(x_a: Tensor, x_b: Tensor, y: Tensor, a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    """Return the columns `index` of ∂²L/∂[a, b]², one after another; dP is the change of P in a column's direction."""
    num_a = len(a)
    s, m, rho, g = _parts(x_a, x_b, y, a, b)
    columns = torch.zeros(num_a + len(b), len(index), dtype=a.dtype, device=a.device)
    w = _row_hessian(s, g, (x_b * b.square()) @ x_b.mT) if bool((index < num_a).any()) else s
    for column, k in enumerate(index.tolist()):
        if k < num_a:
            x_k = x_a[..., k]
            dz = x_k[:, :, None] * x_k[:, None]  # ∂Z/∂a_k
            dp = (w @ x_k[:, None, :, None]).squeeze(-1) * x_k[:, :, None]
            ds = s * (dz - (s * dz).sum(-1, keepdim=True))
            columns[num_a:, column] = _column_sum(ds @ x_b, rho)
        else:
            m_k, rho_k = m[..., k - num_a], rho[..., k - num_a]
            dp = s * (x_b[:, None, :, k - num_a] - m_k[:, :, None]) * rho_k[:, :, None]
            columns[k, column] = m_k.square().sum()
        columns[:num_a, column] = _column_sum(x_a, dp @ x_a)
    return columns


def _parts(x_a: Tensor, x_b: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return S, M, ρ and G."""
    s = _softmax((x_a * a) @ x_a.mT)  # (N, n, n)
    m = s @ x_b  # (N, n, |b|)
    r = m * b - y
    return s, m, r + m * b, (r * b) @ x_b.mT


def _row_hessian(s: Tensor, g: Tensor, k: Tensor) -> Tensor:
    """Return W, (N, n, n, n): the second derivative of L in each row of the logits."""
    kappa = s @ k
    centred = g - (s * g).sum(-1, keepdim=True)
    e = kappa - 0.5 * (s * kappa).sum(-1, keepdim=True) + centred
    w = k[:, None] - e[:, :, :, None] - e[:, :, None]
    w *= s[:, :, :, None]
    w *= s[:, :, None]
    w.diagonal(dim1=-2, dim2=-1).add_(s * centred)
    return w


def _column_sum(left: Tensor, right: Tensor) -> Tensor:
    """Return colsum(left ⊙ right), summed over samples too."""
    return (left * right).sum(dim=(0, 1))
