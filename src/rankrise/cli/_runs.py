"""Execute runs one after another: results go to stdout, everything else to stderr."""

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from rankrise._tables import table
from rankrise.cli._errors import is_main_process, print_error

if TYPE_CHECKING:
    from rankrise.lab.experiments import PlannedRun, RunReport
    from rankrise.lab.training import ProgressDisplay

_SCORES = {  # scores of the last row of each quantity, with their formats
    "train_loss": "train loss {:.4g}",
    "train_accuracy": "train accuracy {:.1%}",
    "test_loss": "test loss {:.4g}",
    "test_accuracy": "test accuracy {:.1%}",
}


def run_plans(plans: "Sequence[PlannedRun]", *, device: str | None, as_json: bool) -> int:
    """Execute plans and return the exit code. A failed run does not stop the others; a signal does.

    In a distributed run (torchrun sets `RANK`) only the first process prints.
    """
    from rankrise.lab.experiments import execute_run

    is_main = is_main_process()
    reports: list[RunReport] = []
    failed: list[str] = []
    for number, plan in enumerate(plans, 1):
        label = f"{plan.name}/{plan.hash}"
        if is_main and not plan.problem:
            place = f" ({number} of {len(plans)})" if len(plans) > 1 else ""
            typer.echo(f"{label}{place}: {_intention(plan)}", err=True)
        try:
            with _progress(is_main and plan.state != "done") as progress:
                report = execute_run(plan, device=device, progress=progress)
        except Exception as error:
            failed.append(label)
            if is_main:
                print_error(error, about=label)
            continue
        reports.append(report)
        if is_main and not as_json:
            typer.echo(describe(report))
        if report.status == "diverged":
            failed.append(label)
        if report.status in ("stopped", "diverged") and is_main:
            typer.echo(f"rankrise: {label}: {report.message}", err=True)
        if report.status == "stopped":
            break
    if is_main:
        _finish(reports, failed, num_plans=len(plans), as_json=as_json)
    if reports and reports[-1].status == "stopped":
        return 128 + (reports[-1].signal or signal.SIGTERM)
    return 1 if failed else 0


def describe(report: "RunReport") -> str:
    """Return a few lines: scores, and the stable ranks of both circuits by layer."""
    summary = report.summary
    scores = [text.format(summary.scalars[name]) for name, text in _SCORES.items() if name in summary.scalars]
    head = f"{report.name}/{report.hash}, seed {report.spec.seed}: " + ", ".join([f"step {summary.step}", *scores])
    rows = [
        {"circuit": circuit, **{f"layer {n}": f"{rank:.2f}" for n, rank in enumerate(ranks)}}
        for circuit, ranks in summary.stable_ranks.items()
    ]
    if not rows:
        return head
    return f"{head}\nstable rank of the change, mean over heads:\n{table(rows, left=('circuit',))}"


def _intention(plan: "PlannedRun") -> str:
    if plan.state == "done":
        return f"done before, in {plan.folder}; skipped"
    if plan.state != "unfinished":
        return f"new, in {plan.folder}"
    from rankrise.lab.experiments import kind_of

    again = "" if kind_of(plan.spec).can_resume else "; starts over"
    return f"unfinished, in {plan.folder}{again}"


@contextlib.contextmanager
def _progress(is_wanted: bool) -> "Iterator[ProgressDisplay | None]":
    """Show a bar or lines on stderr, which are closed on every exit."""
    from rankrise.lab.training import show_progress

    progress = show_progress() if is_wanted else None
    try:
        yield progress
    finally:
        if progress is not None:
            progress.close()


def _finish(reports: "Sequence[RunReport]", failed: Sequence[str], *, num_plans: int, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([report.to_json() for report in reports], indent=1, allow_nan=False))
    if num_plans > 1:
        statuses = [report.status for report in reports if report.status != "diverged"]
        counts = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)]
        left = num_plans - len(statuses) - len(failed)
        counts += [f"{len(failed)} failed ({', '.join(failed)})"] * bool(failed) + [f"{left} not begun"] * bool(left)
        typer.echo(f"{num_plans} runs: {', '.join(counts)}.", err=True)
    written = [str(report.folder) for report in reports if report.status != "skipped"]
    if written:
        typer.echo(f"wrote {', '.join(written)}", err=True)
