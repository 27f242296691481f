"""How concentrated attention is: the entropy of every row of an attention matrix, and the least it could be.

Legend: a (n,) the logits of one row among its n visible keys, p = softmax(a), H = −Σ_j p_j log p_j in nats,
s = ‖a − mean a‖₂, β = exp(−s √(n / (n − 1))).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_LOGITS = 2**22  # most logits that are computed at a time


@dataclass(frozen=True)
class AttentionRows:
    """Some rows of some attention matrices; every tensor has the shape (batch, heads, rows).

    Attributes:
        entropy: H in nats: 0 for a row that looks at one key, log n for a row that looks at all alike.
        floor: The least entropy that logits of the same norm s could have, see `entropy_floor`.
        max_logit: The largest logit of the row, after scale and mask.
        visible: The number n of keys that the row may look at.
    """

    entropy: Tensor
    floor: Tensor
    max_logit: Tensor
    visible: Tensor

    @property
    def share(self) -> Tensor:
        """`H / log n`, between 0 and 1; NaN for a row with one key or none, which has no choice.

        >>> rows = attention_entropy(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), is_causal=True)
        >>> rows.share.tolist()
        [[[nan, 1.0]]]
        """
        n = self.visible.to(self.entropy.dtype)
        return torch.where(self.visible > 1, self.entropy / n.log(), math.nan)


@torch.no_grad()
def attention_entropy(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    mask: Tensor | None = None,
    rows: int | None = None,
) -> AttentionRows:
    """Measure the entropy of attention from its queries and keys, as `scaled_dot_product_attention` gets them.

    `H = log Σ_j e^{a_j} − Σ_j p_j a_j` with `a = scale · q kᵀ + mask`, in float32 (float64 for float64 inputs) and
    outside autocast. Nothing of the size of the whole attention matrix is kept. Cost: one product of the chosen rows
    with the keys.

    Args:
        q: Queries (batch, heads, tokens, r), rotated and normed as attention uses them.
        k: Keys (batch, heads, keys, r), or fewer heads that divide those of `q` (grouped queries).
        scale: Factor of the logits; 1/√r by default.
        is_causal: Whether query i sees the keys 0 … i only.
        mask: True where a query may look at a key, or numbers to add to the logits, broadcast to
            (batch, heads, tokens, keys). −∞ and the lowest number of its dtype hide a key.
        rows: Number of query rows to read, evenly spaced with the first and the last; all by default.

    Returns:
        The rows. A row that sees no key is NaN.

    Raises:
        ValueError: The shapes do not fit.

    >>> q, k = torch.tensor([[[[2.0]]]]), torch.tensor([[[[0.0], [1.0]]]])
    >>> found = attention_entropy(q, k)  # one row with the logits 0 and 2
    >>> [round(x.item(), 4) for x in (found.entropy, found.share, found.max_logit, found.visible)]
    [0.3653, 0.5271, 2.0, 2]
    """
    _check_shapes(q, k, mask)
    dtype = torch.float64 if q.dtype == torch.float64 and q.device.type != "mps" else torch.float32
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    num_rows, num_keys = q.shape[-2], k.shape[-2]
    chosen = _spaced(num_rows, rows, q.device)
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], num_rows if mask.shape[-2] == 1 else mask.shape[-2], num_keys)
    keys, size = k.to(dtype).mT, max(1, _MOST_LOGITS // max(1, math.prod(q.shape[:-2]) * num_keys))
    parts = []
    for part in torch.split(chosen, size):
        with torch.autocast(q.device.type, enabled=False):
            logits = q.index_select(-2, part).to(dtype) * scale @ keys
        hidden = torch.zeros((), dtype=torch.bool, device=q.device)
        if is_causal:
            hidden = part[:, None] < torch.arange(num_keys, device=q.device)
        if mask is not None:
            allowed = mask.index_select(-2, part)
            if allowed.dtype == torch.bool:
                hidden = hidden | ~allowed
            else:
                hidden = hidden | (allowed <= torch.finfo(allowed.dtype).min / 2)
                logits = logits + torch.where(hidden, 0.0, allowed.to(dtype))
        parts.append(_measure(logits, hidden.expand(logits.shape)))
    return AttentionRows(*(torch.cat(tensors, -1) for tensors in zip(*parts, strict=True)))


def _measure(logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Entropy, floor, largest logit and visible keys of rows (..., rows, keys)."""
    visible = (~hidden).sum(-1)
    largest = logits.masked_fill(hidden, -math.inf).amax(-1)
    shifted = (logits - largest[..., None]).masked_fill(hidden, -math.inf)  # a shift leaves the entropy as it is
    weights = shifted.exp()
    total = weights.sum(-1)
    seen = shifted.masked_fill(hidden, 0.0)  # −∞ · 0 would be NaN
    entropy = (total.log() - (weights * seen).sum(-1) / total).clamp(min=0)
    centred = (seen - seen.sum(-1, keepdim=True) / visible[..., None]).masked_fill(hidden, 0.0)
    floor = entropy_floor(torch.linalg.vector_norm(centred, dim=-1), visible).to(entropy.dtype)
    nothing = visible == 0
    return *(x.masked_fill(nothing, math.nan) for x in (entropy, floor, largest)), visible  # type: ignore[return-value]


def entropy_floor(norm: Tensor, visible: Tensor) -> Tensor:
    """The least entropy of a row of n logits whose centred norm is s.

    `H ≥ log(1 + (n − 1) β) + s √(n (n − 1)) β / (1 + (n − 1) β)`, with `β = exp(−s √(n / (n − 1)))`. Equality holds for
    one large logit and n − 1 equal ones. The entropy does not change when all logits are shifted alike, therefore the
    norm of the centred row decides. The bound that is known for whole attention matrices has the spectral norm of
    `X W_K W_Qᵀ Xᵀ` in place of s, and is much lower.

    Args:
        norm: s ≥ 0, any shape.
        visible: n, broadcast with `norm`; the floor is 0 for n ≤ 1.

    >>> norm = torch.tensor([0.0, 3.0])
    >>> entropy_floor(norm, torch.tensor(16)).round(decimals=4).tolist()  # log 16 without logits
    [2.7726, 1.7675]
    """
    s, n = norm.double() if norm.device.type != "mps" else norm.cpu().double(), visible.to(norm.device)
    n = n.to(s).clamp(min=2)
    beta = torch.exp(-s * (n / (n - 1)).sqrt())
    total = 1 + (n - 1) * beta
    floor = total.log() + s * (n * (n - 1)).sqrt() * beta / total
    return floor.masked_fill(visible.to(s.device) <= 1, 0.0).to(norm.device if norm.device.type != "mps" else "cpu")


def _spaced(count: int, rows: int | None, device: torch.device) -> Tensor:
    """Return the indices of evenly spaced rows, the first and the last among them; of all rows for None."""
    if rows is None or rows >= count:
        return torch.arange(count, device=device)
    if rows < 1:
        raise ValueError(f"`rows` must be at least 1; got {rows}.")
    if rows == 1:
        return torch.tensor([count - 1], device=device)
    return torch.linspace(0, count - 1, rows, dtype=torch.float64).round().long().to(device)


def _check_shapes(q: Tensor, k: Tensor, mask: Tensor | None) -> None:
    if not (q.ndim == k.ndim >= 3 and q.shape[-1] == k.shape[-1] and q.shape[:-3] == k.shape[:-3]):
        raise ValueError(
            "`q` and `k` must be (batch, heads, tokens, r) with the same batch and r; "
            f"got {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if not k.shape[-3] or q.shape[-3] % k.shape[-3]:
        raise ValueError(f"The heads of `k` must divide those of `q`; got {k.shape[-3]} and {q.shape[-3]}.")
    if mask is not None:
        shape = (*q.shape[:-1], k.shape[-2])
        own = tuple(mask.shape)
        fits = 2 <= len(own) <= len(shape) and all(
            m in (1, s) for m, s in zip(reversed(own), reversed(shape), strict=False)
        )
        if not fits:
            raise ValueError(f"`mask` must broadcast to {shape}; got {own}.")
