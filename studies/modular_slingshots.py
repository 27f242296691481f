"""Slingshots of an MLP that learns addition modulo 31 under full-batch Adam, by loss and number format.

    PYTHONPATH=. OMP_NUM_THREADS=1 python studies/modular_slingshots.py --seeds 0 1 2

Every row of the table is a run of 5,000 steps that is logged every 20 steps, with its slingshots, the steps of their
spikes and the lowest loss. The table is in docs/log/gauges.md.
"""

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tests.gauges.modular import train
from torch import Tensor

import rankrise as rr
from rankrise.signals import detect_slingshots


def in_double(logits: Tensor, targets: Tensor) -> Tensor:
    """PyTorch's cross-entropy, computed in float64."""
    return F.cross_entropy(logits.double(), targets)


ARMS: tuple[tuple[str, Callable[..., Tensor], torch.dtype], ...] = (
    ("cross_entropy", F.cross_entropy, torch.float32),
    ("zero_sum_cross_entropy", rr.zero_sum_cross_entropy, torch.float32),
    ("cross_entropy of float64 logits", in_double, torch.float32),
    ("cross_entropy", F.cross_entropy, torch.float64),
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=5000)
    arguments = parser.parse_args()
    names = ("loss", "network", "seed", "slingshots", "spikes at", "lowest loss", "last norm")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for name, loss, dtype in ARMS:
        for seed in arguments.seeds:
            steps, losses, norms = train(loss, seed=seed, num_steps=arguments.steps, dtype=dtype)
            found = detect_slingshots(steps, losses, norms).closed
            peaks = ", ".join(f"{one.peak:.0f}" for one in found)
            kind = str(dtype).removeprefix("torch.")
            print(
                f"| {name} | {kind} | {seed} | {len(found)} | {peaks} | {losses.min():.0e} | {norms[-1]:.1f} |",
                flush=True,
            )
