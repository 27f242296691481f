"""How many heads a layer has, as the caller, the module or a config states it; shapes are checked against that."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUM_HEADS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads")
NUM_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head")
HEAD_DIM = ("head_dim", "attention_head_size", "head_size", "d_head", "d_kv")


@dataclass(frozen=True)
class HeadCounts:
    """What was stated about the heads of a layer; shapes have the last word."""

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None


def stated_counts(witnesses: Iterable[Any], name: str) -> HeadCounts:
    """What the nearest witness that knows a number of heads states.

    Raises:
        ValueError: None knows; says which names it looked for.
    """
    head_dim = num_kv_heads = None
    for witness in witnesses:
        num_kv_heads = num_kv_heads or _integer(witness, NUM_KV_HEADS)
        head_dim = head_dim or _integer(witness, HEAD_DIM)
        if num_heads := _integer(witness, NUM_HEADS):
            return HeadCounts(num_heads, num_kv_heads, head_dim)
    raise ValueError(
        f"The number of heads of {name!r} must be known; neither the module nor a config has one of "
        f"{', '.join(NUM_HEADS)}. Pass `num_heads=` or `config=`."
    )


def lookup(witness: Any, key: str) -> Any:
    """`witness[key]` of a mapping, `witness.key` of anything else, None where there is none."""
    return witness.get(key) if isinstance(witness, Mapping) else getattr(witness, key, None)


def _integer(witness: Any, keys: Iterable[str]) -> int | None:
    values = (lookup(witness, key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)
