"""What would run: where, whether it is done, and what is in the way. Nothing is written here.

`plan_run` looks at one run, `plan_reproduction` at every run that the figures and claims of a scale need.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rankrise.lab.experiments._codec import choices
from rankrise.lab.experiments._registry import experiments, find_experiment
from rankrise.lab.experiments._spec import SCALES, NamedSpec, Scale, read_spec, run_folder, spec_hash
from rankrise.lab.experiments.kinds import Spec, kind_of
from rankrise.lab.experiments.specs import ENTRIES, Entry
from rankrise.store import has_run, is_sealed, verify_run

State = Literal["new", "unfinished", "done", "refused"]


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to come, or one that is done.

    `problem` says in a sentence why the run cannot be made; it is empty when nothing is in the way.
    """

    name: str
    spec: Spec
    folder: Path
    state: State
    problem: str = ""
    data: Path | None = None

    @property
    def hash(self) -> str:
        """Twelve hex digits that name the spec, and the folder of the run."""
        return spec_hash(self.spec)


def vary(spec: Spec, *, seed: int | None = None, epochs: int | None = None) -> Spec:
    """The spec with another seed, or for a quick look with other epochs.

    What other epochs mean is up to the kind of the spec; a kind without epochs ignores them.

    >>> from rankrise.lab.experiments import experiments
    >>> quick = vary(experiments()["vit-cifar10"].paper, epochs=10)
    >>> quick.training.epochs, quick.training.warmup_epochs
    (10, 5.0)
    """
    if seed is not None:
        spec = replace(spec, seed=seed)
    if epochs is not None:
        spec = kind_of(spec).with_epochs(spec, epochs)
    return spec


def missing_data(spec: Spec, root: Path | None) -> str:
    """Why the data of a spec is not at hand, in a sentence; empty when it is.

    Looks only whether files are there; what is wrong inside them is said when they are read.
    """
    return kind_of(spec).missing_data(spec, root)


def plan_run(
    what: str | Spec | NamedSpec,
    *,
    scale: str = "small",
    seed: int | None = None,
    epochs: int | None = None,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs",
) -> PlannedRun:
    """Look at what running an experiment would mean.

    Args:
        what: A name, a spec, or a spec with a name for its runs.
        scale: Which spec of a named experiment: "smoke", "small" or "paper".
        seed: Replaces the seed of the spec.
        epochs: Replaces the epochs of the spec.
        data: Folder of the data sets; the value of `RANKRISE_DATA`, or else `data` in this folder, unless given.
        out: Folder of the runs.

    Raises:
        ValueError: The name or the scale is unknown, or the name cannot be that of a folder.
    """
    name, spec = _resolve(what, scale)
    spec = vary(spec, seed=seed, epochs=epochs)
    folder = run_folder(out, name, spec)
    root = None if data is None else Path(data)
    state, problem = _look(folder, spec)
    if state in ("new", "unfinished"):
        problem = missing_data(spec, root)
    return PlannedRun(name, spec, folder, state, problem, root)


def look_again(run: PlannedRun) -> PlannedRun:
    """The same run with the present state of its folder: another process may have finished the run."""
    state, problem = _look(run.folder, run.spec)
    return replace(run, state=state, problem=problem or run.problem)


def _resolve(what: str | Spec | NamedSpec, scale: str) -> NamedSpec:
    if isinstance(what, str):
        return NamedSpec(what, find_experiment(what).spec(scale))
    return what if isinstance(what, NamedSpec) else NamedSpec("own", what)


def _look(folder: Path, spec: Spec) -> tuple[State, str]:
    """The state of a folder and what is wrong with it; a run is done only if every file is as its manifest says."""
    if not has_run(folder):
        return "new", ""
    try:
        found = read_spec(folder).spec
        if found != spec:
            return "refused", (
                f"{folder} must hold the run of this spec; its spec.json is of another. "
                "Move it away, or choose another --out."
            )
        if not is_sealed(folder):
            return "unfinished", ""
        verify_run(folder)
    except (OSError, ValueError) as error:
        return "refused", str(error)
    return "done", ""


@dataclass(frozen=True)
class Reproduction:
    """Everything that the figures and claims of one scale are made of.

    Attributes:
        scale: "smoke", "small" or "paper".
        members: Runs of each experiment. Two experiments may share a run whose specs are equal, such as a network and
            the same network at initial scale 1.
        by_hand: Why experiments that are not done are not run here, by name.
    """

    scale: Scale
    members: Mapping[str, Sequence[PlannedRun]]
    by_hand: Mapping[str, str]

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once, in the order in which they are made."""
        wanted = [run for name, runs in self.members.items() for run in runs if self._is_run(name, run)]
        return list({run.folder: run for run in wanted}.values())

    def _is_run(self, name: str, run: PlannedRun) -> bool:
        return name not in self.by_hand or run.state == "done"

    def finished(self) -> dict[str, list[Path]]:
        """Folders of the runs that are finished by now, by experiment: what figures and claims read."""
        found = {name: [run.folder for run in runs if _is_finished(run)] for name, runs in self.members.items()}
        return {name: folders for name, folders in found.items() if folders}

    def absences(self) -> dict[str, str]:
        """Why experiments have no finished run, by name: a sentence each."""
        there = self.finished()
        reasons = {}
        for name in experiments():
            if name in there:
                continue
            refused = next((run for run in self.members.get(name, ()) if run.problem), None)
            if name in self.by_hand:
                reasons[name] = f"{self.by_hand[name]}."
            elif refused is not None:
                reasons[name] = _short_of(refused)
            elif name not in self.members:
                reasons[name] = f"Not part of scale {self.scale}{_hint(name, self.scale)}."
        return reasons


def plan_reproduction(
    scale: str = "smoke",
    *,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs",
    num_seeds: int | None = None,
) -> Reproduction:
    """Every run that the figures and claims of a scale need, with what is done and what is in the way.

    Args:
        scale: "smoke", "small" or "paper".
        data: Folder of the data sets.
        out: Folder of the runs, those that are done and those to come.
        num_seeds: Seeds of every trained network; the number that the plan has unless given.

    Raises:
        ValueError: There is no such scale.

    >>> plan = plan_reproduction("smoke", out="nowhere")
    >>> len(plan.members["vit-digits"]), plan.members["toy-stages"][0].state
    (3, 'new')
    """
    if scale not in SCALES:
        raise ValueError(f"`scale` must be a known one; got {scale!r}. {choices(scale, SCALES)}")
    shared: dict[Spec, PlannedRun] = {}
    members: dict[str, list[PlannedRun]] = {}
    for entry in ENTRIES[scale]:
        for seed in _seeds(entry, num_seeds):
            run = plan_run(entry.name, scale=entry.scale, seed=seed, epochs=entry.epochs, data=data, out=out)
            members.setdefault(entry.name, []).append(shared.setdefault(run.spec, run))
    by_hand = {entry.name: entry.by_hand for entry in ENTRIES[scale] if entry.by_hand}
    return Reproduction(scale, members, by_hand)


def _seeds(entry: Entry, num_seeds: int | None) -> list[int | None]:
    spec = find_experiment(entry.name).spec(entry.scale)
    if num_seeds is not None and kind_of(spec).is_network:
        return list(range(num_seeds))
    return [*entry.seeds] or [None]


def _is_finished(run: PlannedRun) -> bool:
    return run.state != "refused" and has_run(run.folder) and is_sealed(run.folder)


def _short_of(run: PlannedRun) -> str:
    """Why a run cannot be made, without paths of this machine, because the sentence goes into a report."""
    if run.state == "refused":
        return f"{run.name}/{run.hash} is damaged, or of another spec: move it away, and reproduce again."
    what = kind_of(run.spec).data_folder(run.spec)
    return f"No data: {what} is not in the data folder (--data DIR; `rankrise list` says what is)."


def _hint(name: str, scale: Scale) -> str:
    """Which other scale has the experiment; empty if no other scale has it."""
    larger = [s for s in SCALES if any(entry.name == name for entry in ENTRIES[s]) and s != scale]
    return f": rankrise reproduce --scale {larger[0]} --data DIR has it" if larger else ""
