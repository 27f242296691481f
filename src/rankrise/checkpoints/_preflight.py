"""What of two checkpoints can be compared, found from names and shapes alone, before any value is read.

A difference that leaves the rest of the answer right is listed; one that makes it wrong is a problem, and `diff` stops.
"""

from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._configs import compare_configs
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._names import Aligned, align, block_of, is_buffer, tied_input
from rankrise.checkpoints._pairs import Pair as Pair
from rankrise.checkpoints._pairs import Preflight as Preflight
from rankrise.checkpoints._pairs import common_shape, some
from rankrise.checkpoints._preflight_adapters import match_adapter, weights_of


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
    """What says that these are not two states of one model."""
    if not pairs:
        types = " and ".join(show((c.config or {}).get("model_type", "unknown")) for c in (base, tuned))
        return [
            f"Both must be one architecture: no tensor of {show(base.path)} is in {show(tuned.path)} ({types}), "
            f"such as {some([show(n) for n in missing], 1)} against {some([show(n) for n in extra], 1)}."
        ]
    problems = []
    for label, names, where, stored in (("base", missing, base, aligned.base), ("tuned", extra, tuned, aligned.tuned)):
        blocks = [name for name in names if block_of(name) is not None]
        if blocks:
            problems.append(
                f"Both must be one architecture: {len(blocks)} tensors of layers are only in the {label}, such as "
                f"{some([show(n) for n in blocks], 2)}."
            )
        only = sum(where.tensors[stored[name]].num_elements for name in names)
        total = sum(info.num_elements for info in where.tensors.values())
        if 2 * only > total:
            problems.append(
                f"Both must be one architecture: {only / total:.0%} of the {label}'s parameters have no partner."
            )
    return problems
