"""What Dask costs a run: trivial theory runs as a sweep on one worker, minus the same runs in a plain loop.

    OMP_NUM_THREADS=1 python benchmarks/bench_lab_sweep.py --runs 200

Both write run directories. Wall time and processor time (of this process and of its workers) are given for each run;
the time from the start of the sweep to the end of its first run, in which workers start, is given apart. On a machine
that does other work only the processor time means something.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rankrise.lab.experiments import Attempt, PlannedRun, execute_run
from rankrise.lab.sweep import Grid, Standing, Workers, sweep


def processor() -> float:
    """Processor seconds of this process and of its living children."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(time.user + time.system for time in times)


@dataclass
class Clock:
    """Notes wall and processor time whenever a run ends."""

    ends: list[tuple[float, float]] = field(default_factory=list)

    def update(self, standing: Standing) -> None:
        """Nothing to note."""

    def end(self, attempt: Attempt, standing: Standing) -> None:
        """Note the times."""
        assert attempt.fate == "finished", attempt.message
        self.ends.append((time.monotonic(), processor()))

    def note(self, text: str) -> None:
        """Nothing to note."""


def plan(num: int) -> list[PlannedRun]:
    """Runs of a few milliseconds, in a new folder."""
    fields = {"task.dim": (1,), "task.samples": (4,), "task.tokens": (2,)}
    return Grid(("toy-stages",), fields, num_seeds=num, scale="smoke").plan(out=Path(tempfile.mkdtemp()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    num = parser.parse_args().runs
    loop = Clock()
    for run in plan(num):
        execute_run(run)
        loop.ends.append((time.monotonic(), processor()))
    runs, shared, begun = plan(num), Clock(), time.monotonic()
    sweep(runs, out=runs[0].folder.parents[1], workers=Workers(1), watch=shared)
    rows = {}
    for name, clock in (("plain loop", loop), ("sweep, one worker", shared)):
        rows[name] = [1e3 * (clock.ends[-1][k] - clock.ends[0][k]) / (num - 1) for k in (0, 1)]
        print(f"{name}: {rows[name][0]:.1f} ms of wall, {rows[name][1]:.1f} ms of processor time for each run")
    wall, used = (rows["sweep, one worker"][k] - rows["plain loop"][k] for k in (0, 1))
    print(f"overhead: {wall:.1f} ms of wall, {used:.1f} ms of processor time for each of {num} runs")
    print(f"until the first run ended: {shared.ends[0][0] - begun:.1f} s of wall")
