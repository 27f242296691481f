"""The grammar of a row of the table: where four weights of an attention layer are, and how their rows are ordered.

Symbols:
    H, G    query heads, and key and value heads (G < H in grouped attention, G = 1 in multi-query attention)
    r       head dimension of queries and keys, r_v of values

Names are never joined as strings: a pattern is matched against every name, and what `{layer}` stands for says which
weights belong together.
"""

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

ROLES = ("q", "k", "v", "o")
Order = Literal["blocks", "heads", "groups"]
_ATTENTION_PART = re.compile(r"att(n|ention)", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """Where W_Q, W_K, W_V, W_O of every layer are, by pattern.

    In a pattern `{layer}` stands for any dotted path, the same one in all patterns; a pattern that starts with
    `{layer}.` also matches without it. Roles that name the same weight are fused. Their rows follow one another in the
    order of `sequence`, as whole blocks (`order="blocks"`, rows q|k|v, each head by head), head by head
    (`order="heads"`, rows (head, role, r)), or group by group (`order="groups"`: the query heads that share a key head,
    then that key head and its value head).

    Args:
        q: Pattern of the weight that makes queries; `k`, `v`, `o` likewise.
        order: Order of the rows of fused weights.
        sequence: Order of the roles inside fused weights.
        slices: Number of equal parts into which fused rows are cut before `order` applies to each of them.
        gated: Whether every query head is followed by a gate of its own size in the same weight.
        q_down: Pattern of the weight that projects the input of `q` to a latent; `kv_down` that of `k` and `v`. The
            query and key heads then end in a part that is rotated and is not read.
        stored: "out_in" as nn.Linear keeps a weight, "in_out" as HF Conv1D does. None: found from the module's class
            or from the shapes of fused weights, else "out_in".
        num_heads: Query heads. None: found in the module or its config.
        num_kv_heads: Key and value heads. None: found from shapes, or the module or its config.
        norm: Pattern of the gain of the norm before attention, for `fold_norm`.
        norm_kind: "layer" or "rms". None: found from the module's class.
        in_attention: Whether the last part of what `{layer}` stands for must look like the name of an attention module.
        types: Pattern of the model types that use this row; None allows all.
        name: What the row is called in `HeadMap.scheme`.

    >>> Layout("b.{layer}.w_q", "b.{layer}.w_k", "b.{layer}.w_v", "b.{layer}.w_o", num_heads=2).find(["b.0.w_q"])
    []
    >>> Layout("{layer}.qkv.weight", "{layer}.qkv.weight", "{layer}.qkv.weight", "{layer}.proj.weight").find(
    ...     ["blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight"]
    ... )[0]["o"]
    'blocks.0.attn.proj.weight'
    """

    q: str
    k: str
    v: str
    o: str
    order: Order = "blocks"
    stored: Literal["out_in", "in_out"] | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    norm: str | None = None
    norm_kind: Literal["layer", "rms"] | None = None
    name: str = "your layout"
    sequence: str = "qkv"
    slices: int = 1
    gated: bool = False
    q_down: str | None = None
    kv_down: str | None = None
    in_attention: bool = False
    types: str | None = None

    def __post_init__(self) -> None:
        for role in ROLES:
            pattern = getattr(self, role)
            if not isinstance(pattern, str) or pattern.count("{layer}") != 1:
                raise ValueError(f"`{role}` must be a name with `{{layer}}` in it once; got {pattern!r}.")
        for field in _OPTIONAL:
            pattern = getattr(self, field)
            if pattern is not None and pattern.count("{layer}") != 1:
                raise ValueError(f"`{field}` must be a name with `{{layer}}` in it once; got {pattern!r}.")
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                allowed = ", ".join(map(repr, choices))
                raise ValueError(f"`{field}` must be one of {allowed}; got {getattr(self, field)!r}.")
        if sorted(self.sequence) != ["k", "q", "v"]:
            raise ValueError(f"`sequence` must have q, k and v in it, each once; got {self.sequence!r}.")
        if self.o in (self.q, self.k, self.v):
            raise ValueError(f"`o` must be a weight of its own; got {self.o!r}, which another role has too.")
        for field in ("num_heads", "num_kv_heads", "slices"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"`{field}` must be a positive integer; got {value!r}.")

    def find(self, names: Collection[str]) -> list[dict[str, str]]:
        """For every layer whose weights are all among `names`: role (and "norm", if it is there) to name."""
        found: dict[str, dict[str, str]] = {}
        end = self.q.partition("{layer}")[2].removeprefix(".")
        if not any(name.endswith(end) for name in names):
            return []  # as for nearly every row of the table; the expressions below take far longer
        patterns = {key: _regex(pattern) for key in _KEYS if (pattern := getattr(self, key)) is not None}
        for name in names:
            for key, pattern in patterns.items():
                if match := pattern.fullmatch(name):
                    found.setdefault(match["layer"] or "", {})[key] = name
        needed = patterns.keys() - {"norm"}
        return [here for layer, here in found.items() if needed <= here.keys() and self._is_at(layer)]

    def _is_at(self, layer: str) -> bool:
        return not (self.in_attention and layer) or bool(_ATTENTION_PART.search(layer.rpartition(".")[2]))

    @property
    def is_torch_attention(self) -> bool:
        """Whether the weights are those of an nn.MultiheadAttention, which calls none of its projections."""
        return self.q.endswith(("in_proj_weight", "q_proj_weight"))

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are made from a latent of a few dimensions."""
        return self.kv_down is not None

    def fused_with(self, role: str) -> tuple[str, ...]:
        """The roles among q, k, v that share `role`'s weight, in the order of their rows."""
        return tuple(other for other in self.sequence if getattr(self, other) == getattr(self, role)) or (role,)


_OPTIONAL = ("norm", "q_down", "kv_down")
_KEYS = (*ROLES, *_OPTIONAL)
_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "order": ("blocks", "heads", "groups"),
    "stored": (None, "out_in", "in_out"),
    "norm_kind": (None, "layer", "rms"),
}


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    before, after = (re.escape(part) for part in pattern.split("{layer}"))
    if not before and after.startswith(r"\."):
        return re.compile(rf"(?:(?P<layer>.+)\.)?{after[2:]}")
    return re.compile(rf"{before}(?P<layer>.+){after}")
