"""Checkpoints of a run: `checkpoints/step-<n>/`, each whole or not there.

model.safetensors, optimiser.safetensors   tensors by name
state.json                                 the rest: JSON, never a pickle
MANIFEST.json                              size and SHA-256 of those, written last

A checkpoint is written into `.tmp-…` beside its place, synced, and renamed. Before a checkpoint is removed it is
renamed to `.trash-…`. A folder named `step-<n>` was therefore whole once; its manifest tells whether it still is.
"""

import errno
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.store._atomic import load_tensors_in, remove_leftovers, save_tensors_in, sha256, write_json_in
from rankrise.store._failpoints import failpoint
from rankrise.store._lock import check_still_held
from rankrise.store._schema import read_json
from rankrise.store._untrusted import UntrustedFolder, UntrustedInputError, show

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
_FOLDER, _MANIFEST, _STATE = "checkpoints", "MANIFEST.json", "state.json"
_TENSORS = ("model", "optimiser")
_FILES = (*(f"{name}.safetensors" for name in _TENSORS), _STATE)
_ROOM = 1.2  # free space that must be there before writing, in sizes of the checkpoint


@dataclass(frozen=True)
class TrainingState:
    """A state that training can go on from."""

    step: int
    model: "dict[str, Tensor]"
    optimiser: "dict[str, Tensor]"
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: TrainingState) -> None:
    """Write a checkpoint of the run in `folder`; the caller holds its lock.

    Raises:
        OSError: The disk is full, read-only, or gone. Nothing of the checkpoint is left, and the others are as before.
    """
    failpoint("checkpoint.begin")
    with UntrustedFolder(folder) as run:
        check_still_held(run)
        with run.folder(_FOLDER, create=True) as parent:
            _check_room(parent.path, checkpoint)
            _write(parent, checkpoint)
    failpoint("checkpoint.done")


def _write(parent: UntrustedFolder, checkpoint: TrainingState) -> None:
    """Write a checkpoint under a temporary name, and rename it; nothing is left of it after an error."""
    temporary, place = f".tmp-{checkpoint.step}-{os.getpid()}", _name(checkpoint.step)
    if parent.exists(temporary):  # left by a dead process with our process id: in a container ids repeat
        parent.remove_folder(temporary)
    try:
        with parent.folder(temporary, create=True) as inner:
            for name, tensors in zip(_TENSORS, (checkpoint.model, checkpoint.optimiser), strict=True):
                save_tensors_in(inner, f"{name}.safetensors", tensors, f"checkpoint_{name}")
            write_json_in(inner, _STATE, checkpoint.state, "checkpoint_state")
            files = {name: {"size": _size(inner, name), "sha256": sha256(inner, name)} for name in _FILES}
            manifest = {"schema_version": SCHEMA_VERSION, "step": checkpoint.step, "files": files}
            write_json_in(inner, _MANIFEST, manifest, "checkpoint_manifest")
        failpoint("checkpoint.rename")
        if parent.exists(place):  # a damaged checkpoint, or one from steps that were dropped on resuming
            _remove(parent, place)
        parent.rename(temporary, place)
        failpoint("checkpoint.sync")
        parent.sync()
    except BaseException:
        if parent.exists(temporary):
            parent.remove_folder(temporary)
        raise


def find_checkpoint(folder: Path) -> tuple[TrainingState | None, list[str]]:
    """Return the newest checkpoint that is as its manifest says, and why newer checkpoints were skipped.

    Returns:
        The checkpoint, or None if no checkpoint is whole; and a sentence for each newer one that was skipped.
    """
    skipped: list[str] = []
    for step in sorted(checkpoint_steps(folder), reverse=True):
        try:
            return load_checkpoint(folder, step), skipped
        except (ValueError, OSError) as error:
            skipped.append(f"{show(folder / _FOLDER / _name(step))} is skipped: {error}")
    return None, skipped


def load_checkpoint(folder: Path, step: int) -> TrainingState:
    """Read the checkpoint of a step.

    Raises:
        ValueError: The checkpoint is missing, not as its manifest says, or of an unknown version.
        OSError: The checkpoint cannot be read.
    """
    try:
        with UntrustedFolder(folder) as run, run.folder(f"{_FOLDER}/{_name(step)}") as place:
            _verify(place, step)
            model, optimiser = (load_tensors_in(place, f"{name}.safetensors") for name in _TENSORS)
            state = read_json(place, _STATE)
    except FileNotFoundError:
        raise UntrustedInputError(f"{_MANIFEST} is missing.") from None
    if not isinstance(state, dict):
        raise UntrustedInputError(f"{_STATE} must hold an object; it does not.")
    return TrainingState(step, model, optimiser, state)


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps a run has checkpoints of, good or damaged, in no order.

    >>> checkpoint_steps(Path("/nowhere"))
    []
    """
    try:
        with UntrustedFolder(folder) as run, run.folder(_FOLDER) as parent:
            found = [re.fullmatch(r"step-([0-9]{9,18})", name) for name in parent.names()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(match[1]) for match in found if match]


def prune_checkpoints(folder: Path, *, keep: Collection[int]) -> None:
    """Remove all checkpoints except some, and what dead processes left; the caller holds the lock of the run.

    Raises:
        OSError: The folder cannot be written.
    """
    steps = checkpoint_steps(folder)
    try:
        with UntrustedFolder(folder) as run, run.folder(_FOLDER) as parent:
            for step in steps:
                if step not in keep:
                    _remove(parent, _name(step))
            remove_leftovers(parent, (".tmp-", ".trash-"))
    except FileNotFoundError:
        if steps:
            raise


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _size(folder: UntrustedFolder, name: str) -> int:
    with folder.open(name) as file:
        return os.fstat(file.fileno()).st_size


def _remove(parent: UntrustedFolder, name: str) -> None:
    """Remove a checkpoint after renaming it, because a folder called `step-<n>` must be whole."""
    failpoint("prune.rename")
    trash = f".trash-{name}-{os.getpid()}"
    parent.rename(name, trash)
    failpoint("prune.remove")
    parent.remove_folder(trash)


def _check_room(parent: Path, checkpoint: TrainingState) -> None:
    size = sum(t.nbytes for tensors in (checkpoint.model, checkpoint.optimiser) for t in tensors.values())
    usage = shutil.disk_usage(parent)
    if any(usage) and usage.free < _ROOM * size:  # a place that is no disk, such as /proc, has no size at all
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))


def _verify(place: UntrustedFolder, step: int) -> None:
    """Compare sizes and checksums with the manifest.

    Raises:
        UntrustedInputError: The message names the first file that differs.
    """
    if not place.has_file(_MANIFEST):
        raise UntrustedInputError(f"{_MANIFEST} is missing.")
    manifest = read_json(place, _MANIFEST)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UntrustedInputError(f"schema_version must be {SCHEMA_VERSION}; got {ascii(version)[:80]}.")
    if manifest.get("step") != step:
        raise UntrustedInputError(f"its manifest is of step {ascii(manifest.get('step'))[:80]}.")
    files = manifest.get("files")
    for name in _FILES:
        entry = files.get(name) if isinstance(files, dict) else None
        if not isinstance(entry, dict):
            raise UntrustedInputError(f"its manifest does not list {name}.")
        if not place.has_file(name):
            raise UntrustedInputError(f"{name} is missing.")
        size = _size(place, name)
        if size != entry.get("size"):
            raise UntrustedInputError(f"{name} must have {ascii(entry.get('size'))[:80]} bytes; it has {size}.")
        if sha256(place, name) != entry.get("sha256"):
            raise UntrustedInputError(f"{name} is not what was written; its checksum differs.")
