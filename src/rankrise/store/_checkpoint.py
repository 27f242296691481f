"""Checkpoints of a run: `checkpoints/step-<n>/`, each whole or not there.

model.safetensors, optimiser.safetensors   tensors by name
state.json                                 the rest: JSON, never a pickle
MANIFEST.json                              size and SHA-256 of those, written last

A checkpoint is written into `.tmp-…` beside its place, synced, and renamed; one that is dropped is renamed to
`.trash-…` before it is removed. So a folder named `step-<n>` was whole once; its manifest tells whether it still is.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.store._atomic import read_json, sha256, sync, write_json
from rankrise.store._failpoints import failpoint
from rankrise.store._tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA_VERSION = 1
_FOLDER, _MANIFEST, _STATE = "checkpoints", "MANIFEST.json", "state.json"
_TENSORS = ("model", "optimiser")
_FILES = (*(f"{name}.safetensors" for name in _TENSORS), _STATE)
_ROOM = 1.2  # free space wanted, in sizes of the checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A state that training can go on from."""

    step: int
    model: "dict[str, Tensor]"
    optimiser: "dict[str, Tensor]"
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint of the run in `folder`; the caller holds its lock.

    Raises:
        OSError: The disk is full, read-only, or gone. Nothing of the checkpoint is left, and the others are as before.
    """
    failpoint("checkpoint.begin")
    parent = folder / _FOLDER
    parent.mkdir(exist_ok=True)
    _check_room(parent, checkpoint)
    temporary = parent / f".tmp-{checkpoint.step}-{os.getpid()}"
    try:
        temporary.mkdir()
        for name, tensors in zip(_TENSORS, (checkpoint.model, checkpoint.optimiser), strict=True):
            save_tensors(temporary / f"{name}.safetensors", tensors, f"checkpoint_{name}")
        write_json(temporary / _STATE, checkpoint.state, "checkpoint_state")
        files = {
            name: {"size": (temporary / name).stat().st_size, "sha256": sha256(temporary / name)} for name in _FILES
        }
        manifest = {"schema_version": SCHEMA_VERSION, "step": checkpoint.step, "files": files}
        write_json(temporary / _MANIFEST, manifest, "checkpoint_manifest")
        failpoint("checkpoint.rename")
        place = _place(folder, checkpoint.step)
        if place.exists():  # of a life that was dropped, or damaged
            _remove(place)
        temporary.rename(place)
        failpoint("checkpoint.sync")
        sync(parent)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    failpoint("checkpoint.done")


def find_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that is as its manifest says, and why newer ones are not.

    Returns:
        The checkpoint, None if there is none; a sentence for each that was skipped.
    """
    skipped: list[str] = []
    for step in sorted(checkpoint_steps(folder), reverse=True):
        try:
            return load_checkpoint(folder, step), skipped
        except (ValueError, OSError) as error:
            skipped.append(f"{_place(folder, step)} is skipped: {error}")
    return None, skipped


def load_checkpoint(folder: Path, step: int) -> Checkpoint:
    """Read the checkpoint of a step.

    Raises:
        ValueError: It is missing, not as its manifest says, or of an unknown version.
        OSError: It cannot be read.
    """
    place = _place(folder, step)
    _verify(place, step)
    model, optimiser = (load_tensors(place / f"{name}.safetensors") for name in _TENSORS)
    return Checkpoint(step, model, optimiser, read_json(place / _STATE))


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps a run has checkpoints of, good or damaged, in no order.

    >>> checkpoint_steps(Path("/nowhere"))
    []
    """
    found = (re.fullmatch(r"step-(\d+)", path.name) for path in (folder / _FOLDER).glob("step-*"))
    return [int(match[1]) for match in found if match]


def prune_checkpoints(folder: Path, *, keep: Collection[int]) -> None:
    """Remove all checkpoints but some, and what dead processes left; the caller holds the lock of the run.

    Raises:
        OSError: The folder cannot be written.
    """
    for step in checkpoint_steps(folder):
        if step not in keep:
            _remove(_place(folder, step))
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished and dropped checkpoints of processes that died; the caller holds the lock of the run."""
    for pattern in (".tmp-*", ".trash-*"):
        for path in (folder / _FOLDER).glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def _place(folder: Path, step: int) -> Path:
    return folder / _FOLDER / f"step-{step:09d}"


def _remove(place: Path) -> None:
    """Under another name first: what is called `step-<n>` is whole."""
    failpoint("prune.rename")
    trash = place.with_name(f".trash-{place.name}-{os.getpid()}")
    place.rename(trash)
    failpoint("prune.remove")
    shutil.rmtree(trash)


def _check_room(parent: Path, checkpoint: Checkpoint) -> None:
    size = sum(t.nbytes for tensors in (checkpoint.model, checkpoint.optimiser) for t in tensors.values())
    if shutil.disk_usage(parent).free < _ROOM * size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))


def _verify(place: Path, step: int) -> None:
    """Compare sizes and checksums with the manifest.

    Raises:
        ValueError: With the first file that differs.
    """
    if not (place / _MANIFEST).is_file():
        raise ValueError(f"{_MANIFEST} is missing.")
    manifest = read_json(place / _MANIFEST)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version must be {SCHEMA_VERSION}; got {version!r}.")
    if manifest.get("step") != step:
        raise ValueError(f"its manifest is of step {manifest.get('step')!r}.")
    files = manifest.get("files")
    for name in _FILES:
        entry = files.get(name) if isinstance(files, dict) else None
        if not isinstance(entry, dict):
            raise ValueError(f"its manifest does not list {name}.")
        if not (place / name).is_file():
            raise ValueError(f"{name} is missing.")
        size = (place / name).stat().st_size
        if size != entry.get("size"):
            raise ValueError(f"{name} must have {entry.get('size')} bytes; it has {size}.")
        if sha256(place / name) != entry.get("sha256"):
            raise ValueError(f"{name} is not what was written; its checksum differs.")
