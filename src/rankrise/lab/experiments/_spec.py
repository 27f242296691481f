"""What a run is: a frozen value, and its JSON.

A spec holds everything that decides the numbers of a run and nothing else: no paths of this machine, no device. The
same spec is the same run wherever it is made, so its hash is the run's name on disk.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._codec import choices, decode, encode
from rankrise.lab.experiments._prediction_spec import PredictionSpec
from rankrise.lab.experiments._theory_specs import (
    DescentSpec,
    FlowSpec,
    MatrixFlowSpec,
    RobustnessSpec,
    StagesSpec,
    TheorySpec,
    ToyTask,
)
from rankrise.lab.models import GPTConfig, ModelConfig, ToyHeadConfig, ViTConfig
from rankrise.lab.training import TrainingConfig

SCHEMA_VERSION = 1

_MODELS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "gpt": GPTConfig, "toy_head": ToyHeadConfig}


@dataclass(frozen=True)
class TrainingSpec:
    """A network trained on a data set: everything its numbers depend on.

    The seed stands here and nowhere else; the initial weights, the order of the data and whatever the data set draws
    follow from it.

    Args:
        data: What it learns from.
        model: The network.
        training: How it is trained and tracked.
        seed: Of everything random.

    Raises:
        ValueError: `data` or `training` brings a seed of its own.

    >>> from dataclasses import replace
    >>> spec = TrainingSpec(DataConfig("digits"), ViTConfig(image_size=8, patch_size=2), TrainingConfig(epochs=3))
    >>> spec_hash(spec) == spec_hash(replace(spec, seed=1))
    False
    """

    data: DataConfig
    model: ModelConfig
    training: TrainingConfig
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` must be a whole number from 0 to 2^63 - 1; got {self.seed!r}. Pass another one.")
        for name, part in (("data", self.data), ("training", self.training)):
            if getattr(part, "seed", 0) != 0:
                raise ValueError(
                    f"`{name}.seed` must be left at 0 in a spec; got {part.seed!r}. Set the spec's own `seed`."
                )


Spec: TypeAlias = TrainingSpec | PredictionSpec | TheorySpec

_KINDS: dict[str, type[Spec]] = {  # another kind of spec joins here, and in `_kinds`
    "training": TrainingSpec,
    "prediction": PredictionSpec,
    "flow": FlowSpec,
    "stages": StagesSpec,
    "matrix_flow": MatrixFlowSpec,
    "robustness": RobustnessSpec,
    "descent": DescentSpec,
}
_PARTS: dict[str, Mapping[str, type[Any]]] = {  # fields that hold configs, and the kinds of these
    "data": {"data": DataConfig},
    "model": _MODELS,
    "training": {"training": TrainingConfig},
    "task": {"toy": ToyTask},
}


def to_json(spec: Spec) -> dict[str, Any]:
    """The spec in full, as JSON values: what `spec.json` of a run holds.

    >>> spec = TrainingSpec(DataConfig("digits"), ToyHeadConfig(dim=4), TrainingConfig(epochs=3), seed=5)
    >>> record = to_json(spec)
    >>> record["kind"], record["model"]["kind"], record["seed"]
    ('training', 'toy_head', 5)
    >>> from_json(record) == spec
    True
    """
    return _record(spec, keep_defaults=True)


def from_json(record: object) -> Spec:
    """Read a spec; fields that are not given keep their defaults.

    Raises:
        ValueError: An unknown version, kind or field, a missing field, a value of the wrong type: names it.
    """
    top = _mapping(record, "A spec")
    version = top.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"A spec must have schema_version {SCHEMA_VERSION}, the one this rankrise reads; got {version!r:.60}. "
            "Use the rankrise that wrote it."
        )
    kind = top.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"A spec must be of a known kind; got {kind!r:.60}. {choices(kind, _KINDS)}")
    fields = {name: value for name, value in top.items() if name not in ("schema_version", "kind")}
    read = {name: partial(_part, kinds=kinds, where=name) for name, kinds in _PARTS.items()}
    return decode(_KINDS[kind], fields, where="A spec", read=read)


def spec_hash(spec: Spec) -> str:
    """Twelve hex digits that name the spec: the start of SHA-256 over its canonical JSON.

    Canonical: keys sorted, no spaces, ASCII, floats by `repr`, and fields at their defaults left out, so that a field
    added to a later version leaves the names of earlier runs as they are.
    """
    record = _record(spec, keep_defaults=False)
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


def _record(spec: Spec, *, keep_defaults: bool) -> dict[str, Any]:
    parts = {
        name: {"kind": _kind_of(part, _PARTS[name]), **encode(part, omit=_omitted(name), keep_defaults=keep_defaults)}
        for name in _PARTS
        if (part := getattr(spec, name, None)) is not None
    }
    rest = encode(spec, omit=(*parts, "seed"), keep_defaults=keep_defaults)
    head = {"schema_version": SCHEMA_VERSION, "kind": _kind_of(spec, _KINDS)}
    return {**head, **parts, **rest, "seed": spec.seed}


def _kind_of(config: object, kinds: Mapping[str, type[Any]]) -> str:
    return next(kind for kind, cls in kinds.items() if type(config) is cls)


def _part(record: object, kinds: Mapping[str, type[Any]], where: str) -> Any:
    fields = dict(_mapping(record, where))
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{where}.kind must be a known kind; got {kind!r:.60}. {choices(kind, kinds)}")
    return decode(kinds[kind], fields, where=where, omit=_omitted(where))


def _omitted(part: str) -> tuple[str, ...]:
    """Fields of a part that a spec does not hold: the seed is the spec's."""
    return ("seed",) if part in ("data", "training") else ()


def _mapping(record: object, where: str) -> Mapping[str, object]:
    if not isinstance(record, Mapping) or not all(isinstance(key, str) for key in record):
        raise ValueError(f"{where} must be a JSON object; got {type(record).__name__}. Compare with a spec.json.")
    return record
