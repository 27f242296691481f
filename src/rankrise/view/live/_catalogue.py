"""The runs below a folder, as a list that is cheap to make again, because only runs that have changed are read."""

import hashlib
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rankrise.runs import spec_fields
from rankrise.store import RunFollower, UntrustedFolder, UntrustedInputError, is_part, read_json, show

_MANIFEST = "MANIFEST.json"
_FILES = (_MANIFEST, "spec.json", "metrics.arrows", "metrics.parquet")
_VERDICTS = "verdicts.json"
_MOST_LEVELS = 6  # most levels of folders below the one that is served
_MOST_VERDICTS = 2000
_MOST_FIELDS = 200  # of a spec that are compared with those of other runs
_MOST_TOLD = 4  # fields that tell a run from those beside it
_MOST_LETTERS = 40  # of the value of a field
_MOST_VERDICT_BYTES = 2**21  # of one file; 239 claims are 0.2 MB

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Listed:
    """One run of the list.

    Attributes:
        id: The name that the page has for the run: a hash of its path, so that no path ever comes back from a page.
        path: The path of its folder relative to the folder that is served; empty for that folder itself.
        state: "finished", "running", "stopped" or "damaged".
        problem: Why the run is damaged, in a sentence; otherwise empty.
        experiment: The name of the experiment; empty for a run of somebody's own training loop.
        num_layers: Number of layers with attention that are tracked.
        num_heads: Number of tracked heads of every layer, smallest and largest.
        changed: When its table was last written, in seconds since 1970.
        fields: The fields of its spec, or of the `config` of a tracker, as text by their paths.
        differs: What tells it from the other runs of its folder, such as "init_scale = 0.3, seed = 1"; empty if no
            field differs.
    """

    id: str
    path: str
    state: str
    problem: str
    experiment: str
    num_layers: int
    num_heads: tuple[int, int]
    changed: float
    fields: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that the page reads."""
        return {
            "id": self.id,
            "path": self.path,
            "state": self.state,
            "problem": self.problem,
            "experiment": self.experiment,
            "layers": self.num_layers,
            "heads": list(self.num_heads),
            "changed": round(self.changed, 3),
            "differs": self.differs,
        }


class Changes(NamedTuple):
    """What has changed since the last look: the runs that are new or changed, and the ids of runs that are gone."""

    changed: list[Listed]
    gone: list[str]


class Catalogue:
    """The runs below a folder. Links are not followed, and runs are not looked for inside a run.

    Args:
        root: The folder that is served; it may itself be a run.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries: dict[str, Listed] = {}
        self._stamps: dict[str, Stamp] = {}
        self._verdicts: list[str] = []  # folders that hold verdicts
        self._lock = threading.Lock()

    def entries(self) -> list[Listed]:
        """The runs as they were found last, in the order of their paths."""
        return [entry for _, entry in sorted(self._entries.items())]

    def find(self, run_id: str) -> Listed | None:
        """Return the run that has this id; None if no run has it."""
        return next((entry for entry in list(self._entries.values()) if entry.id == run_id), None)

    def folder(self, path: str) -> UntrustedFolder:
        """Open the folder of a run through the served folder, so that a link on the way is refused.

        Raises:
            OSError: The run is gone.
            UntrustedInputError: A part of its path became a link.
        """
        root = UntrustedFolder(self.root)
        if not path:
            return root
        with root:
            return root.folder(path)

    def refresh(self) -> Changes:
        """Look for runs that are new, changed or gone."""
        with self._lock:
            stamps, verdicts = self._walk()
            before = self._entries
            entries = {path: self._entry(path, stamp) for path, stamp in stamps.items()}
            if any(before.get(path) is not entry for path, entry in entries.items()) or len(before) != len(entries):
                entries = _told_apart(entries)
            self._entries, self._stamps, self._verdicts = entries, stamps, verdicts
            changed = [entry for path, entry in entries.items() if before.get(path) is not entry]
            return Changes(changed, [entry.id for path, entry in before.items() if path not in entries])

    def verdicts(self) -> list[dict[str, Any]]:
        """Return the verdicts of every `verdicts.json` below the folder: the fields that the page shows, as text."""
        found: list[dict[str, Any]] = []
        for path in self._verdicts:
            try:
                with self.folder(path) as folder:
                    records = read_json(folder, _VERDICTS) if _is_small(folder) else []
            except (OSError, UntrustedInputError):
                continue
            if isinstance(records, list):
                found += [_verdict(path, record) for record in records[:_MOST_VERDICTS] if isinstance(record, dict)]
            if len(found) >= _MOST_VERDICTS:
                break
        return found[:_MOST_VERDICTS]

    def _walk(self) -> tuple[dict[str, Stamp], list[str]]:
        """Return the stamps of all runs by path, and the folders that hold verdicts."""
        found: dict[str, Stamp] = {}
        verdicts: list[str] = []
        for path, folder, names in _folders(self.root, "", _MOST_LEVELS):
            if _MANIFEST in names:
                found[path] = tuple(_stamp(folder, name) if name in names else (0, 0, 0) for name in _FILES)
            if _VERDICTS in names:
                verdicts.append(path)
        return found, verdicts

    def _entry(self, path: str, stamp: Stamp) -> Listed:
        """Return the entry of a run, which is the earlier one if nothing has changed."""
        before = self._entries.get(path)
        is_same = before is not None and self._stamps.get(path) == stamp
        if before is not None and is_same and before.state in ("finished", "damaged"):
            return before
        entry = self._read(path, stamp)
        if before is not None and is_same and before.state == entry.state:  # the run was not stopped or resumed either
            return before
        return entry

    def _read(self, path: str, stamp: Stamp) -> Listed:
        changed = max(nanoseconds for _, _, nanoseconds in stamp) / 1e9
        state, problem, experiment, heads, fields = "damaged", "", "", [], {}
        try:
            with self.folder(path) as folder:
                follower = RunFollower(folder)
                spec, _ = follower.head()
                state = follower.state()
        except (OSError, ValueError) as error:
            problem = " ".join(show(error).split())
        else:
            heads = [layer["num_heads"] for layer in spec.get("layers", [])]
            config = spec.get("config", {})
            experiment = str(config.get("experiment", ""))[:200]
            fields = _fields(config.get("spec") or config)
        span = (min(heads, default=0), max(heads, default=0))
        run_id = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return Listed(run_id, path, state, problem, experiment, len(heads), span, changed, fields)


def _fields(spec: object) -> dict[str, str]:
    found = spec_fields(spec) if isinstance(spec, Mapping) else {}
    return {name[:200]: show(str(found[name])[:_MOST_LETTERS]) for name in list(found)[:_MOST_FIELDS]}


def _told_apart(entries: Mapping[str, Listed]) -> dict[str, Listed]:
    """The entries with what tells each from the other runs of its folder; those that have it already stay as they are.

    Hundreds of runs of a sweep have names that say nothing: the folder of each is the hash of its spec.
    """
    groups: dict[str, list[Listed]] = {}
    for path, entry in entries.items():
        groups.setdefault(path.rpartition("/")[0], []).append(entry)
    told: dict[str, str] = {}
    for group in groups.values():
        names = dict.fromkeys(name for entry in group for name in entry.fields)
        differing = [name for name in names if len({entry.fields.get(name) for entry in group}) > 1]
        for entry in group:
            words = [f"{name.rpartition('.')[2]} = {entry.fields[name]}" for name in differing if name in entry.fields]
            told[entry.path] = ", ".join(words[:_MOST_TOLD])
    return {
        path: entry if entry.differs == told[path] else replace(entry, differs=told[path])
        for path, entry in entries.items()
    }


def _folders(folder: Path, path: str, levels: int) -> Iterator[tuple[str, Path, set[str]]]:
    """Yield every folder that is not inside a run: its path below the root, itself, and the names of its files."""
    try:
        with os.scandir(folder) as scan:
            entries = list(scan)
        files = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        inner = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # the folder was removed just now, or may not be read
        return
    yield path, folder, files
    if _MANIFEST in files or not levels:
        return
    for name in inner:
        if is_part(name):  # a name that is no text in UTF-8 cannot be shown
            yield from _folders(folder / name, f"{path}/{name}" if path else name, levels - 1)


def _stamp(folder: Path, name: str) -> tuple[int, int, int]:
    try:
        found = os.stat(folder / name, follow_symlinks=False)
    except OSError:
        return 0, 0, 0
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (0, 0, 0)


def _is_small(folder: UntrustedFolder) -> bool:
    return folder.stamp(_VERDICTS)[1] <= _MOST_VERDICT_BYTES


def _verdict(path: str, record: dict[str, Any]) -> dict[str, Any]:
    claim = record.get("claim")
    parts = claim if isinstance(claim, dict) else {}
    runs = record.get("runs")
    names = [name[:200] for name in runs[:50] if isinstance(name, str)] if isinstance(runs, list) else []
    return {
        "folder": path,
        "verdict": str(record.get("verdict", ""))[:40],
        "claim": str(parts.get("statement", ""))[:500],
        "reason": str(record.get("reason", ""))[:500],
        "runs": names,
    }
