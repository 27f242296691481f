"""What of two checkpoints can be compared, found from names and shapes alone, before any value is read.

A difference that leaves the rest of the answer right is listed; one that makes it wrong is a problem, and `diff` stops.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankrise.checkpoints._adapters import LowRankDelta
from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._names import Aligned, align, block_of, is_buffer
from rankrise.checkpoints._safetensors import TensorInfo

_OUTPUTS = ("lm_head.weight", "embed_out.weight", "predictions.decoder.weight", "output_projection.weight")
_INPUTS = ("wte.weight", "embed_tokens.weight", "word_embeddings.weight", "tok_embeddings.weight", "shared.weight")
_LISTS = ("missing", "extra", "reshaped", "tied", "non_float", "buffers")
_COUNTS = ("num_attention_heads", "num_key_value_heads", "n_head", "head_dim", "num_experts", "num_local_experts")


@dataclass(frozen=True)
class Pair:
    """One weight in both checkpoints: two tensors, or what adapters add to a weight that the base has or has not."""

    name: str  # common to both
    base_name: str | None  # in the base's file; None where the base is an adapter
    tuned_name: str | None  # in the tuned file; None where `delta` is the change
    shape: tuple[int, ...]  # that is compared: the first rows, where one of them has more
    delta: LowRankDelta | None = None  # what the tuned adapter adds
    base_delta: LowRankDelta | None = None  # what the base, an adapter too, adds


@dataclass(frozen=True)
class Preflight:
    """What can be compared, and what cannot; every list holds common names or sentences."""

    pairs: tuple[Pair, ...]
    renamed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # in the base only
    extra: tuple[str, ...] = ()  # in the tuned only
    reshaped: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    non_float: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()  # masks and tables that only one of them saves
    same_file: bool = False
    notes: tuple[str, ...] = ()
    base_names: Mapping[str, str] = field(default_factory=dict, repr=False)  # of an adapter's base, by common name
    problems: tuple[str, ...] = ()  # errors that make the answer wrong

    def check(self) -> None:
        """Refuse what would give a wrong answer.

        Raises:
            ValueError: There is a problem; says the first.
        """
        if self.problems:
            more = f" ({len(self.problems) - 1} more: --dry-run lists them)" if len(self.problems) > 1 else ""
            raise ValueError(f"{self.problems[0]}{more}")

    def to_json(self) -> dict[str, Any]:
        """The lists as plain values."""
        return {
            "matched": len(self.pairs),
            **{name: list(getattr(self, name)) for name in (*_LISTS, "renamed", "notes", "problems")},
            "same_file": self.same_file,
        }

    def text(self) -> str:
        """The lists as a person reads them, problems last."""
        lines = [f"matched    {len(self.pairs)} tensors, {_millions(self.pairs)} parameters"]
        lines += [f"renamed    {line}" for line in self.renamed]
        for label in _LISTS:
            names: tuple[str, ...] = getattr(self, label)
            if names:
                lines.append(f"{label.replace('_', '-'):<10} {len(names)}: {_some(names)}")
        if self.same_file:
            lines.append("identical  both are the same file")
        lines += [f"note       {line}" for line in self.notes]
        lines += [f"problem    {line}" for line in self.problems]
        return "\n".join(lines)


def match_checkpoints(base: Checkpoint | None, tuned: Checkpoint) -> Preflight:
    """Bring two checkpoints together by name and shape; no value is read.

    Wrappers and prefixes that only one of them has are stripped and shown. A tied output layer, stored by one
    checkpoint only, is compared with the embedding it is tied to. Embeddings of different length are compared in the
    rows that both have.

    Args:
        base: What training started from; None for an adapter, whose change needs no base.
        tuned: What it ended with, or an adapter of the base.

    Returns:
        The pairs and lists; `check()` refuses what would give a wrong answer.

    Raises:
        ValueError: No base for a checkpoint that is no adapter.
    """
    if base is None and not tuned.is_adapter:
        raise ValueError(
            f"A base is needed to see what {show(tuned.path)} learned; only an adapter has its change in it."
        )
    if base is not None and base.is_adapter and not tuned.is_adapter:
        problem = f"The base must come first: {show(base.path)} is an adapter and {show(tuned.path)} is a whole model."
        return Preflight(pairs=(), problems=(problem,))
    if tuned.is_adapter:
        return _match_adapter(base, tuned)
    assert base is not None
    return _match_models(base, tuned)


def _match_models(base: Checkpoint, tuned: Checkpoint) -> Preflight:
    aligned = align(_weights(base), _weights(tuned))
    pairs: list[Pair] = []
    reshaped: list[str] = []
    problems: list[str] = []
    non_float: list[str] = []
    for name in (name for name in aligned.base if name in aligned.tuned):
        one, other = base.tensors[aligned.base[name]], tuned.tensors[aligned.tuned[name]]
        shape = _common_shape(name, one, other)
        if not (_is_comparable(base, aligned.base[name]) and _is_comparable(tuned, aligned.tuned[name])):
            non_float.append(name)
            continue
        if shape is None or shape != one.shape or shape != other.shape:
            reshaped.append(f"{show(name)} {one.shape} and {other.shape}")
        if shape is None:
            problems.append(
                f"Shapes must agree: {show(name)!r} is {one.shape} in the base and {other.shape} in the tuned."
            )
        else:
            pairs.append(Pair(name, aligned.base[name], aligned.tuned[name], shape))
    missing = [name for name in aligned.base if name not in aligned.tuned]
    extra = [name for name in aligned.tuned if name not in aligned.base]
    buffers = [name for name in (*missing, *extra) if is_buffer(name)]
    tied_pairs, tied = _tied(base, tuned, aligned)
    missing, extra = ([n for n in names if n not in buffers and n not in tied] for names in (missing, extra))
    pairs += tied_pairs
    problems += _architecture(base, tuned, pairs, missing, extra)
    return Preflight(
        pairs=tuple(pairs),
        renamed=aligned.renamed,
        missing=tuple(map(show, missing)),
        extra=tuple(map(show, extra)),
        reshaped=tuple(reshaped),
        tied=tuple(map(show, tied)),
        non_float=tuple(map(show, non_float)),
        buffers=tuple(map(show, buffers)),
        same_file=bool(base.identities) and base.identities == tuned.identities,
        notes=(*base.notes, *tuned.notes),
        problems=tuple(problems),
    )


def _match_adapter(base: Checkpoint | None, tuned: Checkpoint) -> Preflight:
    """What adapters add, to a base, against each other, or alone."""
    if base is None or base.is_adapter:
        before = {} if base is None else base.deltas
        aligned = _align(_without_peft(before), _without_peft(tuned.deltas))
        names = list(dict.fromkeys((*aligned.base, *aligned.tuned)))
        missing = [name for name in aligned.base if name not in aligned.tuned] if base is not None else []
        extra = [name for name in aligned.tuned if name not in aligned.base] if base is not None else []
        extra += _other_tensors(tuned)
        renamed, targets = aligned.renamed, dict[str, str]()
    else:
        aligned = _align({name: name for name in _weights(base)}, _without_peft(tuned.deltas))
        names = list(aligned.tuned)
        before, missing, extra = {}, [], _other_tensors(tuned)
        renamed, targets = aligned.renamed, aligned.base
    pairs, problems = [], []
    for name in names:
        after = tuned.deltas.get(aligned.tuned.get(name, ""))
        then = before.get(aligned.base.get(name, ""))
        target = targets.get(name)
        delta = after or then
        assert delta is not None
        if base is not None and not base.is_adapter and target is None:
            problems.append(f"The base must have what the adapter changes; it has no {show(name)!r}.")
            continue
        if then is not None and after is not None and then.shape != after.shape:
            problems.append(
                f"Shapes must agree: {show(name)!r} is {then.shape} in one adapter and {after.shape} in the other."
            )
            continue
        if target is not None and base is not None:
            shape = base.tensors[target].shape
            if (shape[0], base.tensors[target].num_elements // max(1, shape[0])) != delta.shape:
                problems.append(
                    f"Shapes must agree: {show(name)!r} is {shape} in the base and {delta.shape} in the adapter."
                )
                continue
        pairs.append(Pair(name, target, None, delta.shape, delta=after, base_delta=then))
    if not pairs and not problems:
        problems.append(f"An adapter must change weights; {show(tuned.path)} has no LoRA pairs.")
    untouched = len(targets) - len(pairs)
    notes = (f"{untouched} tensors of the base are not touched by the adapter",) if targets and untouched else ()
    return Preflight(
        pairs=tuple(pairs),
        renamed=renamed,
        missing=tuple(map(show, missing)),
        extra=tuple(map(show, extra)),
        same_file=base is not None and base.identities == tuned.identities,
        notes=notes,
        base_names=targets,
        problems=tuple(problems),
    )


def _weights(checkpoint: Checkpoint) -> list[str]:
    scales = {scale.name for scale in checkpoint.scales.values()}
    return [name for name in checkpoint.tensors if name not in scales]


def _without_peft(names: Iterable[str]) -> dict[str, str]:
    return {name.removeprefix("base_model.model."): name for name in names}


def _align(base: Mapping[str, str], tuned: Mapping[str, str]) -> Aligned:
    """As `align`, for names that have been stripped before: from common names to those in the files."""
    found = align(base, tuned)
    return found._replace(
        base={name: base[plain] for name, plain in found.base.items()},
        tuned={name: tuned[plain] for name, plain in found.tuned.items()},
    )


def _other_tensors(adapter: Checkpoint) -> list[str]:
    """Whole tensors saved beside the LoRA pairs (`modules_to_save`)."""
    used = {name for delta in adapter.deltas.values() for name in (delta.a, delta.b)}
    return [name for name in adapter.tensors if name not in used]


def _is_comparable(checkpoint: Checkpoint, name: str) -> bool:
    return checkpoint.tensors[name].dtype.is_floating_point or name in checkpoint.scales


def _common_shape(name: str, one: TensorInfo, other: TensorInfo) -> tuple[int, ...] | None:
    """The shape both have; of embeddings, which may be given more rows, the rows both have; else None."""
    if one.shape == other.shape:
        return one.shape
    is_vocabulary = name.endswith((*_INPUTS, *_OUTPUTS, "embeddings.weight", "embedding.weight"))
    if is_vocabulary and len(one.shape) == len(other.shape) == 2 and one.shape[1] == other.shape[1]:
        return min(one.shape[0], other.shape[0]), one.shape[1]
    return None


def _tied(base: Checkpoint, tuned: Checkpoint, aligned: Aligned) -> tuple[list[Pair], list[str]]:
    """Output layers that one checkpoint stores and the other has tied to its embedding."""
    pairs, tied = [], []
    for name in dict.fromkeys((*aligned.base, *aligned.tuned)):
        if not name.endswith(_OUTPUTS) or (name in aligned.base) == (name in aligned.tuned):
            continue
        has_it, has_not, names = (base, tuned, aligned.tuned) if name in aligned.base else (tuned, base, aligned.base)
        embedding = next((n for n in names if n.endswith(_INPUTS)), None)
        if embedding is None or (has_not.config or {}).get("tie_word_embeddings") is False:
            continue
        stored = has_it.tensors[(aligned.base if has_it is base else aligned.tuned)[name]]
        if stored.shape != has_not.tensors[names[embedding]].shape or not stored.dtype.is_floating_point:
            continue
        tied.append(name)
        pairs.append(Pair(name, aligned.base.get(name, aligned.base.get(embedding)),
                          aligned.tuned.get(name, aligned.tuned.get(embedding)), stored.shape))  # fmt: skip
    return pairs, tied


def _architecture(
    base: Checkpoint, tuned: Checkpoint, pairs: list[Pair], missing: list[str], extra: list[str]
) -> list[str]:
    """What says that these are not two states of one model."""
    one, other = base.config or {}, tuned.config or {}
    problems = [
        f"Both must be one architecture: {key} is {show(one[key])} in the base and {show(other[key])} in the tuned."
        for key in _COUNTS
        if key in one and key in other and one[key] != other[key]
    ]
    if not pairs:
        types = " and ".join(show(c.get("model_type", "unknown")) for c in (one, other))
        problems.append(
            f"Both must be one architecture: no tensor of {show(base.path)} is in {show(tuned.path)} ({types}), "
            f"such as {_some([show(n) for n in missing], 1)} against {_some([show(n) for n in extra], 1)}."
        )
        return problems
    for label, names, where in (("base", missing, base), ("tuned", extra, tuned)):
        blocks = [name for name in names if block_of(name) is not None]
        if blocks:
            problems.append(
                f"Both must be one architecture: {len(blocks)} tensors of layers are only in the {label}, such as "
                f"{_some([show(n) for n in blocks], 2)}."
            )
        only = sum(_size(where, name) for name in names)
        total = sum(info.num_elements for info in where.tensors.values())
        if 2 * only > total:
            problems.append(
                f"Both must be one architecture: {only / total:.0%} of the {label}'s parameters have no partner."
            )
    return problems


def _size(checkpoint: Checkpoint, name: str) -> int:
    return next((i.num_elements for n, i in checkpoint.tensors.items() if n == name or n.endswith(f".{name}")), 0)


def _some(names: Iterable[str], count: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:count]) + (" …" if len(names) > count else "") if names else "nothing"


def _millions(pairs: Iterable[Pair]) -> str:
    total = 0
    for pair in pairs:
        size = 1
        for length in pair.shape:
            size *= length
        total += size
    return f"{total:,}" if total < 1e6 else f"{total / 1e6:,.1f} M"
