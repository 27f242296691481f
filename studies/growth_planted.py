"""Does an adapter that grows find where a planted change needs its ranks?

    python studies/growth_planted.py --out runs/growth-planted --seeds 20-31

A residual network of eight layers, `x ← x + tanh(W x) / 2` with W (32, 32), is the base; the teacher has the same
weights plus changes of known ranks with singular values 1. The student is the base with an adapter of as many
parameters as rank 2 everywhere, trained on the teacher's outputs for 600 steps. The four tasks differ in the ranks of
the change:

    uneven  8 in two layers        tail  8, 4, 2, 1, 1       half  4 in four layers       even  2 in all

This protocol was committed before the judging seeds were run. The methods are uniform LoRA; `cut`, which is uniform at
twice the rank and then cut, as the control; `both`; `grow`; `early`; and `true`, LoRA with the planted ranks, as a
floor. The learning rate is chosen on seed 100 for uniform LoRA on the task `uneven`, among 0.003, 0.01, 0.03, 0.06 and
0.12, and used for all. All train by AdamW with betas (0.9, 0.999), without decay, with a cosine to zero and batches of
64. The excess loss is the squared error on 4096 fresh inputs. It is judged as a ratio to that of uniform LoRA on the
same seed, by the geometric mean over the seeds and the 95% interval of Student's distribution of the logarithms. The
claims on `both`:

    C1  uneven, tail, half: the upper limit of the ratio to uniform LoRA is below 0.5
    C2  uneven, tail: the upper limit of the ratio to `cut` is below 0.8 (in `half` no gain over `cut` is expected)
    C3  even: the upper limit of the ratio to uniform LoRA is below 1.10

`docs/log/growth.md` has the results. The study needs `pip install 'rankrise[peft]'`.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from rankrise.growth import Growth, growing_lora

LAYERS, WIDTH, RANK, STEPS, BATCH = 8, 32, 2, 600, 64
RATES = (0.003, 0.01, 0.03, 0.06, 0.12)
TASKS = {
    "uneven": (0, 8, 0, 0, 0, 8, 0, 0),
    "tail": (0, 8, 1, 0, 4, 1, 2, 0),
    "half": (4, 0, 4, 0, 4, 0, 4, 0),
    "even": (2,) * LAYERS,
}
METHODS = ("uniform", "cut", "both", "grow", "early", "true")


class Residual(nn.Module):
    """Eight layers `x + tanh(W x) / 2`."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        for layer in self.layers:
            layer.weight.data = torch.randn(WIDTH, WIDTH, generator=generator) / math.sqrt(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The last state."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) / 2
        return x


def planted(task: str, seed: int) -> tuple[Residual, Residual]:
    """Base and teacher; the layers that change are shuffled by the seed."""
    base, teacher = (Residual(torch.Generator().manual_seed(seed)) for _ in range(2))
    generator = torch.Generator().manual_seed(seed + 10_000)
    order = torch.randperm(LAYERS, generator=generator).tolist()
    for layer, rank in zip(order, TASKS[task], strict=True):
        u, v = (torch.linalg.qr(torch.randn(WIDTH, max(rank, 1), generator=generator)).Q for _ in range(2))
        if rank:
            teacher.layers[layer].weight.data += u @ v.mT
    return base, teacher


def student(method: str, base: Residual, task: str, seed: int, rate: float) -> tuple[nn.Module, list[nn.Parameter]]:
    """Return the base with its adapter, and the parameters that are trained."""
    import peft

    targets = [f"layers.{i}" for i in range(LAYERS)]
    torch.manual_seed(seed)
    if method in ("uniform", "true"):
        ranks = dict.fromkeys(range(LAYERS), RANK)
        if method == "true":
            generator = torch.Generator().manual_seed(seed + 10_000)
            order = torch.randperm(LAYERS, generator=generator).tolist()
            ranks = {layer: rank for layer, rank in zip(order, TASKS[task], strict=True) if rank}
        pattern = {f"layers.{layer}": rank for layer, rank in ranks.items()}
        config = peft.LoraConfig(
            r=RANK, lora_alpha=RANK, target_modules=list(pattern), rank_pattern=pattern, alpha_pattern=pattern
        )
        model: nn.Module = peft.get_peft_model(base, config)
    else:
        model = growing_lora(base, rank=RANK, mode=method, target_modules=targets)
    return model, [p for p in model.parameters() if p.requires_grad]


def run(method: str, task: str, seed: int, rate: float) -> dict[str, object]:
    """Train one student; return its excess loss and its ranks."""
    base, teacher = planted(task, seed)
    model, trained = student(method, base, task, seed, rate)
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    growth = None if method in ("uniform", "true") else Growth(model, optimiser, total_steps=STEPS, seed=seed)
    data = torch.Generator().manual_seed(seed + 20_000)
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=data)
        with torch.no_grad():
            goal = teacher(x)
        (model(x) - goal).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        cosine.step()
        if growth is not None:
            growth.step()
    with torch.no_grad():
        x = torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(seed + 30_000))
        loss = float((model(x) - teacher(x)).square().mean())
    return {
        "method": method, "task": task, "seed": seed, "rate": rate, "loss": loss,
        "ranks": None if growth is None else list(growth.ranks.values()),
        "grown": None if growth is None else sum(d.kind == "grow" for d in growth.history),
    }  # fmt: skip


def ratio(results: dict[tuple[str, int], float], method: str, other: str, seeds: list[int]) -> str:
    """Return the geometric mean of the ratio of two methods over the seeds, with its 95% interval, as text."""
    from scipy.stats import t

    logs = torch.tensor([math.log(results[method, s] / results[other, s]) for s in seeds], dtype=torch.float64)
    mean, spread = float(logs.mean()), float(logs.std()) / math.sqrt(len(seeds)) * float(t.isf(0.025, len(seeds) - 1))
    return f"{math.exp(mean):.3g} [{math.exp(mean - spread):.3g}, {math.exp(mean + spread):.3g}]"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/growth-planted"))
    parser.add_argument("--seeds", default="20-31", help="first and last")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    first, last = map(int, options.seeds.split("-"))
    seeds = list(range(first, last + 1))

    def kept(method: str, task: str, seed: int, rate: float) -> float:
        file = options.out / f"{task}-{method}-{seed}-{rate:g}.json"
        if not file.exists():
            file.write_text(json.dumps(run(method, task, seed, rate)))
        return float(json.loads(file.read_text())["loss"])

    rates = {rate: kept("uniform", "uneven", 100, rate) for rate in RATES}
    rate = min(rates, key=lambda r: rates[r])
    print(f"rate {rate:g} of {rates}")
    for task in options.tasks:
        results = {(method, seed): kept(method, task, seed, rate) for seed in seeds for method in options.methods}
        print(f"{task}, {len(seeds)} seeds")
        for method in options.methods[1:]:
            line = f"  {method}: to uniform {ratio(results, method, 'uniform', seeds)}"
            print(line + (f", to cut {ratio(results, method, 'cut', seeds)}" if method not in ("cut", "true") else ""))


if __name__ == "__main__":
    main()
