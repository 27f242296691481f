"""What A and B of an adapter do not carry.

Some modules are written whole beside the adapter on request (PEFT's `modules_to_save`). The rest is left out and
listed: changes of tensors that are not linear, and tensors or rows that only the tuned model has.
"""

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from rankrise.checkpoints.delta import Delta
from rankrise.checkpoints.files import Checkpoint, show
from rankrise.checkpoints.lora._work import Other
from rankrise.checkpoints.match import Module, Preflight, find_modules

_NOT_WHOLE = {"linear", "conv1d", "expert", "experts", "experts, transposed"}  # what "all" leaves to A and B, or out
_NEVER = ("a name PEFT cannot match", "a parameter without a module")


@dataclass(frozen=True)
class NotCarried:
    """A change that LoRA does not carry, and the module whose saving would."""

    name: str  # name of the tensor
    kind: str  # "embedding", "norm", "bias", …; "only in the tuned", "new rows": there is no change to measure
    relative_size: float  # ‖Δ‖_F / ‖W‖_F; NaN where there is none
    share: float  # share of the squared norm of the whole change; NaN if nothing changed
    num_parameters: int
    module: str  # for `save`; empty where no module holds it


def find_saved(
    wanted: Sequence[str], preflight: Preflight, base: Checkpoint, tuned: Checkpoint, modules: Mapping[str, Module]
) -> dict[str, tuple[str, str]]:
    """Map each tensor's name in memory to the module to save and the tensor in the tuned file.

    Args:
        wanted: Names of modules, the ends of names, or "all" for those that are not linear and have changed.
        preflight: The preflight of base and tuned.
        base: The base, which tells what has changed.
        tuned: Where the tensors are.
        modules: The modules of the base.

    Raises:
        ValueError: No such module; one that has other rows than in the base, or that PEFT would confuse with another.
    """
    places: dict[str, str] = {}  # tensor in memory → in the tuned file
    kinds: dict[str, set[str]] = {}  # module → kinds of its tensors
    for pair in preflight.pairs:
        assert pair.base_name is not None
        assert pair.tuned_name is not None
        module = modules[pair.base_name]
        places[module.in_memory] = pair.tuned_name
        is_resized = pair.is_resized(base.tensors, tuned.tensors)
        kinds.setdefault(module.name, set()).add("resized" if is_resized else module.kind)
    matched = {pair.tuned_name for pair in preflight.pairs}
    for tensor, module in find_modules(tuned).items():
        if tensor not in matched and module.name:  # a head that only the tuned model has
            places.setdefault(module.in_memory, tensor)
            kinds.setdefault(module.name, set()).add(module.kind)
    same: set[str] = set()
    if "all" in wanted:
        new = {module.name for tensor, module in find_modules(tuned).items() if tensor not in matched}
        same = _same(preflight, base, tuned, modules) - new
    chosen = _chosen(wanted, kinds, same)
    for name in chosen:
        _check_no_expert(name, kinds)
        _check_unambiguous(name, kinds)
        _check_size(name, kinds)
    saved = {
        tensor: (name, place) for tensor, place in places.items() for name in chosen if tensor.startswith(f"{name}.")
    }
    return saved | _tied_output(saved, tuned)


def _tied_output(saved: Mapping[str, tuple[str, str]], tuned: Checkpoint) -> dict[str, tuple[str, str]]:
    """The output layer of a language model whose embedding is saved: PEFT unties them, so it is saved as well."""
    config = tuned.config or {}
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    is_tied = config.get("tie_word_embeddings", True) and not any("lm_head" in tensor for tensor in tuned.tensors)
    if not (is_tied and name.endswith(("ForCausalLM", "LMHeadModel"))):
        return {}
    embedding = next((p for t, (_, p) in saved.items() if t.endswith(("wte.weight", "embed_tokens.weight"))), None)
    return {} if embedding is None else {"lm_head.weight": ("lm_head", embedding)}


def _same(preflight: Preflight, base: Checkpoint, tuned: Checkpoint, modules: Mapping[str, Module]) -> set[str]:
    """Modules that are not linear and have not changed."""
    changed: dict[str, bool] = {}
    for pair in preflight.pairs:
        module = modules[pair.base_name or ""]
        if not module.is_adaptable and not changed.get(module.name):
            changed[module.name] = Delta(base, tuned, pair).squared_norm() != 0
    return {name for name, has_changed in changed.items() if not has_changed}


def _chosen(wanted: Sequence[str], kinds: Mapping[str, set[str]], same: Container[str]) -> list[str]:
    chosen: dict[str, None] = {}
    possible = [name for name in kinds if name and not kinds[name] & set(_NEVER)]
    above = {parent for name in kinds if kinds[name] & _NOT_WHOLE for parent in _parents(name)}  # would save these too
    for word in wanted:
        if word == "all":
            others = (name for name in possible if not kinds[name] & {"resized", *_NOT_WHOLE} and name not in above)
            chosen |= dict.fromkeys(name for name in others if name not in same)
            continue
        parents = {".".join(name.split(".")[:n]) for name in possible for n in range(1, name.count(".") + 2)}
        found = sorted(name for name in parents if name == word) or sorted(n for n in parents if n.endswith(f".{word}"))
        if not found:
            import difflib

            known = sorted({part for name in possible for part in (name, name.rpartition(".")[2])})
            close = difflib.get_close_matches(word, known, n=1)
            hint = f" Did you mean {show(close[0])!r}?" if close else ""
            raise ValueError(f"`save` must name modules of the model; it has no {show(word)!r}.{hint}")
        chosen |= dict.fromkeys(found)
    return [name for name in chosen if not any(parent in chosen for parent in _parents(name))]


def _parents(name: str) -> list[str]:
    """The modules that contain a module, by name."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _check_unambiguous(name: str, modules: Mapping[str, set[str]]) -> None:
    """PEFT saves every module whose name ends so, dot or no dot."""
    other = next((m for m in modules if m != name and m.endswith(name)), None)
    if other is not None:
        raise ValueError(
            f"`save` must name modules that PEFT can tell apart; {show(name)!r} also ends "
            f"{show(other)!r}. Leave it out."
        )


def _check_no_expert(name: str, kinds: Mapping[str, set[str]]) -> None:
    """PEFT finds no module of one expert: transformers fuses all experts of a layer into one tensor on loading."""
    expert = next((m for m in kinds if "expert" in kinds[m] and f"{m}.".startswith(f"{name}.")), None)
    if expert is not None:
        raise ValueError(
            f"`save` must name modules that the model has in memory; {show(expert)!r} is one of the experts that "
            "transformers keeps in one tensor, so PEFT would ignore it. Leave it out, or keep the tuned model."
        )


def _check_size(name: str, kinds: Mapping[str, set[str]]) -> None:
    """PEFT loads a whole module into the base's, so it must have the same rows."""
    resized = next((m for m in kinds if "resized" in kinds[m] and f"{m}.".startswith(f"{name}.")), None)
    if resized is not None:
        raise ValueError(
            f"`save` must name modules of the base's size; {show(resized)!r} has another number of rows in the tuned "
            "model. Leave it out, or give the base as many rows (resize_token_embeddings) and save that as the base."
        )


def find_left_out(
    others: Sequence[Other], total: float, preflight: Preflight, tuned: Checkpoint, written: Collection[str]
) -> tuple[NotCarried, ...]:
    """List everything that is not carried: first what has no measure, then the rest from the largest share down.

    Args:
        others: Tensors whose change is not in A and B.
        total: ‖Δ‖_F² of everything.
        preflight: The preflight of base and tuned.
        tuned: The tuned model.
        written: Tensors of the tuned model that are written whole.
    """
    measured = [
        NotCarried(
            item.pair.name,
            item.module.kind,
            math.sqrt(item.squared) / item.base_norm if item.base_norm else math.nan,
            item.squared / total,
            math.prod(item.pair.shape),
            item.module.name if item.module.kind not in ("resized", "a name PEFT cannot match") else "",
        )
        for item in others
        if not item.is_saved
    ]
    only = [*_new_tensors(preflight, tuned, written), *_new_rows(preflight, tuned)]
    return (*only, *sorted(measured, key=lambda item: -item.share))


def _new_tensors(preflight: Preflight, tuned: Checkpoint, written: Collection[str]) -> list[NotCarried]:
    extra, matched = set(preflight.extra), {pair.tuned_name for pair in preflight.pairs}
    modules = find_modules(tuned) if extra else {}
    found = []
    for tensor, module in modules.items():
        parts = show(tensor).split(".")
        is_extra = any(".".join(parts[n:]) in extra for n in range(len(parts)))  # a prefix may have been stripped
        if is_extra and tensor not in matched and tensor not in written:
            size = tuned.tensors[tensor].num_elements
            found.append(NotCarried(tensor, "only in the tuned", math.nan, math.nan, size, module.name))
    return found


def _new_rows(preflight: Preflight, tuned: Checkpoint) -> list[NotCarried]:
    found = []
    for pair in preflight.pairs:
        assert pair.tuned_name is not None
        more = tuned.tensors[pair.tuned_name].num_elements - math.prod(pair.shape)
        if more > 0:
            found.append(NotCarried(pair.name, "new rows", math.nan, math.nan, more, ""))
    return found
