"""What the JSON files of a run must hold; each is checked once, when it is read.

The manifest lists the files of a run with their checksums, and says whether the run is finished. It is written last
whenever the state of a run changes. A folder without a manifest therefore holds no run, and the state in the manifest
is true: `running` means that the table is the Arrow stream, `sealed` that it is the Parquet file.

Whatever the files hold, the functions here raise nothing but `UntrustedInputError`, with one sentence.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from rankrise.store._atomic import sha256, write_json_in
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, as_folder, is_inside, show

NAME = "MANIFEST.json"
SCHEMA_VERSION = 1
REQUIRED = ("spec.json", "env.json", "initial.safetensors")  # files that every run has
THIN = ("spec.json", "env.json")  # files that a thin copy has
_MOST_JSON_BYTES = 2**26  # the spec of a model with a thousand layers has about a megabyte
_MOST_DEPTH = 64  # nesting of JSON; a spec has less than ten
_SPEC: dict[str, type] = {
    "kind": str, "every": str, "spectra": str, "quantities": list, "directions": int, "matrices": bool, "layers": list,
    "notes": list, "config": dict,
}  # fmt: skip
_LAYER: dict[str, type] = {"index": int, "name": str, "num_heads": int, "head_dim": int, "views": dict}


@dataclass(frozen=True)
class Manifest:
    """State of a run, and the SHA-256 of each of its files by the name relative to its folder."""

    state: Literal["running", "sealed"]
    files: dict[str, str]
    num_rows: int | None = None  # rows of a sealed run
    num_lost_blocks: int = 0  # blocks that a full or broken disk, or an interrupt, kept from the table
    is_thin: bool = False  # whether this is a copy with less in its table, and without weights
    schema_version: int = field(default=SCHEMA_VERSION)


def write_manifest(folder: UntrustedFolder, manifest: Manifest) -> None:
    """Replace the manifest of the run in `folder`."""
    write_json_in(folder, NAME, asdict(manifest), "manifest")


def read_manifest(path: str | os.PathLike[str] | UntrustedFolder) -> Manifest:
    """Read the manifest of a run.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: The manifest is damaged, or of a version this program does not know.
    """
    try:
        with as_folder(path) as folder:
            return _as_manifest(read_json(folder, NAME), folder.show(NAME))
    except (FileNotFoundError, NotADirectoryError):
        name = path.path if isinstance(path, UntrustedFolder) else path
        raise FileNotFoundError(f"A run directory must hold {NAME}; {show(name)} does not. Check the path.") from None


def read_spec(folder: UntrustedFolder) -> dict[str, Any]:
    """Read the spec of a run: what was asked for when the run was made.

    Raises:
        UntrustedInputError: The file is damaged, or an entry that the tracker writes has another type.
    """
    spec: dict[str, Any] = read_json(folder, "spec.json")
    problem = _spec_problem(spec)
    if problem:
        raise UntrustedInputError(
            f"{folder.show('spec.json')} must be the spec of a run; {problem}. Restore it, or drop the run."
        )
    return spec


def read_json(folder: UntrustedFolder, name: str) -> Any:
    """Read JSON of bounded size and depth, or say which file is not JSON.

    Raises:
        FileNotFoundError: There is no such file.
        UntrustedInputError: The file is not JSON, too large, or nested too deeply.
    """
    content = folder.read(name, most_bytes=_MOST_JSON_BYTES)
    try:
        value = json.loads(content.decode())
        problem = "" if _is_shallow(value) else "it is nested too deeply"
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:
        problem = show(error)
    if problem:
        raise UntrustedInputError(
            f"{folder.show(name)} must hold JSON; {problem}. The file is damaged: restore it, or drop the run."
        )
    return value


def checksums(path: str | os.PathLike[str] | UntrustedFolder, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files of a run, by their names relative to its folder."""
    with as_folder(path) as folder:
        return {name: sha256(folder, name) for name in names}


def verify(
    path: str | os.PathLike[str] | UntrustedFolder, manifest: Manifest, names: Iterable[str] | None = None
) -> None:
    """Check that files are what the manifest says.

    Args:
        path: The run.
        manifest: The manifest of the run.
        names: The files to check; by default all files of the manifest.

    Raises:
        UntrustedInputError: A file is missing, not a regular file, or its checksum differs; the message names it.
    """
    with as_folder(path) as folder:
        for name in manifest.files if names is None else names:
            try:
                checksum = sha256(folder, name)
            except FileNotFoundError:
                raise UntrustedInputError(
                    f"{show(folder.path)} must hold {show(name)}; it is missing. Restore it, or drop the run."
                ) from None
            if checksum != manifest.files.get(name):
                raise UntrustedInputError(
                    f"{folder.show(name)} must be as the manifest says; it is not. Restore it, or drop the run."
                )


def _as_manifest(record: object, where: str) -> Manifest:
    version = record.get("schema_version") if isinstance(record, dict) else None
    if not isinstance(record, dict) or type(version) is not int or version != SCHEMA_VERSION:
        raise UntrustedInputError(
            f"{where} must have schema_version {SCHEMA_VERSION}, the one this rankrise reads; got {_escaped(version)}. "
            "Read the run with the rankrise that wrote it."
        )
    problem = _manifest_problem(record)
    if problem:
        raise UntrustedInputError(f"{where} must be a run's manifest; {problem}. Restore it, or drop the run.")
    for name in record["files"]:
        if not is_inside(name):
            raise UntrustedInputError(
                f"{where} must name files inside the run; got {_escaped(name)}. Do not trust this run."
            )
    return Manifest(**record)


def _manifest_problem(record: Mapping[str, Any]) -> str:
    """Return which entry has another type than `Manifest` says; empty if all types are right."""
    unknown = [key for key in record if key not in {f.name for f in fields(Manifest)}]
    if unknown:
        return f"it has the entry {_escaped(unknown[0])}"
    state, files, is_thin = record.get("state"), record.get("files"), record.get("is_thin", False)
    num_rows, lost = record.get("num_rows"), record.get("num_lost_blocks", 0)
    if state not in ("running", "sealed"):
        return f"its state is {_escaped(state)}"
    if not isinstance(files, dict) or not all(isinstance(checksum, str) for checksum in files.values()):
        return "its files have no checksums"
    if type(num_rows) not in (int, type(None)) or type(lost) is not int:
        return f"its counts are {_escaped(num_rows)} and {_escaped(lost)}"
    if type(is_thin) is not bool or (is_thin and state != "sealed"):
        return f"it is {state} and is_thin is {_escaped(is_thin)}"
    missing = [name for name in (THIN if is_thin else REQUIRED) if name not in files]
    return f"it does not list {missing[0]}" if missing else ""


def _spec_problem(spec: object) -> str:
    """Return which entry is not as the tracker writes it; empty if all entries are."""
    if not isinstance(spec, dict):
        return f"it is {_escaped(spec)}"
    wrong = [key for key, kind in _SPEC.items() if key in spec and type(spec[key]) is not kind]
    if wrong:
        return f"its {wrong[0]} is {_escaped(spec[wrong[0]])}"
    for layer in spec.get("layers", []):
        if not isinstance(layer, dict):
            return f"a layer is {_escaped(layer)}"
        wrong = [key for key, kind in _LAYER.items() if type(layer.get(key)) is not kind]
        if wrong:
            return f"the {wrong[0]} of a layer is {_escaped(layer.get(wrong[0]))}"
        for role, view in layer["views"].items():
            if not _is_view(view):
                return f"the view {_escaped(role)} of layer {layer['index']} is {_escaped(view)}"
    return ""


def _is_view(view: object) -> bool:
    """Whether a record says which parameter, adapters and norm a role of a layer is read from."""
    if not isinstance(view, dict) or not isinstance(view.get("parameter"), str):
        return False
    adapters, norm = view.get("adapters", []), view.get("norm")
    if not isinstance(adapters, list) or not all(isinstance(adapter, dict) for adapter in adapters):
        return False
    names = [adapter.get(key) for adapter in adapters for key in ("a", "b")]
    if norm is not None:
        names.append(norm.get("parameter") if isinstance(norm, dict) else None)
    return all(isinstance(name, str) for name in names)


def _is_shallow(value: object) -> bool:
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return True
    return False


def _escaped(value: object) -> str:
    """Return a value for a message: escaped and shortened."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
