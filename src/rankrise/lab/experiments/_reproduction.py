"""The plan of a reproduction: which runs, which are done, which cannot be run and why. Nothing is written here."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankrise.lab.experiments._codec import choices
from rankrise.lab.experiments._experiment import SCALES, Scale
from rankrise.lab.experiments._plan import PlannedRun, plan_run
from rankrise.lab.experiments._registry import experiments, find_experiment
from rankrise.lab.experiments._spec import Spec, TrainingSpec
from rankrise.lab.experiments.specs._reproduction import PARTS, Part
from rankrise.store import has_run, is_sealed


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
    """What must run for the figures and claims of a scale, and what is done.

    Args:
        scale: "smoke", "small" or "paper".
        data: Where data sets are looked for.
        out: Where runs are, and go.
        num_seeds: Of every trained network, in place of the plan's.

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
    for part in PARTS[scale]:
        for seed in _seeds(part, num_seeds):
            run = plan_run(part.name, scale=part.scale, seed=seed, epochs=part.epochs, data=data, out=out)
            members.setdefault(part.name, []).append(shared.setdefault(run.spec, run))
    by_hand = {part.name: part.by_hand for part in PARTS[scale] if part.by_hand}
    return Reproduction(scale, members, by_hand)


def _seeds(part: Part, num_seeds: int | None) -> list[int | None]:
    spec = find_experiment(part.name).spec(part.scale)
    if num_seeds is not None and isinstance(spec, TrainingSpec):
        return list(range(num_seeds))
    return [*part.seeds] or [None]


def _is_finished(run: PlannedRun) -> bool:
    return run.state != "refused" and has_run(run.folder) and is_sealed(run.folder)


def _short_of(run: PlannedRun) -> str:
    """Why a run cannot be made, without the paths of this machine: it goes into a report."""
    if run.state == "refused":
        return f"{run.name}/{run.hash} is damaged, or of another spec: move it away, and reproduce again."
    data = run.spec.data if isinstance(run.spec, TrainingSpec) else None
    what = (data.path or data.name) if data is not None else "its data"
    return f"No data: {what} is not in the data folder (--data DIR; `rankrise list` says what is)."


def _hint(name: str, scale: Scale) -> str:
    """At which scale it is."""
    larger = [s for s in SCALES if any(part.name == name for part in PARTS[s]) and s != scale]
    return f": rankrise reproduce --scale {larger[0]} --data DIR has it" if larger else ""
