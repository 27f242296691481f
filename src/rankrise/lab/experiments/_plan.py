"""What would run: where, whether it is done, and what is in the way. Nothing is written here."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rankrise.lab.experiments._folders import NamedSpec, read_spec, run_folder
from rankrise.lab.experiments._kinds import missing_data
from rankrise.lab.experiments._registry import find_experiment
from rankrise.lab.experiments._spec import Spec, TrainingSpec, spec_hash
from rankrise.store import has_run, is_sealed, verify_run

State = Literal["new", "unfinished", "done", "refused"]


@dataclass(frozen=True)
class PlannedRun:
    """One run to come, or one that is done.

    `problem` says why it cannot run, in a sentence; it is empty when it can.
    """

    name: str
    spec: Spec
    folder: Path
    state: State
    problem: str = ""
    data: Path | None = None

    @property
    def hash(self) -> str:
        """The name of the spec."""
        return spec_hash(self.spec)


def vary(spec: Spec, *, seed: int | None = None, epochs: int | None = None) -> Spec:
    """The spec with another seed, or for a quick look with other epochs.

    The warm-up keeps its length, but takes at most half of the new epochs (or the share it had, if that was more).

    >>> from rankrise.lab.experiments import experiments
    >>> quick = vary(experiments()["vit-cifar10"].paper, epochs=10)
    >>> quick.training.epochs, quick.training.warmup_epochs
    (10, 5.0)
    """
    if seed is not None:
        spec = replace(spec, seed=seed)
    if epochs is not None and isinstance(spec, TrainingSpec):
        training = spec.training
        share = max(0.5, training.warmup_epochs / training.epochs)
        warmup = min(training.warmup_epochs, share * epochs)
        spec = replace(spec, training=replace(training, epochs=epochs, warmup_epochs=warmup))
    return spec


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
        scale: Of a named experiment: "smoke", "small" or "paper".
        seed: In place of the spec's.
        epochs: In place of the spec's.
        data: Where data sets are looked for; unless given `RANKRISE_DATA`, else `data` here.
        out: Where runs go.

    Raises:
        ValueError: An unknown name or scale, or a name that is no folder's.
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
    """The run as its folder is now: another process may have finished it."""
    state, problem = _look(run.folder, run.spec)
    return replace(run, state=state, problem=problem or run.problem)


def _resolve(what: str | Spec | NamedSpec, scale: str) -> NamedSpec:
    if isinstance(what, str):
        return NamedSpec(what, find_experiment(what).spec(scale))
    return what if isinstance(what, NamedSpec) else NamedSpec("own", what)


def _look(folder: Path, spec: Spec) -> tuple[State, str]:
    """What the folder holds; a finished run counts only if every file is as its manifest says."""
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
