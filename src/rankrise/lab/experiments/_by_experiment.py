"""The finished runs below a folder, of each experiment those that belong together."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.lab.experiments._plan import plan_reproduction
from rankrise.lab.experiments._registry import experiments, scale_one
from rankrise.lab.experiments._spec import SCALES, read_spec, to_json
from rankrise.store import has_run, show

if TYPE_CHECKING:
    from rankrise.runs import RunData


def runs_by_experiment(folder: str | os.PathLike[str], *, scale: str | None = None) -> dict[str, list[Path]]:
    """Finished runs in `folder/<experiment>/<hash>`, by experiment.

    Runs of one experiment must differ in their seed only to be drawn and judged together. Where there are several such
    groups, the one of the largest scale is taken: `paper` before `small` before `smoke` before any other spec. Among
    other specs the longest training is taken, then the group with the most seeds. A folder that is no finished run is
    passed over; a run that is damaged, or that is of no experiment, is passed over with a warning.

    Args:
        folder: The folder of the runs.
        scale: Take only the runs that `rankrise reproduce` makes at this scale.

    Raises:
        ValueError: There is no such scale.

    >>> runs_by_experiment("nowhere")
    {}
    """
    from rankrise.runs import group_runs  # loads PyTorch, which listing the experiments must not

    if scale is not None:
        plan = plan_reproduction(scale, out=folder)
        for planned in {run.folder: run for runs in plan.members.values() for run in runs}.values():
            if planned.state == "refused":
                _warn(planned.problem)
        return plan.finished()
    found: dict[str, list[Path]] = {}
    for place in sorted(path for path in Path(folder).glob("*") if path.is_dir() and path.name.isprintable()):
        groups = group_runs([run for path in sorted(place.iterdir()) if (run := _whole(path)) is not None])
        if groups:
            found[place.name] = [run.folder for run in max(groups, key=lambda group: _rank(place.name, group))]
    return _ordered(_with_scale_one(found))


def unread_runs(folder: str | os.PathLike[str], found: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Why an experiment that has a folder has no run in `found`: a sentence for each such experiment, by name.

    Args:
        folder: The folder of the runs.
        found: What `runs_by_experiment` returned.
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


def _whole(path: Path) -> "RunData | None":
    """A finished run of an experiment; None for anything else, with a warning if it is a run that cannot be used."""
    from rankrise.runs import check_run

    if not has_run(path):
        return None
    if not path.name.isprintable():
        _warn(f"{show(path)} must have a name that can be printed")
        return None
    found = check_run(path)
    if found.state == "damaged":
        _warn(found.problem)
    elif found.state == "finished" and not found.data.spec:
        _warn(f"{show(path)} must be the run of an experiment; its spec.json names none")
    elif found.state == "finished":
        try:
            read_spec(path)
            found.data.table  # noqa: B018 a table that cannot be read is found here, and not while a figure is drawn
        except (OSError, ValueError) as error:
            _warn(str(error))
        else:
            return found.data
    return None


def _warn(reason: str) -> None:
    warnings.warn(f"A run is passed over: {' '.join(reason.split()).rstrip('.')}.", UserWarning, stacklevel=3)


def _rank(name: str, group: "Sequence[RunData]") -> tuple[int, float, int]:
    """Place of a group among those of its experiment: scale, length, number of seeds."""
    spec = group[0].spec
    known = experiments().get(name)
    places = [n for n, scale in enumerate(SCALES) if known and _same(to_json(known.spec(scale)), spec)]
    training = spec.get("training")
    epochs = training.get("epochs", 0) if isinstance(training, Mapping) else 0
    return max(places, default=-1), epochs, len(group)


def _with_scale_one(found: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """Let a network stand for the member of scale 1 of its family, if it differs from the others in that scale only."""
    from rankrise.runs import RunData

    more = {}
    for name in found:
        known = experiments().get(name)
        network = known.variant_of if known is not None and known.family else ""
        one = scale_one(network)
        if not one or one in found or network not in found:
            continue
        base = found[network]
        ours, theirs = RunData(base[0]).spec, RunData(found[name][0]).spec
        model = ours.get("model"), theirs.get("model")
        if all(isinstance(m, Mapping) for m in model) and _same(ours, {**theirs, "model": model[0]}):
            rest = [{k: v for k, v in dict(m or {}).items() if k != "init_scale"} for m in model]
            if rest[0] == rest[1] and (model[0] or {}).get("init_scale") == 1.0:
                more[one] = base
    return found | more


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two specs are equal but for the seed."""
    return {**a, "seed": 0} == {**b, "seed": 0}


def _ordered(found: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    """Sort the runs in the order of `rankrise list`; experiments that are not registered come last."""
    names = [name for name in experiments() if name in found]
    return {name: found[name] for name in [*names, *(name for name in found if name not in names)]}
