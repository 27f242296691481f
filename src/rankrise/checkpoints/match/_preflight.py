"""What of two checkpoints can be compared, found from names and shapes alone, before any value is read.

The tuned side is a whole model or an adapter; an adapter is matched with its base, with another adapter, or alone. A
difference that leaves the rest of the answer right is listed; a difference that makes the answer wrong is a problem,
and `diff` stops.
"""

import math
from collections.abc import Iterable, Mapping

from rankrise.checkpoints.files import Checkpoint, LowRankDelta, is_buffer, show
from rankrise.checkpoints.match._alignment import Aligned, align, block_of, tied_input
from rankrise.checkpoints.match._modules import find_modules
from rankrise.checkpoints.match._pairs import Pair, Preflight, common_shape, compare_configs, some


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
        problem = (
            f"The base must come first: {show(base.path)} is an adapter and {show(tuned.path)} is a whole model. "
            "Swap the two."
        )
        return Preflight(pairs=(), problems=(problem,))
    if tuned.is_adapter:
        return match_adapter(base, tuned)
    assert base is not None
    return _match_models(base, tuned)


def _match_models(base: Checkpoint, tuned: Checkpoint) -> Preflight:
    aligned = align(weights_of(base), weights_of(tuned))
    pairs: list[Pair] = []
    reshaped: list[str] = []
    problems = list(aligned.problems)
    non_float: list[str] = []
    for name in (name for name in aligned.base if name in aligned.tuned):
        one, other = base.tensors[aligned.base[name]], tuned.tensors[aligned.tuned[name]]
        shape = common_shape(name, one.shape, other.shape)
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
    only = [name for one, other in (aligned[:2], aligned[1::-1]) for name in one if name not in other]
    buffers = [name for name in only if is_buffer(name)]
    tied_pairs, tied = _tied(base, tuned, aligned)
    left_out = {*buffers, *tied}
    missing, extra = ([n for n in only if n in names and n not in left_out] for names in (aligned.base, aligned.tuned))
    pairs += tied_pairs
    found, notes = compare_configs(base.config, tuned.config)
    problems += [*_architecture(base, tuned, aligned, pairs, missing, extra), *found]
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
        notes=(*base.notes, *tuned.notes, *notes),
        problems=tuple(problems),
    )


def _is_comparable(checkpoint: Checkpoint, name: str) -> bool:
    return checkpoint.tensors[name].dtype.is_floating_point or name in checkpoint.scales


def _tied(base: Checkpoint, tuned: Checkpoint, aligned: Aligned) -> tuple[list[Pair], list[str]]:
    """Output layers that one checkpoint stores and the other has tied to its embedding."""
    pairs, tied = [], []
    for name in dict.fromkeys((*aligned.base, *aligned.tuned)):
        if (name in aligned.base) == (name in aligned.tuned):
            continue
        has_it, has_not, names = (base, tuned, aligned.tuned) if name in aligned.base else (tuned, base, aligned.base)
        embedding = tied_input(name, names)
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
    base: Checkpoint, tuned: Checkpoint, aligned: Aligned, pairs: list[Pair], missing: list[str], extra: list[str]
) -> list[str]:
    """Return the problems that show that these are not two states of one model."""
    against = f"the base ({_kind(base)}) is in the tuned ({_kind(tuned)})"
    if not pairs:
        return [
            f"Both must be one architecture: no tensor of {against}, such as {some([show(n) for n in missing], 1)} "
            f"against {some([show(n) for n in extra], 1)}."
        ]
    problems = []
    for label, names, where, stored in (("base", missing, base, aligned.base), ("tuned", extra, tuned, aligned.tuned)):
        blocks = [name for name in names if block_of(name) is not None]
        if blocks:
            problems.append(
                f"Both must be one architecture: {len(blocks)} tensors of layers are only in the {label}, such as "
                f"{some([show(n) for n in blocks], 2)}; the base is {_kind(base)}, the tuned {_kind(tuned)}."
            )
        only = sum(where.tensors[stored[name]].num_elements for name in names)
        total = sum(info.num_elements for info in where.tensors.values())
        if 2 * only > total:
            problems.append(
                f"Both must be one architecture: {only / total:.0%} of the {label}'s parameters have no partner; the "
                f"base is {_kind(base)}, the tuned {_kind(tuned)}."
            )
    return problems


def _kind(checkpoint: Checkpoint) -> str:
    """What a checkpoint is and where: `gpt2, 12 layers, in base/`."""
    numbers = {block for block in map(block_of, checkpoint.tensors) if block is not None}
    model_type = show((checkpoint.config or {}).get("model_type") or "unknown architecture", 40)
    layers = f", {len(numbers)} layer{'s' if len(numbers) > 1 else ''}" if numbers else ""
    return f"{model_type}{layers}, in {show(checkpoint.path)}"


def match_adapter(base: Checkpoint | None, tuned: Checkpoint) -> Preflight:
    """Match what an adapter adds: to a base, less what another adapter adds, or alone."""
    if base is None or base.is_adapter:
        return _between_adapters(base, tuned)
    return _on_base(base, tuned)


def weights_of(checkpoint: Checkpoint) -> list[str]:
    """Return the names of all tensors except scales."""
    scales = {scale.name for scale in checkpoint.scales.values()}
    return [name for name in checkpoint.tensors if name not in scales]


def _on_base(base: Checkpoint, tuned: Checkpoint) -> Preflight:
    changed = _with_dots(base, tuned.deltas) if tuned.kind == "kohya" else _without_peft(tuned.deltas)
    whole = _without_peft(_whole_tensors(tuned))  # `modules_to_save`, biases, and embeddings that PEFT saves by itself
    copies = {changed[name]: whole.pop(name) for name in list(whole) if name in changed}
    aligned = _align({name: name for name in weights_of(base)}, {**whole, **changed})
    pairs: list[Pair] = []
    extra: list[str] = []
    reshaped: list[str] = []
    problems = list(aligned.problems)
    tied = _tied_to_embedding(base, aligned)
    targets = {
        stored: aligned.base[tied.get(name, name)]
        for name, stored in aligned.tuned.items()
        if tied.get(name, name) in aligned.base
    }
    deltas = dict(tuned.deltas) | _as_stored(
        base, {t: tuned.deltas[s] for s, t in targets.items() if s in tuned.deltas}
    )
    for name, stored in aligned.tuned.items():
        target = targets.get(stored)
        delta = deltas.get(stored)
        if target is None and delta is None:
            extra.append(name)
            continue
        if target is None:
            problems.append(f"The base must have what the adapter changes; it has no {show(name)!r}.")
            continue
        info = base.tensors[target]
        flat = _flat(info.shape)
        got = tuned.tensors[stored].shape if delta is None else delta.shape
        shape = common_shape(name, info.shape, got) if delta is None else got if got == flat else None
        if shape is None:
            problems.append(f"Shapes must agree: {show(name)!r} is {info.shape} in the base and {got} in the adapter.")
        elif delta is not None:
            pairs.append(Pair(name, target, None, delta.shape, delta=delta, copy=copies.get(stored)))
        else:
            pairs.append(Pair(name, target, stored, shape))
            if got != info.shape:
                reshaped.append(f"{show(name)} {info.shape} and {got}")
    untouched = len(aligned.base) - len({pair.base_name for pair in pairs})
    note = f"{untouched} tensors of the base are not touched by the adapter"
    return Preflight(
        pairs=tuple(pairs),
        renamed=aligned.renamed,
        extra=tuple(map(show, extra)),
        reshaped=tuple(reshaped),
        tied=tuple(map(show, tied)),
        notes=(*tuned.notes, *((note,) if untouched else ())),
        base_names=aligned.base,
        problems=_or_empty(tuned, pairs, problems),
    )


def _tied_to_embedding(base: Checkpoint, aligned: Aligned) -> dict[str, str]:
    """Map an output layer that an adapter changes, and that the base ties to its embedding, to that embedding."""
    if (base.config or {}).get("tie_word_embeddings") is False:
        return {}
    found = {name: tied_input(name, aligned.base) for name in aligned.tuned if name not in aligned.base}
    return {name: embedding for name, embedding in found.items() if embedding is not None}


def _as_stored(base: Checkpoint, deltas: Mapping[str, LowRankDelta]) -> dict[str, LowRankDelta]:
    """By their names in the adapter, the changes turned the way that the base stores each weight, as PEFT does.

    `fan_in_fan_out` is one flag for all, and PEFT corrects it for every module by its type, Linear (out, in) or Conv1D
    (in, out). The shape tells which; a square one is what the base's names, biases and config tell, and the flag counts
    where it is right for all the others.
    """
    modules = find_modules(base)
    linear = {name: delta for name, delta in deltas.items() if delta.is_linear}
    turned = {
        name
        for name, delta in linear.items()
        if _flat(base.tensors[name].shape) == delta.shape[::-1] != delta.shape
        and (delta.transposed or modules[name].is_transposed)
    }
    square = {
        name
        for name, delta in linear.items()
        if delta.shape[0] == delta.shape[1]
        and delta.transposed != (modules[name].is_transposed or (delta.transposed and not turned))
    }
    return {deltas[name].weight: deltas[name].turned() for name in turned | square}


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    rows = shape[0] if shape else 1
    return rows, math.prod(shape) // max(1, rows)


def _between_adapters(base: Checkpoint | None, tuned: Checkpoint) -> Preflight:
    before = {} if base is None else base.deltas
    aligned = _align(_without_peft(before), _without_peft(tuned.deltas))
    pairs: list[Pair] = []
    problems = list(aligned.problems)
    for name in dict.fromkeys((*aligned.base, *aligned.tuned)):
        now = tuned.deltas.get(aligned.tuned.get(name, ""))
        then = before.get(aligned.base.get(name, ""))
        delta = now or then
        assert delta is not None
        if now is not None and then is not None and now.shape != then.shape:
            problems.append(
                f"Shapes must agree: {show(name)!r} is {then.shape} in one adapter and {now.shape} in the other."
            )
        else:
            pairs.append(Pair(name, None, None, delta.shape, delta=now, base_delta=then))
    if base is not None and not aligned.base.keys() & aligned.tuned.keys():
        problems.append(
            f"Both must be adapters of one model: {show(base.path)} and {show(tuned.path)} change no weight in common."
        )
    only_before = [name for name in aligned.base if name not in aligned.tuned]
    only_now = [name for name in aligned.tuned if name not in aligned.base] if base is not None else []
    return Preflight(
        pairs=tuple(pairs),
        renamed=aligned.renamed,
        missing=tuple(map(show, only_before)),
        extra=tuple(map(show, (*only_now, *_whole_tensors(tuned)))),
        same_file=base is not None and base.identities == tuned.identities,
        notes=tuple(dict.fromkeys((*(base.notes if base else ()), *tuned.notes))),
        problems=_or_empty(tuned, pairs, problems),
    )


def _or_empty(tuned: Checkpoint, pairs: list[Pair], problems: list[str]) -> tuple[str, ...]:
    if not pairs and not problems:
        return (f"An adapter must change weights; {show(tuned.path)} has no LoRA pairs.",)
    return tuple(problems)


def _without_peft(names: Iterable[str]) -> dict[str, str]:
    return {name.removeprefix("base_model.model.").replace(".base_layer.", "."): name for name in names}


def _with_dots(base: Checkpoint, names: Iterable[str]) -> dict[str, str]:
    """Names of kohya, in which every dot is `_`, as the base writes them; `lora_unet_` and the like are left out."""
    flat = {name.removesuffix(".weight").replace(".", "_"): name for name in weights_of(base)}
    found = {}
    for name in names:
        words = name.removesuffix(".weight").split("_")
        rest = ("_".join(words[n:]) for n in range(min(4, len(words))))
        found[next((flat[part] for part in rest if part in flat), name)] = name
    return found


def _align(base: Mapping[str, str], tuned: Mapping[str, str]) -> Aligned:
    """Do what `align` does for names that were stripped before: map common names to those in the files."""
    found = align(base, tuned)
    return found._replace(
        base={name: base[plain] for name, plain in found.base.items()},
        tuned={name: tuned[plain] for name, plain in found.tuned.items()},
    )


def _whole_tensors(adapter: Checkpoint) -> list[str]:
    """Whole tensors saved beside the LoRA pairs."""
    used = {name for delta in adapter.deltas.values() for name in (delta.a, delta.b, delta.alpha)}
    return [name for name in adapter.tensors if name not in used]
