"""Two checkpoints' names brought together: wrappers off, then the prefix that one of them has and the other has not.

A prefix is never stripped by guess: only one that most names of a checkpoint carry, only where more names agree without
it, and it is shown. Two checkpoints that then do not agree are not compared.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rankrise.heads import canonical_names

_BUFFER = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|inv_freq|position_ids|token_type_ids|num_batches_tracked|masked_bias|attn\.bias|"
    r"attention\.bias|rope\.freqs|rotary_emb\.(cos|sin)_cached|freqs_cis)"
)
_NUMBERED = re.compile(
    r"(?P<block>(?:^|.*?\.)(?:\w*layers?|h|blocks?|encoder|decoder|resblocks|experts))\.(?P<number>\d+)\."
)


class Aligned(NamedTuple):
    """From the common name of each tensor to its name in either checkpoint."""

    base: dict[str, str]
    tuned: dict[str, str]
    renamed: tuple[str, ...]  # what was done, in words


def align(base: Iterable[str], tuned: Iterable[str]) -> Aligned:
    """Common names for the tensors of two checkpoints.

    Raises:
        ValueError: Two names of one checkpoint that differ only by wrappers.

    >>> align(["model.h.0.w", "lm_head.w"], ["module.h.0.w", "module.lm_head.w"]).renamed
    ("tuned: 'module.' stripped from 2 names", "base: 'model.' stripped from 1 name")
    """
    plain = {side: _plain(names) for side, names in (("base", base), ("tuned", tuned))}
    renamed = [
        f"{side}: {prefix!r} stripped from {_names(count)}"
        for side, names in plain.items()
        for prefix, count in _wrappers(names).items()
    ]
    first, second = plain["base"], plain["tuned"]
    best = (len(first.keys() & second.keys()), "", "")
    for p in _prefixes(first):
        for q in _prefixes(second):
            one, other = _strip(first, p), _strip(second, q)
            if one is not None and other is not None and (score := len(one.keys() & other.keys())) > best[0]:
                best = (score, p, q)
    for side, prefix in (("base", best[1]), ("tuned", best[2])):
        if prefix:
            count = sum(name.startswith(prefix) for name in plain[side])
            renamed.append(f"{side}: {prefix!r} stripped from {_names(count)}")
    return Aligned(_strip(first, best[1]) or first, _strip(second, best[2]) or second, tuple(renamed))


def is_buffer(name: str) -> bool:
    """Whether a tensor is no weight: a mask or table that some versions save and others do not."""
    return _BUFFER.fullmatch(name) is not None


def layer_of(name: str) -> int:
    """The number of the layer that a name belongs to, -1 for none.

    >>> layer_of("model.layers.12.mlp.experts.3.w1.weight"), layer_of("lm_head.weight")
    (12, -1)
    """
    match = _NUMBERED.match(name)
    return int(match["number"]) if match and len(match["number"]) < 9 else -1


def block_of(name: str) -> str | None:
    """The stack of layers that a name belongs to, with its number, None for none: `model.layers.12`."""
    match = _NUMBERED.match(name)
    return f"{match['block']}.{match['number']}" if match else None


def _plain(names: Iterable[str]) -> dict[str, str]:
    """From names without wrappers to those in the file."""
    return {plain: name for name, plain in canonical_names(names).items()}


def _wrappers(names: Mapping[str, str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for plain, name in names.items():
        taken = [part for part in name.split(".") if part not in plain.split(".")]
        if taken:
            found[".".join(taken) + "."] += 1
    return found


def _prefixes(names: Mapping[str, str]) -> list[str]:
    """The empty one and the dotted beginnings, of up to three words, that at least half the names have."""
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        counts.update(".".join(parts[:n]) + "." for n in range(1, min(4, len(parts))))
    return ["", *sorted((p for p, count in counts.items() if 2 * count >= len(names)), key=len)]


def _strip(names: Mapping[str, str], prefix: str) -> dict[str, str] | None:
    """The names without a prefix; None where two become equal."""
    stripped = {name.removeprefix(prefix): stored for name, stored in names.items()}
    return stripped if len(stripped) == len(names) else None


def _names(count: int) -> str:
    return f"{count} name{'s' if count != 1 else ''}"
