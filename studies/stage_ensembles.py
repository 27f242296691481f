"""What an ensemble of heads shows, as a figure, and what stages cost, with fitted exponents.

    rankrise sweep ten-thousand-heads --out heads
    python studies/stage_ensembles.py figure heads docs/figures
    OMP_NUM_THREADS=1 python studies/stage_ensembles.py scaling

`figure` draws how many coordinates leave, how many stages tie, and how far predicted activation times err at the α of
the runs. `scaling` measures processor seconds of Algorithm 1 against p, N and the number of stages, and of the flow
against α, fits exponents, measures what stacking heads in one process could save, and projects a million heads. Both
outcomes are in docs/log/sweeps.md.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

import rankrise as rr
from rankrise import theory
from rankrise.runs import Array
from rankrise.view import Axis, FigureData, Panel, Trace, draw, numbers

TOKENS, SAMPLES, DIM = 6, 100, 4
CORES = (8, 64, 512)
HEADS = 1_000_000


def head(seed: int, *, dim: int = DIM, samples: int = SAMPLES) -> theory.DiagonalNetwork:
    """A head of `toy-ensemble`, or one of another size."""
    task = theory.teacher_task(samples=samples, tokens=TOKENS, dim=dim, seed=seed)
    return theory.attention_head(task.x, task.y)


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def exponent(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The slope of log y over log x by least squares, and the largest factor by which a point is off the fit."""
    slope, offset = np.polyfit(np.log(x), np.log(y), 1)
    return float(slope), float(np.exp(np.abs(np.log(y) - slope * np.log(x) - offset).max()))


def report(name: str, x: Sequence[float], y: Sequence[float], unit: str = "s") -> None:
    """Print points and the exponent that fits them."""
    slope, off = exponent(x, y)
    points = ", ".join(f"{value:g}: {found:.3g} {unit}" for value, found in zip(x, y, strict=True))
    print(f"{name}: {points}; exponent {slope:.2f}, points off by at most {off:.2f}x", flush=True)


def solved(seed: int, *, dim: int = DIM, samples: int = SAMPLES) -> float:
    """Processor seconds of Algorithm 1 on a head."""
    net = head(seed, dim=dim, samples=samples)
    return seconds(lambda: theory.incremental_stages(net))


def scaling(seeds: int) -> None:
    """Measure, fit and project."""
    theory.incremental_stages(head(0))  # the first call imports and warms up
    dims, sizes = (2, 4, 8), (50, 100, 200, 400)
    cost = [np.mean([solved(seed, dim=dim) for seed in range(seeds)]) for dim in dims]
    report("Algorithm 1 to its end against p", [2 * dim for dim in dims], cost)
    by_size = [np.mean([solved(seed, samples=num) for seed in range(seeds)]) for num in sizes]
    report("Algorithm 1 on 8 weights against N", sizes, by_size)
    _against_stages(seeds)
    _against_alpha(seeds)
    _stacked()
    each = cost[dims.index(DIM)]
    print(f"{each:.3g} s for each head of {2 * DIM} weights, {SAMPLES} samples of {TOKENS} tokens")
    for cores in CORES:
        print(f"projection, not measured: {HEADS:,} heads on {cores} cores: {each * HEADS / cores / 3600:.2g} h")


def _against_stages(seeds: int, dim: int = 8) -> None:
    """Time until stage K is done, over the stages of one head."""
    totals = []
    for seed in range(seeds):
        ends = [time.process_time()]
        theory.incremental_stages(head(seed, dim=dim), on_stage=partial(_note, ends))
        totals.append(np.array(ends[1:]) - ends[0])
    marks = [k for k in (2, 4, 8, 12, 16) if k <= min(map(len, totals))]
    cost = [np.mean([total[k - 1] for total in totals]) for k in marks]
    report(f"Algorithm 1 on {2 * dim} weights until stage K", marks, cost)


def _note(ends: list[float], _: float) -> None:
    ends.append(time.process_time())


def _against_alpha(seeds: int) -> None:
    """Seconds and gradients of the flow to 1.2 times the last stage."""
    powers = (8, 32, 1024, 1_000_000)
    found = np.zeros((len(powers), seeds, 2))
    for seed in range(seeds):
        net = head(seed)
        t_end = 1.2 * float(theory.incremental_stages(net).times[-1])
        start = theory.gaussian_start(net.num_weights, seed=seed)
        for row, power in enumerate(powers):
            begun = time.process_time()
            flow = theory.solve_flow(net, *start, log10_alpha=-power, t_end=t_end)
            found[row, seed] = time.process_time() - begun, flow.num_gradients
    report("the flow on 8 weights against log10(1/α)", powers, found[..., 0].mean(1).tolist())
    report("its gradients", powers, found[..., 1].mean(1).tolist(), unit="")


def _stacked(num: int = 4, repeats: int = 100) -> None:
    """How much of Algorithm 1 is gradients, and what stacking the gradients of several heads saves."""
    nets = [head(seed) for seed in range(num)]
    ends = [theory.incremental_stages(net) for net in nets]
    whole = seconds(lambda: [theory.incremental_stages(net) for net in nets]) / num
    points = [stages.products[-1] for stages in ends]
    tasks = [theory.teacher_task(samples=SAMPLES, tokens=TOKENS, dim=DIM, seed=seed) for seed in range(num)]
    x, y = (torch.stack([getattr(task, name) for task in tasks]) for name in ("x", "y"))
    a, b = (part[:, None, None] for part in torch.stack(points).chunk(2, dim=1))

    def together() -> None:
        s = torch.softmax((x * a) @ x.mT, dim=-1)
        m = s @ x
        r = m * b - y
        g = (r * b) @ x.mT
        p = g.sub_((s * g).sum(-1, keepdim=True)).mul_(s)
        (x * (p @ x)).sum((1, 2)), (m * r).sum((1, 2))

    pairs = list(zip(nets, points, strict=True))
    one = seconds(lambda: [net.loss_and_gradient(q) for _ in range(repeats) for net, q in pairs]) / (repeats * num)
    stacked = seconds(lambda: [together() for _ in range(repeats)]) / (repeats * num)
    share = np.mean([stages.num_gradients for stages in ends]) * one / whole
    print(
        f"a gradient takes {1e3 * one:.3g} ms, in a stack of {num} heads {1e3 * stacked:.3g} ms; gradients are "
        f"{share:.0%} of Algorithm 1, so that stacking them saves at most {share * (1 - stacked / one):.0%}"
    )


def numbers_of(folder: Path, name: str) -> Array:
    """One number of every head of every finished run below a folder."""
    found = [run.rows(name, "")["value"].to_numpy() for run in rr.open_sweep(folder)]
    return np.concatenate(found) if found else np.zeros(0)


def figure(folder: Path, out: Path) -> None:
    """Draw the distributions, and print their numbers."""
    left, tied, stages = (numbers_of(folder, name) for name in ("num_left", "num_ties", "num_stages"))
    errors, gaps = numbers_of(folder, "prediction_error"), numbers_of(folder, "smallest_gap")
    statuses = numbers_of(folder, "status_of_head")
    known = list(theory.Status)
    ended = {known[int(s)].value: int((statuses == s).sum()) for s in np.unique(statuses)}
    print(f"{len(left)} heads, {len(errors)} predicted; ended: {ended}")
    for name, values in (("coordinates that left", left), ("stages that tie", tied), ("stages", stages)):
        print(f"heads by {name}: {_counts(values)}")
    for name, values in (("prediction error", errors), ("smallest lead of a winner", gaps)):
        print(f"{name}: quantiles 5%, 50%, 95%, 100%: {np.quantile(values, (0.05, 0.5, 0.95, 1)).tolist()}")
    panels = (
        _bars("coordinates that leave", left, "heads"),
        _bars("stages", stages, ""),
        _cumulative("error of predicted times", "largest relative error of a time", errors),
        _cumulative("closest winner's lead", "(Δ₂ − Δ₁) / Δ₁", gaps),
    )
    record = FigureData(
        id="stage_ensemble",
        title=f"Stages of {len(left):,} heads with eight weights",
        text=(
            "Left: in how many heads so many coordinates leave the support again, and how many stages there are. "
            f"Right: shares of heads below a value. {int((tied > 0).sum())} heads have a tie. Errors are of "
            f"{len(errors)} heads at α = 1e-32."
        ),
        panels=panels,
        rows=1,
        cols=len(panels),
        sources=tuple(run.source for run in rr.open_sweep(folder)),
    )
    out.mkdir(parents=True, exist_ok=True)
    print(f"wrote {draw(record, out / 'stage_ensemble.png')}")


def _counts(values: Array) -> dict[int, int]:
    return {int(value): int((values == value).sum()) for value in np.unique(values)}


def _bars(title: str, values: Array, label: str) -> Panel:
    """Counts of whole numbers, as steps."""
    edges = np.arange(values.min(), values.max() + 2)
    heights = [float((values == edge).sum()) for edge in edges]
    trace = Trace(numbers(edges - 0.5), numbers(np.array(heights)), group="heads", style="steps")
    return Panel(title, Axis(title), Axis(label, low=0.0), (trace,))


def _cumulative(title: str, label: str, values: Array) -> Panel:
    """The share of heads that is at most x."""
    values = np.sort(values[np.isfinite(values)])
    share = np.arange(1, len(values) + 1) / len(values)
    trace = Trace(numbers(values), numbers(share), group="heads", style="steps")
    first, last = int(np.floor(np.log10(values[0]))), int(np.ceil(np.log10(values[-1])))
    ticks = tuple(10.0**power for power in range(first, last + 1))
    x = Axis(label, log=True, low=ticks[0], high=ticks[-1], ticks=ticks)
    return Panel(title, x, Axis("share of heads", low=0.0, high=1.0), (trace,))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(dest="part", required=True)
    drawn = parts.add_parser("figure")
    drawn.add_argument("runs", type=Path)
    drawn.add_argument("out", type=Path)
    parts.add_parser("scaling").add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part == "figure":
        figure(arguments.runs, arguments.out)
    else:
        scaling(arguments.seeds)
