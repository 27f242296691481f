"""The finished runs below a folder, of each experiment those that belong together."""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankrise.lab.experiments._experiment import SCALES
from rankrise.lab.experiments._plan import plan_reproduction
from rankrise.lab.experiments._registry import experiments
from rankrise.lab.experiments._spec import to_json
from rankrise.store import has_run, is_sealed, load_spec, verify_run


def find_runs(folder: str | os.PathLike[str], *, scale: str | None = None) -> dict[str, list[Path]]:
    """Finished runs in `folder/<experiment>/<hash>`, by experiment.

    Runs of one experiment must differ in their seed only to be drawn and judged together. Where there are several such
    groups, the one of the largest scale is taken, `paper` before `small` before `smoke` before any other; among others
    the longest, then the one of most seeds. A folder that is no finished run is passed over; a run that is damaged, or
    is of no experiment, with a warning.

    Args:
        folder: Of the runs.
        scale: Take only the runs that `rankrise reproduce` makes at this scale.

    Raises:
        ValueError: There is no such scale.

    >>> find_runs("nowhere")
    {}
    """
    if scale is not None:
        plan = plan_reproduction(scale, out=folder)
        for run in {run.folder: run for runs in plan.members.values() for run in runs}.values():
            if run.state == "refused":
                _warn(run.problem)
        return plan.finished()
    found: dict[str, list[Path]] = {}
    for place in sorted(path for path in Path(folder).glob("*") if path.is_dir()):
        groups = _groups(place)
        if groups:
            found[place.name] = max(groups, key=lambda group: _rank(place.name, group))
    return _ordered(_with_scale_one(found))


def unread_runs(folder: str | os.PathLike[str], found: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Why experiments that have a folder have no run in `found`: a sentence each, by name.

    Args:
        folder: Of the runs.
        found: Of `find_runs`.
    """
    places = [path for path in sorted(Path(folder).glob("*")) if path.name not in found]
    return {
        place.name: (
            f"No run of {place.name} is finished and whole: `rankrise run {place.name}` goes on with one that was cut "
            "off; move a damaged one away, and run it again."
        )
        for place in places
        if any(path.is_dir() for path in place.glob("*"))
    }


def _groups(place: Path) -> list[list[Path]]:
    """Runs of an experiment that differ in their seed only."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(place.iterdir()):
        spec = _checked(path)
        if spec is not None:
            shared = json.dumps({key: value for key, value in spec.items() if key != "seed"}, sort_keys=True)
            groups.setdefault(shared, []).append(path)
    return list(groups.values())


def _checked(path: Path) -> dict[str, Any] | None:
    """The spec of a finished run whose files are all as its manifest says; else None, with a warning for a run."""
    try:
        if not has_run(path) or not is_sealed(path):
            return None
        verify_run(path)
        spec = _spec_of(path)
    except (OSError, ValueError) as error:
        _warn(str(error))
        return None
    if not spec:
        _warn(f"{path} must be the run of an experiment; its spec.json names none")
    return spec or None


def _warn(reason: str) -> None:
    warnings.warn(f"A run is passed over: {' '.join(reason.split()).rstrip('.')}.", UserWarning, stacklevel=3)


def _spec_of(path: Path) -> dict[str, Any]:
    """The spec of a run's experiment; empty where there is none."""
    config = load_spec(path).get("config")
    spec = config.get("spec") if isinstance(config, Mapping) else None
    return spec if isinstance(spec, dict) else {}


def _rank(name: str, group: Sequence[Path]) -> tuple[int, float, int]:
    spec = _spec_of(group[0])
    known = experiments().get(name)
    places = [n for n, scale in enumerate(SCALES) if known and _same(to_json(known.spec(scale)), spec)]
    training = spec.get("training")
    epochs = training.get("epochs", 0) if isinstance(training, Mapping) else 0
    return max(places, default=-1), epochs, len(group)


def _with_scale_one(found: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """A network that differs from the others of its family in its initial scale alone is the member of scale 1."""
    more = {}
    for name in found:
        base, is_member, _ = name.partition("-scale-")
        one = f"{base}-scale-1"
        if is_member and one not in found and base in found:
            ours, theirs = _spec_of(found[base][0]), _spec_of(found[name][0])
            model = ours.get("model"), theirs.get("model")
            if all(isinstance(m, Mapping) for m in model) and _same(ours, {**theirs, "model": model[0]}):
                rest = [{k: v for k, v in dict(m or {}).items() if k != "init_scale"} for m in model]
                if rest[0] == rest[1] and (model[0] or {}).get("init_scale") == 1.0:
                    more[one] = found[base]
    return found | more


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Equal but for the seed."""
    return {**a, "seed": 0} == {**b, "seed": 0}


def _ordered(found: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    """As in `rankrise list`, others behind."""
    names = [name for name in experiments() if name in found]
    return {name: found[name] for name in [*names, *(name for name in found if name not in names)]}
