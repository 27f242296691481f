"""Two checkpoints' names brought together: wrappers off, then the prefix that one of them has and the other has not.

A prefix is never stripped by guess: only one that most names of a checkpoint carry, only where more names agree without
it, and it is shown. Two checkpoints that then do not agree are not compared.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rankrise.checkpoints.files import show
from rankrise.heads import canonical_names

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
    "Mixtral": ((r"\bblock_sparse_moe\.(?=gate\b)", "mlp."),),
    "Granite-MoE": ((r"\brouter\.layer\b", "router"),),
    "GPT-NeoX": ((r"^embed_out\b", "lm_head"),),
    "LLaVA": (
        (r"^language_model\.lm_head\b", "lm_head"),
        (r"^language_model\.model\.", "model.language_model."),
        (r"^(vision_tower|multi_modal_projector)\b", r"model.\1"),
    ),
    "Qwen2-VL": ((r"^visual\b", "model.visual"), (r"^model\.(?!language_model\.|visual\.)", "model.language_model.")),
}

_OUTPUTS = ("lm_head.weight", "embed_out.weight", "predictions.decoder.weight", "output_projection.weight")
_INPUTS = ("wte.weight", "embed_tokens.weight", "word_embeddings.weight", "tok_embeddings.weight", "shared.weight")
VOCABULARY = (*_INPUTS, *_OUTPUTS, "embeddings.weight", "embedding.weight")


class Aligned(NamedTuple):
    """Map the common name of each tensor to its name in either checkpoint."""

    base: dict[str, str]
    tuned: dict[str, str]
    renamed: tuple[str, ...]  # what was done, in words
    problems: tuple[str, ...] = ()  # two ways to strip a prefix, neither better


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
    first, second, score, prefixes, problems = _best(plain["base"], plain["tuned"])
    if score < 0.9 * min(len(first), len(second)):
        for scheme, side in itertools.product(IN_MEMORY, ("base", "tuned")):
            other = {**plain, side: _rewritten(plain[side], scheme)}
            if other[side].keys() == plain[side].keys():
                continue
            found = _best(other["base"], other["tuned"])
            if found[2] > score:
                first, second, score, prefixes, problems = found
                schemes = [f"{side}: names of {scheme} on disk read as those in memory"]
    renamed += schemes
    for side, prefix in zip(("base", "tuned"), prefixes, strict=True):
        if prefix:
            count = sum(name.startswith(prefix) for name in plain[side])
            renamed.append(f"{side}: {prefix!r} stripped from {_names(count)}")
    return Aligned(first, second, tuple(renamed), problems)


def tied_input(output: str, names: Iterable[str]) -> str | None:
    """The embedding that an output layer may be tied to; None where `output` is none, or there is no embedding.

    >>> tied_input("lm_head.weight", ["transformer.wte.weight"]), tied_input("score.weight", ["wte.weight"])
    ('transformer.wte.weight', None)
    """
    return next((name for name in names if name.endswith(_INPUTS)), None) if output.endswith(_OUTPUTS) else None


def _best(
    base: Mapping[str, str], tuned: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], int, tuple[str, str], tuple[str, ...]]:
    """Both without the prefixes under which most names agree, how many do, the prefixes, and whether others do so."""
    first, second, most, prefixes = dict(base), dict(tuned), len(base.keys() & tuned.keys()), ("", "")
    problems: tuple[str, ...] = ()
    for p, q in itertools.product(_prefixes(base), _prefixes(tuned)):
        one, other = _strip(base, p), _strip(tuned, q)
        if one is None or other is None:
            continue
        score = len(one.keys() & other.keys())
        if score > most:
            first, second, most, prefixes, problems = one, other, score, (p, q), ()
        elif score == most and prefixes != ("", ""):  # names that agree as they are need no prefix stripped
            problems = problems or _other_pairs((first, second), (one, other))
    return first, second, most, prefixes, problems


def _other_pairs(best: tuple[dict[str, str], ...], also: tuple[dict[str, str], ...]) -> tuple[str, ...]:
    """What says that two ways of stripping prefixes bring different tensors together."""
    first, second = ({(base[n], tuned[n]) for n in base if n in tuned} for base, tuned in (best, also))
    if first == second:
        return ()
    pairs = [" and ".join(repr(show(name)) for name in min(found)) for found in (first - second, second - first)]
    return (
        f"Names must tell which tensors belong together; these may be {pairs[0]}, or {pairs[1]}. Rename the tensors, "
        "or compare the part that was trained alone.",
    )


def _rewritten(names: Mapping[str, str], scheme: str) -> dict[str, str]:
    """The names that transformers gives on loading; as they are where two would become equal."""
    found = {}
    for name, stored in names.items():
        for pattern, replacement in IN_MEMORY[scheme]:
            name = re.sub(pattern, replacement, name)
        found[name] = stored
    return found if len(found) == len(names) else dict(names)


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
    """Map names without wrappers to the names in the file."""
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
