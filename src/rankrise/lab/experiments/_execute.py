"""The runner: what is done is skipped, what was cut off goes on, what does not fit is refused."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankrise.lab.experiments._plan import PlannedRun, plan_run
from rankrise.lab.experiments._spec import NamedSpec, to_json
from rankrise.lab.experiments.kinds import Assignment, Spec, kind_of
from rankrise.store import load_run

if TYPE_CHECKING:
    from rankrise.lab.training import ProgressDisplay

Status = Literal["finished", "skipped", "stopped", "diverged"]
_CIRCUITS = ("kq", "vo")  # a copy of `rankrise.heads.CIRCUITS`, because its import would load PyTorch for a skipped run


@dataclass(frozen=True)
class RunNumbers:
    """Where a run stands: the last value of every scalar, and the stable ranks of what was learned.

    `stable_ranks["kq"][i]` is the mean over the heads of layer i, counted from 0, of the stable rank of `Δ(W_K W_Qᵀ)`;
    `"vo"` of `Δ(W_V W_Oᵀ)`. NaN where nothing has changed.
    """

    step: int  # the step of the last row
    scalars: dict[str, float]
    stable_ranks: dict[str, tuple[float, ...]]

    def to_json(self) -> dict[str, Any]:
        """JSON values; a number that is not finite is null."""
        return {
            "step": self.step,
            "scalars": {name: _finite(value) for name, value in self.scalars.items()},
            "stable_ranks": {name: [_finite(value) for value in ranks] for name, ranks in self.stable_ranks.items()},
        }


def summarise_run(path: str | os.PathLike[str]) -> RunNumbers:
    """Read the last scalars and stable ranks of a run, finished or not.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: It is damaged, or of an unknown version.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from rankrise.store import create_run, rows
    >>> run = create_run(Path(tempfile.mkdtemp()), spec={}, initial={"w": torch.zeros(1)})
    >>> run.append(rows(1, "loss", [2.5]))
    >>> run.append(rows(2, "loss", [0.5]))
    >>> summarise_run(run.folder)
    RunNumbers(step=2, scalars={'loss': 0.5}, stable_ranks={})
    """
    import pyarrow.compute as pc

    table = load_run(path)
    if not table.num_rows:
        return RunNumbers(0, {}, {})
    singles = table.filter(pc.equal(table["layer"], -1)).select(["quantity", "value"]).to_pylist()
    ranks = table.filter(pc.equal(table["quantity"], "stable_rank"))
    found = {name: _by_layer(ranks.filter(pc.equal(ranks["circuit"], name))) for name in _CIRCUITS}
    return RunNumbers(
        step=pc.max(table["step"]).as_py(),
        scalars={row["quantity"]: row["value"] for row in singles},
        stable_ranks={name: means for name, means in found.items() if means},
    )


@dataclass(frozen=True)
class RunReport:
    """What became of a run: `finished` now, `skipped` because it was done, `stopped` by a signal, or `diverged`."""

    name: str
    hash: str
    folder: Path
    spec: Spec
    status: Status
    summary: RunNumbers
    message: str = ""  # a sentence for the user
    signal: int | None = None  # the signal that stopped the run

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, with the spec in full."""
        place = {"name": self.name, "hash": self.hash, "folder": str(self.folder), "status": self.status}
        return {**place, **self.summary.to_json(), "spec": to_json(self.spec)}


def execute_run(plan: PlannedRun, *, device: str | None = None, progress: "ProgressDisplay | None" = None) -> RunReport:
    """Do what `plan_run` found: skip, resume or begin.

    Args:
        plan: What `plan_run` found.
        device: Where to train; the best there is unless given.
        progress: Told how far the run has got.

    Raises:
        ValueError: The plan has a problem, or the data or the folder is not what it should be.
    """
    if plan.problem:
        raise ValueError(plan.problem)
    if plan.state == "done":
        return RunReport(plan.name, plan.hash, plan.folder, plan.spec, "skipped", summarise_run(plan.folder))
    is_main = os.environ.get("RANK", "0") == "0"  # under torchrun the first process may still be writing
    config = {"experiment": plan.name, "spec": to_json(plan.spec)}
    kind = kind_of(plan.spec)
    outcome = kind.execute(plan.spec, Assignment(plan.folder, config, plan.data, device, progress))
    return RunReport(
        plan.name,
        plan.hash,
        plan.folder,
        plan.spec,
        outcome.ending,
        summarise_run(plan.folder) if is_main else RunNumbers(0, {}, {}),
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
    progress: "ProgressDisplay | None" = None,
) -> RunReport:
    """Run an experiment in `out/<name>/<hash of its spec>`; one that is done is skipped, one that was cut off goes on.

    Args:
        what: A name, a spec, or a spec with a name for its runs.
        scale: Which spec of a named experiment: "smoke", "small" or "paper".
        seed: Replaces the seed of the spec.
        epochs: Replaces the epochs of the spec.
        data: Folder of the data sets; the value of `RANKRISE_DATA`, or else `data` in this folder, unless given.
        out: Folder of the runs.
        device: Where to train; the best there is unless given.
        progress: Told how far the run has got.

    Raises:
        ValueError: The name is unknown, data is missing, or the folder holds another run or a damaged one.

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


def _by_layer(ranks: Any) -> tuple[float, ...]:
    """Mean over heads at the last step, layer by layer."""
    import pyarrow.compute as pc

    if not ranks.num_rows:
        return ()
    last = ranks.filter(pc.equal(ranks["step"], pc.max(ranks["step"])))
    means = last.group_by("layer").aggregate([("value", "mean")]).sort_by("layer")
    return tuple(means["value_mean"].to_pylist())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
