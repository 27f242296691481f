"""Names of runs, the folders they get, and specs read from files. Names and files may come from anyone."""

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from rankrise.lab.experiments._spec import Spec, from_json, spec_hash

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MAX_BYTES = 1_000_000


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


def run_folder(out: str | os.PathLike[str], name: str, spec: Spec) -> Path:
    """Where the run of a spec lives: `out/<name>/<hash>`."""
    check_name(name)
    return Path(out) / name / spec_hash(spec)


def read_spec(path: str | os.PathLike[str]) -> NamedSpec:
    """Read a spec from a file: what `to_json` gives, or the `spec.json` of a run (or the run's folder).

    Args:
        path: The file. A run's says what the run is called; another file lends its own name.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no spec; says why.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "spec.json"
    if not path.is_file():
        what = "is no plain file" if path.exists() else "is not there"
        raise FileNotFoundError(f"A spec must be a file of JSON; {path} {what}. `rankrise run NAME` makes one.")
    try:
        record = _parse(path)
        name = as_name(path.stem)
        if isinstance(record, dict) and record.get("kind") in (
            "tracker",
            "theory",
            "prediction",
        ):  # of a run: what was asked for is inside
            record = record.get("config")
        if isinstance(record, dict) and "experiment" in record:
            name, record = record["experiment"], record.get("spec")
            check_name(name)
        return NamedSpec(name, from_json(record))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parse(path: Path) -> Any:
    """Strict JSON of a sensible size: no key twice, no NaN."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"a spec must have at most {_MAX_BYTES} bytes; this file has more. Is it a spec?")
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
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
