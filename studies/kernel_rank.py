"""The rank of the empirical kernel while a small ViT learns digits, from an ordinary and from a small start.

    OMP_NUM_THREADS=1 python studies/kernel_rank.py --seeds 0 1 2

The ViT has two layers of width 64 and is trained by AdamW at 1e-3 in batches of 64; the kernel is that of 96 test
images. Every row of the table is a measurement. The table is in docs/log/gauges.md.
"""

import argparse
import tempfile

import torch
from torch import nn

import rankrise as rr
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.models import ViTConfig, build_model
from rankrise.tracking import KernelProbe, LazinessProbe, at

STEPS = (0, 25, 75, 200, 400)
COLUMNS = ("kernel_effective_rank", "kernel_stable_rank", "kernel_cosine", "kernel_alignment")


def run(init_scale: float, seed: int) -> list[str]:
    """Train once, and return the rows of the table."""
    data = load_dataset(DataConfig("digits"), root=None)
    sizes = {"width": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16, "mlp_width": 128}
    config = ViTConfig(image_size=8, num_channels=1, patch_size=2, init_scale=init_scale, **sizes)
    model = build_model(config, seed=seed)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    images, labels = next(iter(data.test_batches(batch_size=96)))
    tests, classes = next(iter(data.test_batches(batch_size=data.num_test)))
    probes = [KernelProbe(images, targets=labels), LazinessProbe(images[:16])]
    step, rows = 0, []
    options = {"every": at(*STEPS), "spectra": at(*STEPS), "quantities": (), "probes": probes}
    with rr.RankTracker(model, tempfile.mkdtemp(), **options) as tracker:
        tracker.step(0)
        for epoch in range(100):
            for inputs, targets in data.train_batches(batch_size=64, seed=seed, epoch=epoch):
                if step in STEPS:
                    with torch.no_grad():
                        accuracy = (model(tests).argmax(-1) == classes).float().mean().item()
                    rows.append(f"{step} | {accuracy:.2f}")
                if step == STEPS[-1]:
                    break
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimiser.step()
                optimiser.zero_grad()
                step += 1
                tracker.step(step)
    found = rr.open_run(tracker.out)
    curves = [found.curve(name, circuit="ntk") for name in COLUMNS] + [found.curve("linearisation_error")]
    lines = []
    for step, row in zip(STEPS, dict.fromkeys(rows), strict=True):
        numbers = (float(curve.values[curve.steps == step][0]) for curve in curves)
        lines.append(f"| {init_scale:g} | {seed} | {row} | {' | '.join(f'{number:.2f}' for number in numbers)} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    names = ("scale", "seed", "step", "accuracy", "effective rank", "stable rank", "cosine", "alignment", "E_lin")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for scale in (1.0, 0.1):
        for seed in parser.parse_args().seeds:
            print("\n".join(run(scale, seed)), flush=True)
