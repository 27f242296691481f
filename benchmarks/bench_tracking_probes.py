"""What a reading of each probe costs, in steps of training the network of `vit-digits`, on the CPU.

    OMP_NUM_THREADS=1 python benchmarks/bench_tracking_probes.py --out benchmarks/results

Times are CPU times of the process, so that other programs on the machine do not count. Each round times ten steps of
training without a probe, and then one reading of every probe through the tracker; the share of a round is that reading
over the steps between two readings. The table has medians over the rounds, with their 95% intervals by order
statistics.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from scipy.stats import binom
from torch import nn

import rankrise as rr
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.experiments import find_experiment
from rankrise.lab.models import build_model
from rankrise.store import environment
from rankrise.tracking import ClassifierProbe, EntropyProbe, KernelProbe, LazinessProbe

COMMAND = re.sub(r" --out \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))
STEPS = 10  # steps that are timed in every round
EVERY = {"entropy": 100, "classifier": 100, "laziness": 200, "kernel": 1000}  # steps between two readings


def interval(values: list[float]) -> tuple[float, float]:
    """Order statistics between which the median lies with a probability of 95% or a little more."""
    ordered, n = sorted(values), len(values)
    low = max(0, int(binom.ppf(0.025, n, 0.5)) - 1)
    return ordered[low], ordered[n - 1 - low]


def main(rounds: int) -> dict[str, object]:
    """Time the rounds."""
    spec = find_experiment("vit-digits").small
    data = load_dataset(DataConfig("digits"), root=None)
    model = build_model(spec.model, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), spec.training.learning_rate)
    batches = [b for e in range(40) for b in data.train_batches(batch_size=spec.training.batch_size, seed=0, epoch=e)]
    images, labels = next(iter(data.test_batches(batch_size=96)))
    probes = {
        "entropy": EntropyProbe(images[:16]),
        "classifier": ClassifierProbe(),
        "laziness": LazinessProbe(images[:16]),
        "kernel": KernelProbe(images, targets=labels),
    }
    with rr.RankTracker(model, tempfile.mkdtemp(), every=10**9, probes=list(probes.values())):
        times: dict[str, list[float]] = {name: [] for name in ("step", *probes)}
        for number in range(rounds + 2):  # two to warm up
            model.train()
            begin = time.process_time()
            for images, labels in batches[STEPS * number : STEPS * (number + 1)]:
                nn.functional.cross_entropy(model(images), labels).backward()
                optimiser.step()
                optimiser.zero_grad()
            spent = {"step": (time.process_time() - begin) / STEPS}
            for name, probe in probes.items():
                begin = time.process_time()
                probe.read(number)
                spent[name] = time.process_time() - begin
            if number >= 2:
                for name, value in spent.items():
                    times[name].append(value)
    found: dict[str, object] = {"step_ms": 1e3 * statistics.median(times["step"])}
    for name, every in EVERY.items():
        shares = [100 * t / (every * s) for t, s in zip(times[name], times["step"], strict=True)]
        found[name] = {
            "every": every,
            "ms": 1e3 * statistics.median(times[name]),
            "percent": statistics.median(shares),
            "interval": interval(shares),
        }
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    record = {"command": COMMAND, "rounds": arguments.rounds, "environment": environment(), **main(arguments.rounds)}
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "tracking_probes.json").write_text(f"{text}\n")
