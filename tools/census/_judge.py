"""Whether the heads that `resolve` cuts are those of the forward: scores and outputs predicted from the recipes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tools.census._forward import Product, Softmax
from torch import Tensor, nn

from rankrise.heads import AttentionLayer, WeightView

TOLERANCE = 2e-3  # of the norm, in float32


@dataclass(frozen=True)
class Factors:
    """W_K, W_Q, W_V, W_O of one layer, (heads, d, r) each, and where they are stored."""

    heads: dict[str, Tensor]
    storages: dict[str, int]
    views: dict[str, WeightView]


def factors(layer: AttentionLayer, model: nn.Module) -> Factors:
    """Read a layer from a live model."""
    views = dict(layer.roles)
    key, query = layer.factors("kq", model.get_parameter)
    value, out = layer.factors("vo", model.get_parameter)
    first = {role: view.down.parameter if view.down else view.parameter for role, view in views.items()}
    return Factors(
        heads={"q": query.float(), "k": key.float(), "v": value.float(), "o": out.float()},
        storages={role: model.get_parameter(first[role]).untyped_storage().data_ptr() for role in "qkvo"},
        views=views,
    )


@dataclass(frozen=True)
class Verdict:
    """What the forward says of a layer."""

    ran: bool  # its weights were used, or at least its queries
    softmax: bool  # a softmax came between its queries and its output
    scores: bool  # the scores are those of `K Qᵀ`
    output: bool  # the output is that of `V Oᵀ`
    crosses: bool = False  # queries and keys read different inputs
    judged: bool = False  # the forward used all its weights, so that it could be judged
    scaled: bool = False  # the output is that of `V Oᵀ` times a constant
    comparable: bool = True  # both inputs led to operations of the same shapes

    @property
    def holds(self) -> bool:
        """Whether both circuits are those of the forward."""
        return self.scores and self.output


def judge(parts: Factors, one: Sequence[Product | Softmax], two: Sequence[Product | Softmax]) -> Verdict:
    """Compare a layer with the records of two inputs to the same forward; differences of scores have no constants."""
    q, k, v, o = (_first(parts, role, one) for role in "qkvo")
    if q is None:
        return Verdict(False, False, False, False)
    if o is None or k is None or v is None:
        return Verdict(True, False, False, False)
    end = min((i for i in _all(parts, "o", one) if i > max(q, k, v)), default=None)
    if end is None:
        return Verdict(True, False, False, False)
    if [_shape(event) for event in one[: end + 1]] != [_shape(event) for event in two[: end + 1]]:
        return Verdict(True, True, False, False, comparable=False)
    softmaxes = [i for i in range(max(q, k), end) if isinstance(one[i], Softmax) and not _has_one_key(one[i])]
    seen = scores = False
    factor: float | None = None
    crosses = one[q].x.shape != one[k].x.shape or not torch.equal(one[q].x, one[k].x)
    for i in softmaxes:
        seen = True
        for layout in _layouts(one[i].scores, one[q].x, one[k].x, parts.heads["q"].shape[0]):
            if scores and factor is not None:
                break
            same = _same_scores(parts, layout, (one[q].x, one[k].x, one[i].scores), (two[q].x, two[k].x, two[i].scores))
            if same:
                scores = True
                factor = _output_factor(parts, layout, one[i].probabilities, one[v].x, one[end].y)
    scaled = factor is not None and abs(factor - 1) > TOLERANCE
    return Verdict(True, seen, scores, factor is not None, crosses, judged=seen, scaled=scaled)


def _shape(event: Product | Softmax) -> torch.Size:
    return event.scores.shape if isinstance(event, Softmax) else event.x.shape


def _all(parts: Factors, role: str, events: Sequence[Product | Softmax]) -> Iterator[int]:
    """Positions of the products with a role's weight, or with the part of it where the role's rows begin."""
    view = parts.views[role]
    for i, event in enumerate(events):
        if isinstance(event, Product) and event.storage == parts.storages[role]:
            rows, width = event.y.shape[1], event.x.shape[1]
            start = event.offset // (width if view.axis == int(role == "o") else 1)
            whole = role == "o" or (event.offset == 0 and rows == view.shape[view.axis])
            if whole or view.down is not None or start <= view.offset < start + rows:
                yield i


def _first(parts: Factors, role: str, events: Sequence[Product | Softmax]) -> int | None:
    return next(_all(parts, role, events), None)


@dataclass(frozen=True)
class _Layout:
    """How rows of queries, keys and scores are arranged: `batch` sequences of n queries and m keys."""

    batch: int
    n: int
    m: int
    sequence_first: bool  # rows of x are (token, sequence)
    order: str  # "ahn", "anh" or "han" for sequence a, head h and query n

    def tokens(self, x: Tensor, length: int) -> Tensor:
        """Return rows as (batch, tokens, d)."""
        if self.sequence_first:
            return x.reshape(length, self.batch, -1).transpose(0, 1)
        return x.reshape(self.batch, length, -1)

    def scores(self, scores: Tensor, heads: int) -> Tensor:
        """Return scores as (batch, heads, n, m), without columns beyond the keys."""
        width = scores.shape[-1]
        sizes = {"a": self.batch, "h": heads, "n": self.n}
        shaped = scores.reshape(*(sizes[c] for c in self.order), width).float()
        return shaped.permute(*(self.order.index(c) for c in "ahn"), 3)[..., : self.m]


def _layouts(scores: Tensor, x_q: Tensor, x_k: Tensor, heads: int) -> Iterator[_Layout]:
    rows = scores.numel() // scores.shape[-1]
    if rows != len(x_q) * heads:
        return
    sizes = {scores.shape[:i].numel() for i in range(scores.ndim)}
    for batch in sorted({*sizes, *(s // heads for s in sizes if s % heads == 0)}):
        if batch and len(x_q) % batch == 0 and len(x_k) % batch == 0:
            n, m = len(x_q) // batch, len(x_k) // batch
            if m <= scores.shape[-1]:
                for order in ("ahn", "anh", "han"):
                    for sequence_first in (False, True) if batch > 1 else (False,):
                        yield _Layout(batch, n, m, sequence_first, order)


_Seen = tuple[Tensor, Tensor, Tensor]


def _same_scores(parts: Factors, layout: _Layout, one: _Seen, two: _Seen) -> bool:
    heads = len(parts.heads["q"])
    got = [layout.scores(scores, heads) for *_, scores in (one, two)]
    want = [_predicted(parts, layout, x_q, x_k) for x_q, x_k, _ in (one, two)]
    valid = (got[0].abs() < 1e4) & (got[1].abs() < 1e4)  # neither masked nor of a token without a key
    delta, hat = (_centred(a[1] - a[0], valid) for a in (got, want))
    slope = (delta * hat).sum((0, 2, 3)) / (hat * hat).sum((0, 2, 3)).clamp_min(1e-30)
    rest = (delta - slope[None, :, None, None] * hat).square().sum((0, 2, 3)).sqrt()
    size = delta.square().sum((0, 2, 3)).sqrt()
    return bool(((rest <= TOLERANCE * size) & (size > 1e-6) & (slope > 0)).all())


def _has_one_key(softmax: Softmax) -> bool:
    """Return whether the softmax is over one key, so that its scores mean nothing."""
    return softmax.scores.shape[-1] == 1


def _centred(scores: Tensor, valid: Tensor) -> Tensor:
    kept = torch.where(valid, scores, 0.0)
    mean = kept.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(valid, kept - mean, 0.0)


def _predicted(parts: Factors, layout: _Layout, x_q: Tensor, x_k: Tensor) -> Tensor:
    q = torch.einsum("and,hdr->ahnr", layout.tokens(x_q, layout.n).float(), parts.heads["q"])
    k = torch.einsum("amd,hdr->ahmr", layout.tokens(x_k, layout.m).float(), parts.heads["k"])
    return q @ k.mT


def _output_factor(parts: Factors, layout: _Layout, probabilities: Tensor, x_v: Tensor, y: Tensor) -> float | None:
    """Return c where the output is c times the predicted one, or None where it is no multiple of it."""
    heads = parts.heads["v"].shape[0]
    p = layout.scores(probabilities, heads)
    if len(x_v) != layout.batch * layout.m or len(y) != layout.batch * layout.n:
        return None
    v = torch.einsum("amd,hdr->ahmr", layout.tokens(x_v, layout.m).float(), parts.heads["v"])
    want = torch.einsum("ahnr,hdr->and", p @ v, parts.heads["o"])
    for got in (
        y.reshape(layout.batch, layout.n, -1).float(),
        y.reshape(layout.n, layout.batch, -1).transpose(0, 1).float(),
    ):
        if got.shape != want.shape:
            continue
        finite = (got.isfinite() & want.isfinite()).all(-1)  # a token without a key has no output
        seen, hat = got[finite], want[finite]
        if not bool(seen.norm() > 1e-6):
            continue
        factor = float((seen * hat).sum() / hat.square().sum().clamp_min(1e-30))
        if factor > 0 and bool((seen - factor * hat).norm() <= TOLERANCE * seen.norm()):
            return factor
    return None
