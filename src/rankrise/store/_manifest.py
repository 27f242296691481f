"""The manifest of a run: what files it has, with their checksums, and whether it is finished.

Written last at every turn of a run's life, so that a run without one was never begun, and the state it names is true:
`running` means the table is the Arrow stream, `sealed` that it is the Parquet file.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rankrise.store._atomic import read_json, sha256, write_json

NAME = "MANIFEST.json"
SCHEMA_VERSION = 1
REQUIRED = ("spec.json", "env.json", "initial.safetensors")  # of every run
THIN = ("spec.json", "env.json")  # of a thin copy


@dataclass(frozen=True)
class Manifest:
    """State of a run and the files that must be there, relative to its folder, with their SHA-256."""

    state: Literal["running", "sealed"]
    files: dict[str, str]
    num_rows: int | None = None  # of a sealed run
    num_lost_blocks: int = 0  # blocks a full or broken disk did not take
    is_thin: bool = False  # a copy with less in its table, and without weights
    schema_version: int = field(default=SCHEMA_VERSION)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make `manifest` the truth about the run in `folder`."""
    write_json(folder / NAME, asdict(manifest), "manifest")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the run in `folder`.

    Raises:
        FileNotFoundError: There is no run in `folder`.
        ValueError: The manifest is damaged, or of a version this program does not know.
    """
    path = folder / NAME
    if not path.is_file():
        raise FileNotFoundError(f"A run directory must hold {NAME}; {folder} does not. Check the path.")
    record = read_json(path)
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} must have schema_version {SCHEMA_VERSION}, the one this rankrise reads; got {version!r}. "
            "Read the run with the rankrise that wrote it."
        )
    try:
        manifest = Manifest(**record)
    except TypeError as error:
        raise ValueError(f"{path} must be a run's manifest; {error}. Restore it, or drop the run.") from error
    problem = _problem(manifest)
    if problem:
        raise ValueError(f"{path} must be a run's manifest; {problem}. Restore it, or drop the run.")
    for name in manifest.files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{path} must name files inside the run; got {name!r}. Do not trust this run.")
    return manifest


def _problem(manifest: Manifest) -> str:
    """What is not as the types say; empty if all is."""
    files, num_rows, lost = manifest.files, manifest.num_rows, manifest.num_lost_blocks
    if manifest.state not in ("running", "sealed"):
        return f"its state is {manifest.state!r}"
    if not isinstance(files, dict) or not all(isinstance(checksum, str) for checksum in files.values()):
        return "its files have no checksums"
    if type(num_rows) not in (int, type(None)) or type(lost) is not int:
        return f"its counts are {num_rows!r} and {lost!r}"
    if type(manifest.is_thin) is not bool or (manifest.is_thin and manifest.state != "sealed"):
        return f"it is {manifest.state} and is_thin is {manifest.is_thin!r}"
    missing = [name for name in (THIN if manifest.is_thin else REQUIRED) if name not in files]
    return f"it does not list {missing[0]}" if missing else ""


def checksums(folder: Path, names: list[str]) -> dict[str, str]:
    """SHA-256 of files of a run, by their names relative to its folder."""
    return {name: sha256(folder / name) for name in names}


def verify(folder: Path, manifest: Manifest, names: list[str] | None = None) -> None:
    """Check that files are what the manifest says.

    Args:
        folder: The run.
        manifest: Its manifest.
        names: Which files; all of them unless given.

    Raises:
        ValueError: A file is missing or its checksum differs; names it.
    """
    for name in manifest.files if names is None else names:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} must hold {name}; it is missing. Restore it, or drop the run.")
        if sha256(folder / name) != manifest.files.get(name):
            raise ValueError(f"{folder / name} must be as the manifest says; it is not. Restore it, or drop the run.")
