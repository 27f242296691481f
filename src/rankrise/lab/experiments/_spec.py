"""Specs as JSON and on disk, and experiments, which are names for specs.

The hash of a spec names its run; the folder of the run is `<out>/<name>/<hash>`.

A spec holds everything that decides the numbers of a run and nothing else. The same spec is the same run wherever it is
made, so its hash is the run's name on disk. Names and files may come from anyone, so both are checked strictly.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from rankrise.lab.experiments._codec import choices, decode, encode
from rankrise.lab.experiments.kinds import ConfigField, Spec, kind_named, kind_of
from rankrise.store import MOST_NUMBERS, UntrustedFolder, show

SCHEMA_VERSION = 1
Scale: TypeAlias = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MAX_BYTES = 1_000_000


def to_json(spec: Spec) -> dict[str, Any]:
    """The spec in full, as JSON values: what `spec.json` of a run holds.

    >>> from rankrise.lab.data import DataConfig
    >>> from rankrise.lab.experiments import TrainingSpec
    >>> from rankrise.lab.models import ToyHeadConfig
    >>> from rankrise.lab.training import TrainingConfig
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
        ValueError: The version, the kind or a field is unknown, or a field is missing or of the wrong type; the message
            names it.
    """
    top = _mapping(record, "A spec")
    version = top.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"A spec must have schema_version {SCHEMA_VERSION}, the one this rankrise reads; got {version!r:.60}. "
            "Use the rankrise that wrote it."
        )
    kind = kind_named(top.get("kind"))
    fields = {name: value for name, value in top.items() if name not in ("schema_version", "kind")}
    read = {name: partial(_decode_part, part=part, where=name) for name, part in kind.parts.items()}
    found: Spec = decode(kind.spec, fields, where="A spec", read=read)
    num_numbers = kind.num_numbers(found)
    if num_numbers > MOST_NUMBERS.value():
        raise ValueError(
            f"A spec must ask for at most {MOST_NUMBERS.value():.3g} numbers in memory; this one asks for "
            f"{num_numbers:.3g}. {MOST_NUMBERS.remedy}."
        )
    return found


def spec_hash(spec: Spec) -> str:
    """Twelve hex digits that name the spec: the start of SHA-256 over its canonical JSON.

    Canonical: keys sorted, no spaces, ASCII, floats by `repr`, and fields at their defaults left out, so that a field
    added to a later version leaves the names of earlier runs as they are.
    """
    record = _record(spec, keep_defaults=False)
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


def _record(spec: Spec, *, keep_defaults: bool) -> dict[str, Any]:
    kind = kind_of(spec)
    parts = {}
    for name, part in kind.parts.items():
        config = getattr(spec, name)
        head = {"kind": _name_of(config, part, name)}
        parts[name] = head | encode(config, omit=part.omit, keep_defaults=keep_defaults)
    rest = encode(spec, omit=(*parts, "seed"), keep_defaults=keep_defaults)
    return {"schema_version": SCHEMA_VERSION, "kind": kind.name, **parts, **rest, "seed": spec.seed}


def _name_of(config: object, part: ConfigField, where: str) -> str:
    """What `spec.json` calls the type of a config."""
    names = {cls: name for name, cls in part.kinds.items()}
    if type(config) not in names:
        known = ", ".join(cls.__name__ for cls in names)
        raise ValueError(
            f"`{where}` of a spec must be one of {known}; got a {type(config).__name__}. Pass one of those."
        )
    return names[type(config)]


def _decode_part(record: object, part: ConfigField, where: str) -> Any:
    fields = dict(_mapping(record, where))
    name = fields.pop("kind", None)
    if not isinstance(name, str) or name not in part.kinds:
        raise ValueError(f"{where}.kind must be a known kind; got {name!r:.60}. {choices(name, part.kinds)}")
    return decode(part.kinds[name], fields, where=where, omit=part.omit)


def _mapping(record: object, where: str) -> Mapping[str, object]:
    if not isinstance(record, Mapping) or not all(isinstance(key, str) for key in record):
        raise ValueError(f"{where} must be a JSON object; got {type(record).__name__}. Compare with a spec.json.")
    return record


class NamedSpec(NamedTuple):
    """A spec and what its runs are called."""

    name: str
    spec: Spec


def check_name(name: str) -> None:
    """Refuse a name that could be anything but one folder below `out`.

    >>> check_name("vit-cifar10-scale-0.1")
    >>> check_name("../elsewhere")
    Traceback (most recent call last):
    ValueError: A name must be 1 to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first; got '../elsewhere'. ...
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"A name must be 1 to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first; got {name!a:.80}. "
            f"Try {as_name(str(name))!r}."
        )


def as_name(text: str) -> str:
    """The nearest name that is allowed.

    >>> as_name("../My first ViT!")
    'my-first-vit'
    """
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:64] or "run"


@dataclass(frozen=True)
class Experiment:
    """One experiment at three scales: the same code with other values.

    Args:
        name: What `rankrise run` calls it; a folder below `out`.
        title: One line for `rankrise list`.
        shows: What to look at in its tables.
        smoke: Embedded or synthetic data, seconds on a CPU.
        small: Under an hour on a CPU.
        paper: The paper's recipe, on a GPU.
        family: The experiments that figures and claims compare with each other have one family: the flows of the toy at
            several α, or a network at several initial scales. Empty for an experiment of no family.
        variant_of: The experiment that this one changes in one respect; empty if there is none.

    Family and variant are fields of the experiment and not of its specs, so that they do not enter the hash of a run.
    """

    name: str
    title: str
    shows: str
    smoke: Spec
    small: Spec
    paper: Spec
    family: str = ""
    variant_of: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def specs(self) -> dict[Scale, Spec]:
        """The specs by scale."""
        return {"smoke": self.smoke, "small": self.small, "paper": self.paper}

    def spec(self, scale: str) -> Spec:
        """The spec of one scale.

        Raises:
            ValueError: There is no such scale.
        """
        if scale not in SCALES:
            raise ValueError(f"`scale` must be a known one; got {scale!r}. {choices(scale, SCALES)}")
        return self.specs[scale]


def run_folder(out: str | os.PathLike[str], name: str, spec: Spec) -> Path:
    """The folder of the run of a spec: `out/<name>/<hash>`."""
    check_name(name)
    return Path(out) / name / spec_hash(spec)


def read_spec(path: str | os.PathLike[str]) -> NamedSpec:
    """Read a spec from a file: what `to_json` gives, or the `spec.json` of a run (or the run's folder).

    Args:
        path: The file. The file of a run says what the run is called; any other file gives the run its own name.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no spec; the message says why.
    """
    path = Path(path)
    is_folder = path.is_dir()
    if is_folder:
        path = path / "spec.json"
    if not path.is_file():
        what = "is no plain file" if path.exists() else "is not there"
        raise FileNotFoundError(f"A spec must be a file of JSON; {path} {what}. `rankrise run NAME` makes one.")
    try:
        record = _parse(_read_inside(path) if is_folder else _read_file(path))
        name = as_name(path.stem)
        if isinstance(record, dict) and ("config" in record or record.get("kind") == "tracker"):
            record = record.get("config")  # the file of a run, which holds what was asked for inside
        if isinstance(record, dict) and "experiment" in record:
            name, record = record["experiment"], record.get("spec")
            check_name(name)
        return NamedSpec(name, from_json(record))
    except ValueError as error:
        raise ValueError(f"{show(path)}: {error}") from error


def _read_inside(path: Path) -> bytes:
    """Read a file of a folder that may come from somebody else: no link of the folder is followed."""
    with UntrustedFolder(path.parent) as folder:
        return folder.read(path.name, most_bytes=_MAX_BYTES)


def _read_file(path: Path) -> bytes:
    """Read a file that the user names."""
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"a spec must have at most {_MAX_BYTES} bytes; this file has more. Is it a spec?")
    return content


def _parse(content: bytes) -> Any:
    """Strict JSON of a sensible size: no key twice, no NaN."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("a spec must not be nested as deeply as this file. Is it a spec?") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"a spec must be UTF-8 text; byte {error.start} is not. Is it a spec?") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"a spec must be JSON; {error}. Compare with a spec.json.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"a spec must have every key once; got {twice!a:.60} twice. Drop one.")
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"a spec must hold finite numbers; got {constant}. Change it.")
