"""What a pre-flight finds: pairs of weights, lists of what is left out or wrong, and how two configs differ."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankrise.checkpoints.files import LowRankDelta, TensorInfo, show
from rankrise.checkpoints.match._alignment import VOCABULARY

_LISTS = ("missing", "extra", "reshaped", "tied", "non_float", "buffers")


@dataclass(frozen=True)
class Pair:
    """One weight in both checkpoints: two tensors, or what adapters add to a weight that the base has or has not."""

    name: str  # common to both
    base_name: str | None  # name in the base's file; None where the base is an adapter
    tuned_name: str | None  # name in the tuned file; None where `delta` is the change
    shape: tuple[int, ...]  # the shape that is compared, which has the first rows only if one of the two has more
    delta: LowRankDelta | None = None  # what the tuned adapter adds
    base_delta: LowRankDelta | None = None  # what the base, an adapter too, adds
    copy: str | None = None  # the base's weight as the adapter's file has it as well, which must be the base's

    def is_resized(self, base: Mapping[str, TensorInfo], tuned: Mapping[str, TensorInfo]) -> bool:
        """Whether one of the two files has more rows than are compared."""
        stored = ((base, self.base_name), (tuned, self.tuned_name))
        return any(name is not None and tensors[name].shape != self.shape for tensors, name in stored)


@dataclass(frozen=True)
class Preflight:
    """What can be compared, and what cannot; every list holds common names or sentences."""

    pairs: tuple[Pair, ...]
    renamed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # names that only the base has
    extra: tuple[str, ...] = ()  # names that only the tuned checkpoint has
    reshaped: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    non_float: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()  # masks and tables that only one of them saves
    same_file: bool = False
    notes: tuple[str, ...] = ()
    base_names: Mapping[str, str] = field(default_factory=dict, repr=False)  # names in the base, by common name
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
        """How much matched, and then `lines`."""
        return "\n".join([f"matched    {len(self.pairs)} tensors, {_millions(self.pairs)} parameters", *self.lines()])

    def lines(self) -> list[str]:
        """What was renamed, what did not match, notes, and last the problems: a line for each."""
        lines = [f"renamed    {line}" for line in self.renamed]
        for label in _LISTS:
            names: tuple[str, ...] = getattr(self, label)
            if names:
                lines.append(f"{label.replace('_', '-'):<10} {len(names)}: {some(names)}")
        if self.same_file:
            lines.append("identical  both are the same file")
        lines += [f"note       {line}" for line in self.notes]
        return [*lines, *(f"problem    {line}" for line in self.problems)]


def common_shape(name: str, one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape both have; of embeddings, which may be given more rows, the rows both have; else None.

    >>> common_shape("lm_head.weight", (100, 64), (108, 64)), common_shape("mlp.up.weight", (100, 64), (108, 64))
    ((100, 64), None)
    """
    if one == other:
        return one
    if name.endswith(VOCABULARY) and len(one) == len(other) == 2 and one[1] == other[1]:
        return min(one[0], other[0]), one[1]
    return None


def some(names: Iterable[str], count: int = 4) -> str:
    """The first few of a list of names."""
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


_STRUCTURE = (
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "n_head",
    "head_dim",
    "num_experts",
    "num_local_experts",
)
_OFTEN_DIFFER = re.compile(  # with the version, the task and the storage, and not with what the weights mean
    r"_.*|.*version|.*token.*|.*dropout.*|.*pdrop|(torch_)?dtype|architectures|vocab_size|use_cache|auto_map|"
    r"id2label|label2id|num_labels|problem_type|task_specific_params|finetuning_task|quantization_config|"
    r"tie_word_embeddings|gradient_checkpointing|initializer_range|max_position_embeddings|return_dict|"
    r"output_(attentions|hidden_states)|torchscript|use_bfloat16|router_aux_loss_coef|model_type"
)


def compare_configs(base: Mapping[str, Any] | None, tuned: Mapping[str, Any] | None) -> tuple[list[str], list[str]]:
    """Problems and notes: another kind of model or number of heads; another activation, rotary base and the like.

    A model that also sees keeps its text model under `text_config`, which is compared with a text model alone.

    >>> compare_configs({"n_head": 4, "hidden_act": "silu"}, {"text_config": {"n_head": 4, "hidden_act": "gelu"}})
    ([], ['the configs differ: hidden_act is silu in the base and gelu in the tuned'])
    """
    one, other = base or {}, tuned or {}
    parts = [("", _text(one), _text(other))]
    for key in sorted(one.keys() & other.keys()):
        if key.endswith("_config") and key not in ("text_config", "quantization_config"):
            parts += [(f"{key}.", one[key], other[key])]
    if "text_config" in one and "text_config" in other:
        parts.append(("", {"model_type": one.get("model_type")}, {"model_type": other.get("model_type")}))
    problems, notes = [], []
    for prefix, first, second in parts:
        if not isinstance(first, Mapping) or not isinstance(second, Mapping):
            continue
        for key in (key for key in first if key in second and _differ(first[key], second[key])):
            said = f"{prefix}{show(key)} is {show(first[key], 40)} in the base and {show(second[key], 40)} in the tuned"
            if key in _STRUCTURE:
                problems.append(f"Both must be one architecture: {said}.")
            elif not _OFTEN_DIFFER.fullmatch(key) and not key.endswith("_config"):
                notes.append(said)
    return problems, [f"the configs differ: {some(notes)}"] if notes else []


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model, with what the config above it says, except for the kind of model."""
    text = config.get("text_config")
    return {**config, "model_type": None, **text} if isinstance(text, Mapping) else config


def _differ(one: object, other: object) -> bool:
    """Whether both say something and not the same; NaN is the same as NaN."""
    return one is not None and other is not None and one != other and repr(one) != repr(other)
