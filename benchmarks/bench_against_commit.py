"""What a change gained on the paths that are hot: this tree against the tree of an older commit, in turn.

    git worktree add ../before 36c35a7
    OMP_NUM_THREADS=1 python benchmarks/bench_against_commit.py --before ../before --pairs 7

Every measurement is a process of its own on one thread, and the two trees take turns: before and now, now and before.
What is counted is the processor's time, user and system, of the call alone, without imports. The result is the median
of the ratios before / now over the pairs of processes, with the interval from 2,000 bootstrap samples of the pairs. A
machine that is shared with other work changes processor seconds too, but both sides of a pair alike.

    summary     `diff(summary=True)` of a bfloat16 pair of 65 M parameters with rank 4 planted at 0.3% in every matrix
    extraction  `extract_lora(rank=32)` of the pair of `bench_checkpoints.py`, 49 M parameters, in float32 and bfloat16
    ranks       `RankTracker.step` of a model of GPT-2 small's shape with ranks due, the mean of the second and third
                step; the change is noise (a flat spectrum), or a change of rank 2 with that noise (steep)

For a summary the norms of this tree are also compared with those of a float64 sum.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from bench_checkpoints import plant
from safetensors.torch import save_file

from rankrise.store import environment

CLOCK = """
import json, sys, tempfile, time, warnings
import torch
torch.set_num_threads(1)
warnings.simplefilter("ignore")
folder, kind = sys.argv[1:]
"""
SUMMARY = """
from pathlib import Path
from rankrise.checkpoints import diff
begin = time.process_time()
found = diff(Path(folder) / "base", Path(folder) / "tuned", heads=False, summary=True)
seconds = time.process_time() - begin
rows = {row.name: [row.norm, row.base_norm, row.spectral_norm, row.rank_above_floor] for row in found.weights()}
print(json.dumps({"seconds": seconds, "numbers": rows}))
"""
EXTRACTION = """
from pathlib import Path
from rankrise.checkpoints import extract_lora
with tempfile.TemporaryDirectory() as out:
    begin = time.process_time()
    done = extract_lora(Path(folder) / "base", Path(folder) / "tuned", out=Path(out) / "adapter", rank=32)
    seconds = time.process_time() - begin
print(json.dumps({"seconds": seconds, "numbers": {name: [error] for name, error in done.errors.items()}}))
"""
TRACKER = """
import statistics
from torch import nn
import rankrise as rr
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = 12
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(768, 768) for _ in range(4))
torch.manual_seed(0)
model = nn.ModuleList(Attention() for _ in range(12))
planted = [0.02 * torch.randn(768, 2) @ torch.randn(2, 768) for _ in range(48)]
with tempfile.TemporaryDirectory() as out:
    tracker = rr.RankTracker(model, out=out, every=1, spectra=lambda step: False)
    seconds = []
    for step in range(1, 4):
        with torch.no_grad():
            for change, weight in zip(planted, (p for p in model.parameters() if p.ndim == 2)):
                weight += 1e-3 * torch.randn(768, 768)
                if kind == "ranks-steep":
                    weight += change / step
        begin = time.process_time()
        tracker.step(step)
        seconds.append(time.process_time() - begin)
    tracker.close()
    table = rr.load_run(out)
rows = table.filter((table["quantity"].to_numpy() == "stable_rank") & (table["step"].to_numpy() == 3)).to_pylist()
numbers = {f"{r['layer']} {r['head']} {r['circuit']}": [r["value"]] for r in rows if r["circuit"] in ("kq", "vo")}
print(json.dumps({"seconds": statistics.mean(seconds[1:]), "numbers": numbers}))
"""
TASKS = {
    "summary": (SUMMARY, "bfloat16"),
    "extraction-float32": (EXTRACTION, "float32"),
    "extraction-bfloat16": (EXTRACTION, "bfloat16"),
    "ranks-flat": (TRACKER, None),
    "ranks-steep": (TRACKER, None),
}


def summary_pair(folder: Path) -> dict[str, list[float]]:
    """Save a bfloat16 pair of 65 M parameters, of the shapes of a Llama of width 2048; returns ‖Δ‖ and ‖W‖."""
    generator = torch.Generator().manual_seed(0)
    base, tuned = {}, {}
    for name, shape in {"q": (2048, 2048), "k": (512, 2048), "v": (512, 2048), "o": (2048, 2048),
                        "gate": (5632, 2048), "up": (5632, 2048), "down": (2048, 5632),
                        "lm_head": (8192, 2048)}.items():  # fmt: skip
        weight = 0.02 * torch.randn(*shape, generator=generator)
        left, right = (torch.linalg.qr(torch.randn(n, 4, generator=generator)).Q for n in shape)
        change = left @ right.mT * (0.003 * weight.norm() / 2)
        base[f"{name}.weight"], tuned[f"{name}.weight"] = weight.bfloat16(), (weight + change).bfloat16()
    for name, tensors in (("base", base), ("tuned", tuned)):
        (folder / name).mkdir(parents=True)
        save_file(tensors, folder / name / "model.safetensors")
    return {
        name: [float((tuned[name].double() - weight.double()).norm()), float(weight.double().norm())]
        for name, weight in base.items()
    }


def run(tree: Path, code: str, folder: Path, kind: str) -> dict[str, object]:
    """One measurement in a process of its own, with the source of `tree`."""
    variables = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CLOCK + code, str(folder), kind]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise RuntimeError(f"{tree} failed at {kind}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def furthest(one: dict[str, list[float]], other: dict[str, list[float]]) -> list[float]:
    """Of every number in a row, the largest difference over all rows, relative to the larger one."""
    assert one.keys() == other.keys()
    differences = [
        [
            abs(a - b) / max(abs(a), abs(b), 1e-300) if a != b else 0.0
            for a, b in zip(one[name], other[name], strict=True)
        ]
        for name in one
    ]
    return [float(f"{max(column):.2g}") for column in zip(*differences, strict=True)]


def interval(ratios: list[float]) -> tuple[float, float]:
    """The middle 95% of the medians of 2,000 bootstrap samples."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[-51]


def measure(
    task: str, before: Path, now: Path, folder: Path, pairs: int, exact: dict[str, list[float]]
) -> dict[str, object]:
    """The ratio of one task over some pairs of processes; and how far the numbers of this tree are from `exact`."""
    code, _ = TASKS[task]
    taken: dict[Path, list[float]] = {before: [], now: []}
    numbers: dict[Path, dict[str, list[float]]] = {}
    for pair in range(pairs):
        for tree in (before, now) if pair % 2 == 0 else (now, before):
            found = run(tree, code, folder, task)
            taken[tree].append(found["seconds"])
            numbers[tree] = found["numbers"]
    ratios = [one / other for one, other in zip(taken[before], taken[now], strict=True)]
    return {
        "task": task, "pairs": pairs, "median_ratio": round(statistics.median(ratios), 3),
        "interval": [round(bound, 3) for bound in interval(ratios)],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "cpu_seconds": {name: [round(s, 3) for s in taken[tree]] for name, tree in (("before", before), ("now", now))},
        "furthest_from_before": furthest(numbers[before], numbers[now]),
        "furthest_from_exact": furthest({name: numbers[now][name][:2] for name in exact}, exact),
    }  # fmt: skip


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older commit")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    args = parser.parse_args()
    now = Path(__file__).resolve().parents[1]
    print(json.dumps(environment()), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for task in args.tasks:
            place = folder / task
            exact: dict[str, list[float]] = {}
            if task == "summary":
                exact = summary_pair(place)
            elif task.startswith("extraction"):
                plant(place, getattr(torch, TASKS[task][1]), hidden=768, layers=7)
            else:
                place.mkdir()
            print(json.dumps(measure(task, args.before.resolve(), now, place, args.pairs, exact)), flush=True)


if __name__ == "__main__":
    main()
