"""What a run is: a frozen value, and its JSON.

A spec holds everything that decides the numbers of a run and nothing else: no paths of this machine, no device. The
same spec is the same run wherever it is made, so its hash is the run's name on disk.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rankrise.data import DataConfig
from rankrise.experiments._codec import choices, decode, encode
from rankrise.models import GPTConfig, ModelConfig, ToyHeadConfig, ViTConfig
from rankrise.training import TrainingConfig

SCHEMA_VERSION = 1

_MODELS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "gpt": GPTConfig, "toy_head": ToyHeadConfig}
_DATA = {"data": DataConfig}
_TRAINING = {"training": TrainingConfig}
_SEED = ("seed",)  # of a part of a spec: it is the spec's


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


Spec: TypeAlias = TrainingSpec  # other kinds of specs join here and in the two tables below


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
    if kind != "training":
        raise ValueError(f"A spec must be of a known kind; got {kind!r:.60}. {choices(kind, ['training'])}")
    fields = ("schema_version", "kind", "data", "model", "training", "seed")
    for name in top:
        if name not in fields:
            raise ValueError(f"A spec must have known fields only; got {name!r:.60}. {choices(name, fields)}")
    for name in ("data", "model", "training"):
        if name not in top:
            raise ValueError(f"A spec must have the field {name!r}; it is missing. Add it.")
    return TrainingSpec(
        data=_part(top["data"], _DATA, "data"),
        model=_part(top["model"], _MODELS, "model"),
        training=_part(top["training"], _TRAINING, "training"),
        seed=_seed(top.get("seed", 0)),
    )


def spec_hash(spec: Spec) -> str:
    """Twelve hex digits that name the spec: the start of SHA-256 over its canonical JSON.

    Canonical: keys sorted, no spaces, ASCII, floats by `repr`, and fields at their defaults left out, so that a field
    added to a later version leaves the names of earlier runs as they are.
    """
    record = _record(spec, keep_defaults=False)
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


def _record(spec: Spec, *, keep_defaults: bool) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "training",
        "data": {"kind": "data", **encode(spec.data, omit=_SEED, keep_defaults=keep_defaults)},
        "model": {"kind": _kind_of(spec.model), **encode(spec.model, keep_defaults=keep_defaults)},
        "training": {"kind": "training", **encode(spec.training, omit=_SEED, keep_defaults=keep_defaults)},
        "seed": spec.seed,
    }


def _kind_of(model: ModelConfig) -> str:
    return next(kind for kind, cls in _MODELS.items() if type(model) is cls)


def _part(record: object, kinds: Mapping[str, type[Any]], where: str) -> Any:
    fields = dict(_mapping(record, where))
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"{where}.kind must be a known kind; got {kind!r:.60}. {choices(kind, kinds)}")
    return decode(kinds[kind], fields, where=where, omit=() if where == "model" else _SEED)


def _mapping(record: object, where: str) -> Mapping[str, object]:
    if not isinstance(record, Mapping) or not all(isinstance(key, str) for key in record):
        raise ValueError(f"{where} must be a JSON object; got {type(record).__name__}. Compare with a spec.json.")
    return record


def _seed(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"seed must be a whole number; got {value!r:.60}. Change it.")
    return value
