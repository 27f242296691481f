"""A ViT on digits at learning rates that are too high: attention entropy, and what σReparam does about it.

    OMP_NUM_THREADS=1 python studies/hot_digits.py --seeds 0 1 2

The network of `vit-digits` at scale small is trained by Adam at a constant rate without warm-up, in batches of 64.
Every row of the table is a run. Its columns are the test accuracy at the end, the lowest entropy share of any head over
the run, the number of heads below 0.1 at the end, the largest logit over the run, how far the norm of any effective
weight was above |γ| (σReparam only, median and largest over weights and measurements), and process CPU seconds. The
table is in docs/log/gauges.md.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import rankrise as rr
from rankrise.gauges import SigmaReparam
from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.experiments import find_experiment
from rankrise.lab.models import build_model
from rankrise.tracking import EntropyProbe

EVERY = 8  # steps between two readings


class Setting(NamedTuple):
    """One line of the study: how the weights are parametrised, the rate, and the steps of linear warm-up."""

    name: str
    rate: float = 3e-2
    warmup: int = 0
    iterations: int = 1


SETTINGS = (
    Setting("plain"),
    Setting("spectral_norm of torch"),
    Setting("sigma"),
    Setting("sigma", iterations=8),
    Setting("sigma on queries and keys"),
    Setting("plain", warmup=100),
    Setting("plain", rate=1e-3),
)


def parametrise(model: nn.Module, setting: Setting) -> None:
    """Change the model as the setting says."""
    if setting.name == "sigma":
        rr.sigma_reparam(model, iterations=setting.iterations)
    elif setting.name == "sigma on queries and keys":  # they share their weight with the values
        rr.sigma_reparam(model, only=lambda name, module: name.endswith("qkv"))
    elif setting.name == "spectral_norm of torch":
        for module in list(model.modules()):
            if isinstance(module, nn.Linear):
                spectral_norm(module)


def excess(model: nn.Module) -> Iterator[float]:
    """How far the norm of every effective weight is above |γ|, as a share."""
    for module in model.modules():
        for name, computed in getattr(module, "parametrizations", {}).items():
            if isinstance(one := computed[0], SigmaReparam):
                weight = getattr(module, name).detach()
                for part, gamma in enumerate(one.gamma.detach()):
                    sigma = torch.linalg.matrix_norm(weight[one.labels == part].double(), 2)
                    yield abs((sigma / gamma.abs()).item() - 1)


def run(setting: Setting, seed: int, steps: int) -> str:
    """Train once, and return a row of the table."""
    spec, data = find_experiment("vit-digits").small, load_dataset(DataConfig("digits"), root=None)
    model = build_model(spec.model, seed=seed)
    parametrise(model, setting)
    optimiser = torch.optim.Adam(model.parameters(), setting.rate)
    test = next(iter(data.test_batches(batch_size=data.num_test)))
    errors: list[float] = []
    seconds, step = 0.0, 0
    probe = EntropyProbe(test[0][:32], every=EVERY)
    options = {"every": EVERY, "quantities": (), "heads": rr.heads.resolve, "probes": [probe]}
    with rr.RankTracker(model, tempfile.mkdtemp(), **options) as tracker:
        for epoch in range(1000):
            for images, labels in data.train_batches(batch_size=64, seed=seed, epoch=epoch):
                if step == steps:
                    break
                begin = time.process_time()
                for group in optimiser.param_groups:
                    group["lr"] = setting.rate * min(1.0, (step + 1) / max(1, setting.warmup))
                nn.functional.cross_entropy(model(images), labels).backward()
                optimiser.step()
                optimiser.zero_grad()
                seconds += time.process_time() - begin
                step += 1
                tracker.step(step)
                if step % (4 * EVERY) == 0:
                    with torch.no_grad():
                        model.eval()
                        errors += excess(model)
                        model.train()
    model.eval()
    with torch.no_grad():
        accuracy = (model(test[0]).argmax(-1) == test[1]).float().mean().item()
    curves = rr.open_run(tracker.out)
    share = curves.curve("attention_entropy_share", circuit="kq").values
    logits = curves.curve("max_logit", circuit="kq").values
    ends = share[-1].ravel()
    above = f"{sorted(errors)[len(errors) // 2]:.3f}, {max(errors):.3f}" if errors else ""
    return (
        f"| {setting.name} | {setting.rate:g} | {setting.warmup} | {setting.iterations} | {seed} | {accuracy:.3f} | "
        f"{share.min():.4f} | {(ends < 0.1).sum()} of {ends.size} | {logits.max():.0f} | {above} | {seconds:.0f} |"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=250)
    arguments = parser.parse_args()
    columns = ("weights", "rate", "warm-up", "iterations", "seed", "accuracy", "lowest share", "heads below 0.1")
    columns += ("largest logit", "norm above γ", "CPU s")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for setting in SETTINGS:
        for seed in arguments.seeds:
            print(run(setting, seed, arguments.steps), flush=True)
