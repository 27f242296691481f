"""The runner: what is done is skipped, what was cut off goes on, what does not fit is refused."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankrise.lab.experiments._folders import NamedSpec
from rankrise.lab.experiments._kinds import execute
from rankrise.lab.experiments._plan import PlannedRun, plan_run
from rankrise.lab.experiments._prediction import read_prediction
from rankrise.lab.experiments._prediction_spec import PredictionSpec
from rankrise.lab.experiments._spec import Spec, to_json
from rankrise.lab.experiments._summary import RunSummary, summarise_run

if TYPE_CHECKING:
    from rankrise.lab.training import Progress

Status = Literal["finished", "skipped", "stopped", "diverged"]


@dataclass(frozen=True)
class RunReport:
    """What became of a run: `finished` now, `skipped` as it was done before, `stopped` by a signal, or `diverged`."""

    name: str
    hash: str
    folder: Path
    spec: Spec
    status: Status
    summary: RunSummary
    message: str = ""  # a sentence for the user
    signal: int | None = None  # that stopped it

    def to_json(self) -> dict[str, Any]:
        """JSON values; the spec in full."""
        place = {"name": self.name, "hash": self.hash, "folder": str(self.folder), "status": self.status}
        found = {**place, **self.summary.to_json(), "spec": to_json(self.spec)}
        if isinstance(self.spec, PredictionSpec):
            found["prediction"] = read_prediction(self.folder).to_json()
        return found


def execute_run(plan: PlannedRun, *, device: str | None = None, progress: "Progress | None" = None) -> RunReport:
    """Do what `plan_run` found: skip, resume or begin.

    Args:
        plan: Of `plan_run`.
        device: Where to train; the best there is unless given.
        progress: Told of every step.

    Raises:
        ValueError: The plan has a problem, or the data or the folder is not what it should be.
    """
    if plan.problem:
        raise ValueError(plan.problem)
    if plan.state == "done":
        return RunReport(plan.name, plan.hash, plan.folder, plan.spec, "skipped", summarise_run(plan.folder))
    is_main = os.environ.get("RANK", "0") == "0"  # under torchrun the first process writes, perhaps still
    outcome = execute(plan.spec, plan.folder, name=plan.name, root=plan.data, device=device, progress=progress)
    return RunReport(
        plan.name,
        plan.hash,
        plan.folder,
        plan.spec,
        outcome.ending,
        summarise_run(plan.folder) if is_main else RunSummary(0, {}, {}),
        outcome.message,
        outcome.signal,
    )


def run_experiment(
    what: str | Spec | NamedSpec,
    *,
    scale: str = "small",
    seed: int | None = None,
    epochs: int | None = None,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs",
    device: str | None = None,
    progress: "Progress | None" = None,
) -> RunReport:
    """Run an experiment in `out/<name>/<hash of its spec>`; one that is done is skipped, one that was cut off goes on.

    Args:
        what: A name, a spec, or a spec with a name for its runs.
        scale: Of a named experiment: "smoke", "small" or "paper".
        seed: In place of the spec's.
        epochs: In place of the spec's.
        data: Where data sets are looked for; unless given `RANKRISE_DATA`, else `data` here.
        out: Where runs go.
        device: Where to train; the best there is unless given.
        progress: Told of every step.

    Raises:
        ValueError: An unknown name, missing data, or a folder that holds another run or a damaged one.

    >>> import tempfile
    >>> out = tempfile.mkdtemp()
    >>> report = run_experiment("vit-cifar10", scale="smoke", out=out)
    >>> report.status, report.summary.step, len(report.summary.stable_ranks["kq"])
    ('finished', 8, 2)
    >>> run_experiment("vit-cifar10", scale="smoke", out=out).status
    'skipped'
    """
    plan = plan_run(what, scale=scale, seed=seed, epochs=epochs, data=data, out=out)
    return execute_run(plan, device=device, progress=progress)
