"""Two checkpoints' names brought together: wrappers off, then the prefix that one of them has and the other has not.

A prefix is never stripped by guess: only one that most names of a checkpoint carry, only where more names agree without
it, and it is shown. Two checkpoints that then do not agree are not compared.
"""

import itertools
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


# transformers (its conversion_mapping, 5.17 to 5.22) renames these on loading: a model that it saved has the names on
# disk, a state dict and a PEFT adapter have those in memory.
IN_MEMORY = {
    "ViT": (
        (r"encoder\.layer\.", "layers."),
        (r"attention\.query\b", "q_proj"),
        (r"attention\.key\b", "k_proj"),
        (r"attention\.value\b", "v_proj"),
        (r"attention\.output\.dense\b", "attention.o_proj"),
        (r"intermediate\.dense\b", "mlp.fc1"),
        (r"(?<!attention\.)output\.dense\b", "mlp.fc2"),
    ),
    "DINO": (
        (r"attention\.attention\.query\b", "attention.q_proj"),
        (r"attention\.attention\.key\b", "attention.k_proj"),
        (r"attention\.attention\.value\b", "attention.v_proj"),
        (r"attention\.output\.dense\b", "attention.o_proj"),
    ),
    "DINOv3": ((r"(?<!model\.)\blayer\.", "model.layer."),),
    "Swin": (
        (r"attention\.self\.query\b", "attention.q_proj"),
        (r"attention\.self\.key\b", "attention.k_proj"),
        (r"attention\.self\.value\b", "attention.v_proj"),
        (r"attention\.output\.dense\b", "attention.o_proj"),
        (r"intermediate\.dense\b", "mlp.fc1"),
        (r"(?<!attention\.)output\.dense\b", "mlp.fc2"),
    ),
    "SegFormer": (
        (r"encoder\.(patch_embeddings|layer_norm)\.(\d+)\b", r"stages.\2.\1"),
        (r"encoder\.block\.(\d+)\.", r"stages.\1.blocks."),
        (r"attention\.self\.query\b", "attention.q_proj"),
        (r"attention\.self\.key\b", "attention.k_proj"),
        (r"attention\.self\.value\b", "attention.v_proj"),
        (r"attention\.output\.dense\b", "attention.o_proj"),
        (r"mlp\.dense([12])\b", r"mlp.fc\1"),
    ),
    "GPT-NeoX": ((r"^embed_out\b", "lm_head"),),
    "LLaVA": (
        (r"^language_model\.lm_head\b", "lm_head"),
        (r"^language_model\.model\.", "model.language_model."),
        (r"^(vision_tower|multi_modal_projector)\b", r"model.\1"),
    ),
    "Qwen2-VL": ((r"^visual\b", "model.visual"), (r"^model\.(?!language_model\.|visual\.)", "model.language_model.")),
}


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
    schemes: list[str] = []
    first, second, score, prefixes = _best(plain["base"], plain["tuned"])
    if score < 0.9 * min(len(first), len(second)):
        for scheme, side in itertools.product(IN_MEMORY, ("base", "tuned")):
            other = {**plain, side: _rewritten(plain[side], scheme)}
            found = _best(other["base"], other["tuned"])
            if found[2] > score:
                first, second, score, prefixes = found
                schemes = [f"{side}: names of {scheme} on disk read as those in memory"]
    renamed += schemes
    for side, prefix in zip(("base", "tuned"), prefixes, strict=True):
        if prefix:
            count = sum(name.startswith(prefix) for name in plain[side])
            renamed.append(f"{side}: {prefix!r} stripped from {_names(count)}")
    return Aligned(first, second, tuple(renamed))


def _best(
    base: Mapping[str, str], tuned: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], int, tuple[str, str]]:
    """Both without the prefixes under which most names agree, how many do, and the prefixes."""
    best = (dict(base), dict(tuned), len(base.keys() & tuned.keys()), ("", ""))
    for p, q in itertools.product(_prefixes(base), _prefixes(tuned)):
        one, other = _strip(base, p), _strip(tuned, q)
        if one is not None and other is not None and (score := len(one.keys() & other.keys())) > best[2]:
            best = (one, other, score, (p, q))
    return best


def _rewritten(names: Mapping[str, str], scheme: str) -> dict[str, str]:
    """The names that transformers gives on loading; as they are where two would become equal."""
    found = {}
    for name, stored in names.items():
        for pattern, replacement in IN_MEMORY[scheme]:
            name = re.sub(pattern, replacement, name)
        found[name] = stored
    return found if len(found) == len(names) else dict(names)


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
