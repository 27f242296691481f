"""One decomposition of a change Δ, from which every rank is read.

Subspace iteration on a random start (Halko, Martinsson and Tropp 2011), widened until it holds what was asked for, or
the eigenvectors of the Gram matrix in float64 where everything was asked for.

Symbols:
    Δ       tuned − base, m × n, never needed in one piece: blocks of rows will do
    V       n × k, orthonormal columns; Δ V = U S after a rotation of V
    error   ‖Δ − U_r S_r V_rᵀ‖_F. As V_r V_rᵀ is a projection, error² = ‖Δ‖_F² − Σ_{i≤r} s_i² for every r ≤ k: exact for
            what is written, however good or bad V is, and so an upper bound on the best error at that rank
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankrise.linalg import symmetric_eigen, thin_svd

Blocks = Callable[[], Iterable[Tensor]]  # each call goes through the rows of Δ once more
_START, _SPARE = 24, 8  # directions at first, and those beyond the ones that are trusted
_EXACT_FROM = 0.25  # share of the small side: with more directions than this the Gram matrix is cheaper
_SETTLED = 5e-3  # relative fall of error² between two iterations at which they end
_ITERATIONS = 12
_CHUNK = 2**20  # entries worked on at a time: they stay in cache for both products
_DROP = {torch.float32: 1e-6, torch.float64: 1e-12}  # share of σ₁ below which a value is rounding
_RESOLVED = {torch.float32: 1e-3, torch.float64: 1e-7}  # share of σ₁, about √eps, below which ΔᵀΔ V blurs directions


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Leading part of a change Δ ≈ `left @ diag(sigma) @ right`, and the size of all of it.

    >>> import torch
    >>> found = decompose_delta(torch.diag(torch.tensor([3.0, 2.0, 1.0])), exact=True)
    >>> [round(found.error(rank), 6) for rank in range(4)]
    [1.0, 0.597614, 0.267261, 0.0]
    """

    shape: tuple[int, int]
    left: Tensor  # (m, k), orthonormal columns, in the dtype of the work
    sigma: Tensor  # (k,) float64, descending: from below where not exact
    right: Tensor  # (k, n), orthonormal rows
    squared_norm: float  # ‖Δ‖_F²
    squared_rest: float  # ‖Δ − left diag(sigma) right‖_F²
    is_exact: bool  # whether sigma are the singular values to rounding, and all that do not vanish are there

    @property
    def max_rank(self) -> int:
        """How many directions there are."""
        return len(self.sigma)

    def errors(self) -> Tensor:
        """`‖Δ − Δ_r‖_F / ‖Δ‖_F` for r = 0 … k, in float64: the error of these very factors."""
        squares = self.sigma.square()
        tail = torch.cat([squares.flip(0).cumsum(0).flip(0), squares.new_zeros(1)]) + self.squared_rest
        return (tail / self.squared_norm).clamp(0, 1).sqrt() if self.squared_norm > 0 else torch.zeros_like(tail)

    def error(self, rank: int) -> float:
        """Relative error at a rank; beyond `max_rank`, that of `max_rank`, an upper bound."""
        return float(self.errors()[min(rank, self.max_rank)])

    def factors(self, rank: int) -> tuple[Tensor, Tensor]:
        """`B` (m, r) and `A` (r, n), of equal norms, with `B A` the part of rank r."""
        root = self.sigma[:rank].sqrt().to(self.left.dtype)
        return self.left[:, :rank] * root, root[:, None] * self.right[:rank]

    def truncated(self, rank: int) -> "Decomposition":
        """The same with fewer directions kept, in memory of its own."""
        rest = self.squared_rest + float(self.sigma[rank:].square().sum())
        kept = self.left[:, :rank].clone(), self.sigma[:rank].clone(), self.right[:rank].clone()
        return Decomposition(self.shape, *kept, self.squared_norm, rest, is_exact=False)

    @property
    def has_factors(self) -> bool:
        """Whether factors are held."""
        return self.left.shape[1] > 0

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of both factors."""
        return self.left.nbytes + self.right.nbytes

    def without_factors(self) -> "Decomposition":
        """The spectrum alone."""
        return replace(self, left=self.left[:, :0].clone(), right=self.right[:0].clone())


def decompose_delta(
    delta: Tensor | Blocks,
    *,
    max_rank: int | None = None,
    energy: float | None = None,
    exact: bool = False,
    noise: float = 0.0,
) -> Decomposition:
    """Decompose a change once, for every rank up to the one that is needed.

    Cost: O(m n k) for k directions, against O(m n min(m, n)) with a large factor for a dense SVD. Each iteration reads
    Δ once; they end when error² falls by less than half a percent. Directions below √eps σ₁ are sought once more in
    what the larger ones leave, where rounding does not hide them.

    Args:
        delta: (m, n), or a function that returns its blocks of rows, called once for each pass.
        max_rank: Directions wanted at most.
        energy: Share of `‖Δ‖_F²` at which fewer are enough. With neither, everything is found exactly.
        exact: Eigenvectors of the smaller Gram matrix in float64: right to 1e-8 σ₁, and at any rank.
        noise: Singular value up to which directions are rounding and left out.

    Returns:
        At least as many directions as reach `energy`, or `max_rank`; none for Δ = 0.

    Raises:
        ValueError: Not a matrix, empty, not finite, or an argument out of its range.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> left, right = torch.randn(60, 3, generator=generator), torch.randn(3, 40, generator=generator)
    >>> found = decompose_delta(left @ right, energy=0.999)
    >>> found.max_rank, found.error(3) < 1e-5
    (3, True)
    """
    if max_rank is not None and (type(max_rank) is not int or max_rank < 1):
        raise ValueError(f"`max_rank` must be a positive integer; got {max_rank!r}.")
    if energy is not None and not 0 < energy <= 1:
        raise ValueError(f"`energy` must be in (0, 1]; got {energy}.")
    rows = _Rows(delta)
    if rows.norm == 0:
        return _nothing(rows)
    small = min(rows.shape)
    limit = min(small, max_rank or small)
    first = limit if energy is None else min(limit, _START)
    if exact or (max_rank is None and energy in (None, 1.0)) or _is_many(first, small):
        return _exact(rows, limit, energy, noise)
    return _randomised(rows, limit, energy, noise)


class _Rows:
    """Δ / ‖Δ‖_F as an operator over chunks of rows, in float32 or float64."""

    def __init__(self, delta: Tensor | Blocks) -> None:
        self._blocks: Blocks = (lambda: [delta]) if isinstance(delta, Tensor) else delta
        self.is_streamed = not isinstance(delta, Tensor)
        self.norm = 1.0
        num_rows, num_columns, squares = 0, None, 0.0
        self.dtype, self.device = torch.float32, torch.device("cpu")
        for block in self._blocks():
            if block.ndim != 2 or not block.is_floating_point():
                raise ValueError(
                    f"`delta` must be a matrix of floating point numbers; got {block.dtype} {tuple(block.shape)}."
                )
            if num_columns not in (None, block.shape[1]):
                raise ValueError(f"`delta` must have blocks of equal width; got {num_columns} and {block.shape[1]}.")
            num_rows, num_columns = num_rows + block.shape[0], block.shape[1]
            self.dtype = torch.float64 if block.dtype == torch.float64 else self.dtype
            self.device = block.device
            squares += float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2
        if not num_rows or not num_columns:
            raise ValueError("`delta` must have rows and columns; it is empty.")
        if not squares < float("inf"):
            raise ValueError("`delta` must be finite; it holds NaN or infinity.")
        self.shape = (num_rows, num_columns)
        self.norm = squares**0.5
        self.squared_norm = squares

    def chunks(self, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
        for block in self._blocks():
            yield from _chunks(block, dtype or self.dtype)

    def times(self, v: Tensor) -> Tensor:
        """`Δ V / ‖Δ‖_F`."""
        return torch.cat([chunk @ v / self.norm for chunk in self.chunks()])

    def both(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """`Y = Δ V / ‖Δ‖_F` and `Δᵀ Y / ‖Δ‖_F`, in one pass."""
        parts, w = [], torch.zeros_like(v)
        for chunk in self.chunks():
            y = chunk @ v / self.norm
            parts.append(y)
            w.addmm_(chunk.mT, y)
        return torch.cat(parts), w / self.norm

    def adjoint_times(self, y: Tensor) -> Tensor:
        """`Δᵀ Y / ‖Δ‖_F`."""
        w, begin = y.new_zeros(self.shape[1], y.shape[1]), 0
        for chunk in self.chunks():
            w.addmm_(chunk.mT, y[begin : begin + len(chunk)])
            begin += len(chunk)
        return w / self.norm

    def gram(self) -> Tensor:
        """`ΔᵀΔ / ‖Δ‖_F²`, or `ΔΔᵀ / ‖Δ‖_F²` where that is smaller, in float64."""
        m, n = self.shape
        if n <= m:
            gram = torch.zeros(n, n, dtype=torch.float64, device=self.device)
            for chunk in self.chunks(torch.float64):
                gram.addmm_(chunk.mT, chunk)
            return gram / self.squared_norm
        whole = torch.cat([block.to(torch.float64) for block in self._blocks()])
        return whole @ whole.mT / self.squared_norm

    def without(self, found: Decomposition) -> Tensor | Blocks:
        """`Δ − U S Vᵀ`, in one piece where Δ is."""
        scaled = found.sigma.to(found.right.dtype)[:, None] * found.right

        def blocks() -> Iterator[Tensor]:
            begin = 0
            for chunk in self.chunks():
                yield torch.addmm(chunk, found.left[begin : begin + len(chunk)], scaled, alpha=-1)
                begin += len(chunk)

        return blocks if self.is_streamed else torch.cat(list(blocks()))

    def squared_rest(self, left: Tensor, sigma: Tensor, right: Tensor) -> float:
        """`‖Δ − left diag(sigma) right‖_F² / ‖Δ‖_F²`, from the difference itself: no cancellation of large sums."""
        scaled, begin, total = sigma.to(right.dtype)[:, None] * right, 0, 0.0
        for chunk in self.chunks():
            rest = torch.addmm(chunk / self.norm, left[begin : begin + len(chunk)], scaled, alpha=-1)
            total += float(rest.square().sum(dtype=torch.float64))
            begin += len(chunk)
        return total


def _chunks(block: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    size = max(1, (_CHUNK if block.device.type == "cpu" else 64 * _CHUNK) // max(1, block.shape[-1]))
    for begin in range(0, block.shape[0], size):
        yield block[begin : begin + size].to(dtype)


def _randomised(rows: _Rows, limit: int, energy: float | None, noise: float) -> Decomposition:
    small = min(rows.shape)
    wanted = _START - _SPARE if energy is not None else limit
    k = min(wanted + _SPARE, small)
    v, before = _orthonormal(_gaussian(rows.shape[1], k).to(rows.device, rows.dtype)), 1.0
    _, w = rows.both(v)
    v = _orthonormal(w)
    for _ in range(_ITERATIONS):
        # A second look at memory costs nothing, at the disk a pass.
        y, ready = rows.both(v) if rows.is_streamed else (rows.times(v), None)
        s = symmetric_eigen((y.mT @ y).double())[0].flip(0).clamp_min(0)  # s²
        rank = _needed(s, energy, limit)
        if rank > k - _SPARE and rank < limit:  # what was asked for is not there yet
            w = rows.adjoint_times(y) if ready is None else ready
            k = min(2 * k, limit + _SPARE, small)
            if _is_many(k, small):
                return _exact(rows, limit, energy, noise)
            fresh = _gaussian(rows.shape[1], k).to(rows.device, rows.dtype)[:, w.shape[1] :]
            v, before = _orthonormal(torch.cat([_orthonormal(w), fresh - v @ (v.mT @ fresh)], dim=1)), 1.0
            continue
        error = float(1 - s[:rank].sum())
        if before - error <= _SETTLED * error or error < 10 * _DROP[rows.dtype] ** 2:
            break
        v, before = _orthonormal(rows.adjoint_times(y) if ready is None else ready), error
    q, r = torch.linalg.qr(y)
    u, s, vh = thin_svd(r.double())
    u, right = q @ u.to(rows.dtype), vh.to(rows.dtype) @ v.mT
    found = _decomposition(rows, u, s, right, min(limit, k - _SPARE), noise, is_exact=False)
    resolved = int((found.sigma > _RESOLVED[rows.dtype] * found.sigma[0]).sum())
    if resolved == found.max_rank:
        return found
    noise = max(noise, _DROP[rows.dtype] * float(found.sigma[0]))
    return _refined(rows, found.truncated(resolved), limit, energy, noise)


def _refined(rows: _Rows, first: Decomposition, limit: int, energy: float | None, noise: float) -> Decomposition:
    """`first` with the directions of what it leaves, `Δ − U S Vᵀ`: in ΔᵀΔ V they are smaller than the rounding."""
    share = None if energy is None else 1 - (1 - energy) * first.squared_norm / first.squared_rest
    if share is not None and share <= 0:
        return first
    second = decompose_delta(rows.without(first), max_rank=limit - first.max_rank, energy=share, noise=noise)
    return Decomposition(
        rows.shape,
        torch.cat([first.left, second.left], dim=1),
        torch.cat([first.sigma, second.sigma]),
        torch.cat([first.right, second.right]),
        first.squared_norm,
        second.squared_rest,
        is_exact=False,
    )


def _exact(rows: _Rows, limit: int, energy: float | None, noise: float) -> Decomposition:
    values, vectors = symmetric_eigen(rows.gram())
    squares, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    rank = min(limit, _needed(squares, energy, limit), max(1, int((squares > 1e-15 * squares[0]).sum())))
    vectors = vectors[:, :rank]
    if rows.shape[1] <= rows.shape[0]:
        y = torch.cat([chunk @ vectors / rows.norm for chunk in rows.chunks(torch.float64)])
        s = torch.linalg.vector_norm(y, dim=0)
        left, right = y / s, vectors.mT
    else:
        y = torch.zeros(rank, rows.shape[1], dtype=torch.float64, device=rows.device)
        begin = 0
        for chunk in rows.chunks(torch.float64):
            y.addmm_(vectors[begin : begin + len(chunk)].mT, chunk)
            begin += len(chunk)
        y /= rows.norm
        s = torch.linalg.vector_norm(y, dim=1)
        left, right = vectors, y / s[:, None]
    return _decomposition(rows, left.to(rows.dtype), s, right.to(rows.dtype), rank, noise, is_exact=True)


def _decomposition(
    rows: _Rows, left: Tensor, s: Tensor, right: Tensor, rank: int, noise: float, *, is_exact: bool
) -> Decomposition:
    """Cut at `rank`, measure what is left; rounding is not a direction."""
    rank = max(1, min(rank, int((s > max(_DROP[rows.dtype] * float(s[0]), noise / rows.norm)).sum())))
    left, s, right = left[:, :rank], s[:rank], right[:rank]
    rest = max(0.0, float(1 - s.square().sum()))
    if rest < 1e-3:
        rest = rows.squared_rest(left, s, right)
    scale = rows.squared_norm
    return Decomposition(
        rows.shape, left.contiguous(), s * rows.norm, right.contiguous(), scale, rest * scale, is_exact=is_exact
    )


def decompose_factors(left: Tensor, right: Tensor) -> Decomposition:
    """Decompose `left rightᵀ`, (m, r) and (n, r), exactly and without forming it: two thin QR and an r × r SVD.

    >>> import torch
    >>> decompose_factors(torch.eye(4, 2), torch.eye(3, 2) * 5).sigma.tolist()
    [5.0, 5.0]
    """
    (q, r), (p, t) = torch.linalg.qr(left.double()), torch.linalg.qr(right.double())
    u, s, vh = thin_svd(r @ t.mT)
    rank = int((s > 1e-12 * s[:1]).sum())
    total = float(s.square().sum())
    shape = (left.shape[0], right.shape[0])
    return Decomposition(shape, q @ u[:, :rank], s[:rank], vh[:rank] @ p.mT, total, 0.0, is_exact=True)


def _nothing(rows: _Rows) -> Decomposition:
    m, n = rows.shape
    empty = functools.partial(torch.zeros, device=rows.device)
    nothing = empty(m, 0, dtype=rows.dtype), empty(0, dtype=torch.float64), empty(0, n, dtype=rows.dtype)
    return Decomposition(rows.shape, *nothing, 0.0, 0.0, is_exact=True)


def _needed(squares: Tensor, energy: float | None, limit: int) -> int:
    """How many leading s² (of ‖Δ‖² = 1) are needed for the energy; `limit` if none is given or they do not reach it."""
    if energy is None:
        return limit
    reached = (squares.cumsum(0) < energy * (1 - 1e-12)).sum()
    return min(limit, int(reached) + 1)


def _is_many(k: int, small: int) -> bool:
    return k + _SPARE > _EXACT_FROM * small


def _orthonormal(v: Tensor) -> Tensor:
    """An orthonormal basis."""
    q: Tensor = torch.linalg.qr(v).Q
    return q


@functools.lru_cache(maxsize=4)
def _gaussian(rows: int, columns: int) -> Tensor:
    """The same start in every call; the global random state is not touched."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float32)
