"""Progress over a plan: which run of how many, how far, how long all of it will take."""

import io
from types import SimpleNamespace

from rankrise.cli._watch import PlanWatch
from rankrise.lab.experiments import Attempt, plan_run
from rankrise.lab.training import Report


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watched(stream):
    clock = SimpleNamespace(now=0.0)
    run = plan_run("vit-cifar10", scale="smoke", out="nowhere")
    watch = PlanWatch(stream, clock=lambda: clock.now)
    watch.begin(run, 3, 12, estimate=20.0, after=100.0)
    for now, step in ((1.0, 5), (16.0, 50), (17.0, 60), (40.0, 90)):
        clock.now = now
        watch.update(Report(step, 100, 1, 1, rate=step / now if step != 90 else None))
    watch.end(Attempt(run, "finished", "all is well", 41.0), 99.0)
    watch.end(Attempt(run, "skipped"), 99.0)
    return run, stream.getvalue()


def test_plain_lines():
    run, text = watched(io.StringIO())
    label = f"[ 3/12] vit-cifar10/{run.hash}, seed 0"
    assert text.splitlines() == [
        f"{label}: 50%, about 1 min 56 s left",
        f"{label}: 90%, about 1 min 40 s left",  # no rate: the estimate is used up
        f"{label}: finished after 41 s; about 1 min 39 s left",
    ]


def test_a_terminal_keeps_one_line_a_run():
    _, text = watched(Terminal())
    assert text.count("\n") == 1
    assert text.count("\r") == 6


def test_why_a_run_failed_is_said():
    stream = io.StringIO()
    watch = PlanWatch(stream)
    run = plan_run("vit-cifar10", scale="smoke", out="nowhere")
    watch.begin(run, 1, 1, 1.0, 0.0)
    watch.end(Attempt(run, "failed", "No disk.", 2.0), 0.0)
    assert stream.getvalue().endswith(": failed after 2 s (No disk.); nearly done\n")
