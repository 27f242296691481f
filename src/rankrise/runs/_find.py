"""The runs below a folder, their state, and which of them belong together."""

import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rankrise.runs._run_data import RunData
from rankrise.store import has_run, is_locked, is_sealed, load_spec, show, verify_run

State: TypeAlias = Literal["finished", "running", "stopped", "damaged"]
_MOST_LEVELS = 6  # of folders below the one that is searched
_MOST_NAMED = 3  # runs that a message names


@dataclass(frozen=True)
class FoundRun:
    """A run directory and the state it is in.

    Attributes:
        folder: The run directory.
        state: "finished" if the run is sealed and its files are as its manifest says, "running" while a process writes
            it, "stopped" if it was cut off before its end, "damaged" if it cannot be trusted.
        problem: Why the run is damaged, in a sentence; otherwise empty.
    """

    folder: Path
    state: State
    problem: str = ""

    @property
    def data(self) -> RunData:
        """The run as data."""
        return RunData(self.folder)


def open_run(path: str | os.PathLike[str]) -> RunData:
    """Open a run directory that a tracker, the trainer or the theory wrote, finished or not.

    Args:
        path: The run directory.

    Raises:
        FileNotFoundError: The folder holds no run; the message names the runs below it.
        ValueError: The spec of the run is damaged.

    >>> import tempfile, torch
    >>> from rankrise.store import create_run, scalar_rows
    >>> folder = tempfile.mkdtemp()
    >>> create_run(folder, spec={}, initial={"w": torch.zeros(1)}).append(scalar_rows([(1, "loss", 0.5)]))
    >>> open_run(folder).scalar("loss").tolist()
    [0.5]
    """
    if not has_run(path):
        raise FileNotFoundError(_no_run(Path(path)))
    run = RunData(Path(path))
    run.config  # noqa: B018 reads the spec now, so that a folder without a run is refused here
    return run


def _no_run(path: Path) -> str:
    if not path.is_dir():
        return f"A run must be a folder; {show(path)} {'is a file' if path.exists() else 'does not exist'}."
    below = [f"'{show(run)}'" for run in itertools.islice(_run_folders(path, _MOST_LEVELS), _MOST_NAMED)]
    runs = f" Open one of those below it: {', '.join(below)}." if below else ""
    return f"A run must be a folder with a MANIFEST.json; {show(path)} has none.{runs}"


def find_runs(folder: str | os.PathLike[str]) -> list[FoundRun]:
    """Every run below a folder, in the order of their paths; the folder itself may be a run.

    Links are not followed, and runs are not looked for inside a run. The weights of finished runs are not read, so that
    a folder of a thousand runs is searched in a second or two; `check_run` reads the weights of one run.

    Args:
        folder: Where to look.

    >>> find_runs("nowhere")
    []
    """
    return [_state_of(path, with_weights=False) for path in _run_folders(Path(folder), _MOST_LEVELS)]


def check_run(path: str | os.PathLike[str]) -> FoundRun:
    """Return the state of one run directory, after every file of it is checked.

    Raises:
        FileNotFoundError: The folder holds no run.
    """
    if not has_run(path):
        raise FileNotFoundError(f"A run must be a folder with a MANIFEST.json; {path} has none.")
    return _state_of(Path(path), with_weights=True)


def _run_folders(folder: Path, levels: int) -> Iterable[Path]:
    if has_run(folder):
        yield folder
    elif levels and folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from _run_folders(path, levels - 1)


def _state_of(folder: Path, *, with_weights: bool) -> FoundRun:
    try:
        if not is_sealed(folder):
            return FoundRun(folder, "running" if is_locked(folder) else "stopped")
        verify_run(folder, with_weights=with_weights)
        load_spec(folder)
    except (OSError, ValueError) as error:
        return FoundRun(folder, "damaged", str(error))
    return FoundRun(folder, "finished")


def group_runs(runs: Sequence[RunData], *, but_for: Sequence[str] = ("seed",)) -> list[list[RunData]]:
    """Runs that have one spec but for some of its fields, in the order in which they come.

    Args:
        runs: The runs.
        but_for: Fields in which the runs of one group may differ, such as "seed" or "model.init_scale".

    >>> group_runs([])
    []
    """
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        fields = {name: value for name, value in spec_fields(run.spec).items() if name not in but_for}
        groups.setdefault(json.dumps(fields, sort_keys=True), []).append(run)
    return list(groups.values())


def differing_fields(runs: Sequence[RunData]) -> tuple[str, ...]:
    """The fields of the specs that are not the same in all runs, such as "seed" or "model.init_scale".

    A field that only some specs have counts as different.
    """
    specs = [spec_fields(run.spec) for run in runs]
    names = dict.fromkeys(name for spec in specs for name in spec)
    return tuple(name for name in names if any(name not in spec or spec[name] != specs[0].get(name) for spec in specs))


def spec_fields(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested spec as one level: the name of a field is its path, joined by dots.

    >>> spec_fields({"model": {"width": 4}, "seed": 0})
    {'model.width': 4, 'seed': 0}
    """
    fields: dict[str, Any] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping) and value:
            fields |= spec_fields(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields
