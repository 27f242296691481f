"""Seconds of an optimiser step of ViT-B/16 at the paper's ImageNet recipe, on random images that lie on the device.

Batches of 4096 in eight parts, bf16, with rank tracking as in the spec `vit-imagenet`; reading and decoding JPEGs is
not in it. From this the projection in docs/reproduce.md.

    python benchmarks/bench_imagenet_step.py --out benchmarks/results
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from bench_training_step import Clocked

from rankrise.lab.data import load_dataset
from rankrise.lab.experiments import experiments
from rankrise.lab.models import build_model
from rankrise.lab.training import train
from rankrise.store import environment

IMAGES = 1_281_167
EPOCHS = 360


def main() -> None:
    """Measure a few steps, an epoch each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    spec = experiments()["vit-imagenet"].paper
    batch = spec.training.batch_size
    data = replace(
        spec.data, name="synthetic_images", path=None, num_train=batch, num_test=64, num_classes=spec.model.num_classes
    )
    training = replace(
        spec.training, epochs=arguments.steps, warmup_epochs=1, num_spectra=2, evaluate_every=arguments.steps
    )
    clocked = Clocked(load_dataset(data))
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(spec.model)
        train(model, clocked, training, out=folder, device="cuda")
    seconds = [b - a for a, b in pairwise(clocked.begins[2:])]  # the first two compile
    step = statistics.median(seconds)
    row = {
        "seconds": step,
        "seconds_by_step": seconds,
        "batch_size": batch,
        "images_per_second": batch / step,
        "hours_of_360_epochs": EPOCHS * IMAGES / batch * step / 3600,
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
    }
    print(row, flush=True)
    if arguments.out is not None:
        command = f"python benchmarks/{Path(__file__).name} --steps {arguments.steps}"
        record = {"command": command, "seed": spec.seed, "environment": environment(), "rows": [row]}
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "imagenet_step.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
