"""How often slingshots are found where there are none, and missed where they are, on seeds that tuned nothing.

    PYTHONPATH=src:. OMP_NUM_THREADS=1 python studies/slingshot_rates.py --first 10000

The families of curves are those of `tests/signals/slingshots.py`, whose seeds 0 to 999 tuned the detector. The tables
are in docs/log/gauges.md.
"""

import argparse

import numpy as np
from tests.signals.slingshots import FAMILIES, planted, without

from rankrise.signals import detect_slingshots


def false_ones(family: str, seeds: range) -> int:
    """In how many curves of a family without slingshots one is found."""
    return sum(bool(detect_slingshots(*without(family, seed)).closed) for seed in seeds)


def missed_ones(every: int, noise: float, seeds: range) -> tuple[int, int, int]:
    """How many planted spikes there are, how many are missed, and how many are found where none is."""
    total = missed = extra = 0
    for seed in seeds:
        steps, loss, norm, peaks = planted(seed, every=every, noise=noise)
        found = [one.peak for one in detect_slingshots(steps, loss, norm).found]
        hits = sum(min((abs(peak - f) for f in found), default=np.inf) <= 1.5 * every for peak in peaks)
        total, missed, extra = total + len(peaks), missed + len(peaks) - hits, extra + len(found) - hits
    return total, missed, extra


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=10_000)
    parser.add_argument("--curves", type=int, default=1000)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.curves)
    print(f"| family | curves with a false slingshot, of {len(seeds)} |\n|---|---|")
    for family in FAMILIES:
        print(f"| {family} | {false_ones(family, seeds)} |", flush=True)
    print("\n| every | noise in decades | planted | missed | too many |\n|---|---|---|---|---|")
    for noise in (0.0, 0.1):
        for every in (20, 40, 100):
            total, missed, extra = missed_ones(every, noise, seeds[: len(seeds) // 10])
            print(f"| {every} | {noise:g} | {total} | {missed} | {extra} |", flush=True)
