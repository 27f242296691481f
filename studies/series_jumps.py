"""How often `rankrise diff` warns of a jump: in series of single runs, where it must not, and in spliced ones.

Runs: a small transformer is trained on one task, then tuned from the same weights on several others, by AdamW with a
cosine schedule, AdamW at a constant rate with weight decay, and SGD with momentum. Every fifth step is kept. A series
takes some of these steps, near or far apart, regular or not; a spliced series goes on in another run, from the same
base, at the same step numbers.

    python studies/series_jumps.py --first 10 --seeds 3
"""

import argparse
import itertools
import json
import random
from collections import Counter

import torch
from torch import Tensor, nn

from rankrise.checkpoints.compare import jumps

WIDTH, TOKENS, STEPS, EVERY = 16, 8, 300, 5


class Net(nn.Module):
    """One layer of a transformer and an output."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return one vector for each token."""
        result: Tensor = self.out(self.body(x))
        return result


def train(net: nn.Module, task: int, seed: int, recipe: str, steps: int = STEPS) -> list[Tensor]:
    """Train on the task with this number; return the weights after every fifth step."""
    generator = torch.Generator().manual_seed(task)
    teacher = torch.randn(TOKENS * WIDTH, TOKENS * 8, generator=generator) / WIDTH
    generator.manual_seed(1000 + seed)
    if recipe == "sgd":
        optimiser: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    else:
        optimiser = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.1 if recipe == "constant" else 0.01)
    kept = []
    for step in range(1, steps + 1):
        if recipe == "cosine":
            optimiser.param_groups[0]["lr"] = 5e-4 * (1 + torch.cos(torch.tensor(torch.pi * step / steps)).item())
        x = torch.randn(16, TOKENS, WIDTH, generator=generator)
        y = torch.tanh(x.flatten(1) @ teacher).reshape(16, TOKENS, 8)
        loss = (net(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % EVERY == 0:
            kept.append(nn.utils.parameters_to_vector(net.parameters()).detach().clone())
    return kept


def series(length: int, spread: str, rng: random.Random) -> list[int]:
    """Indices of kept steps: neighbours ("short"), evenly over the run ("long"), or at random."""
    most = STEPS // EVERY
    if spread == "short":
        begin = rng.randrange(most - length)
        return list(range(begin, begin + length))
    if spread == "long":
        return [round((n + 1) * most / length) - 1 for n in range(length)]
    return sorted(rng.sample(range(most), length))


def found(changes: list[Tensor], steps: list[int]) -> set[int]:
    """Return the places where `jumps` warns."""
    norms = [float(change.norm()) for change in changes]
    cosines = [None, *(float(torch.cosine_similarity(a, b, 0)) for a, b in itertools.pairwise(changes))]
    return {steps.index(after) for _, after, _ in jumps(steps, norms, cosines)}


def main() -> None:
    """Print the rates as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed; 0 to 2 were used to choose the rule")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    torch.manual_seed(0)
    base = Net()
    train(base, task=0, seed=0, recipe="constant", steps=300)
    start = nn.utils.parameters_to_vector(base.parameters()).detach().clone()
    runs: dict[tuple[str, int, int], list[Tensor]] = {}
    for recipe, task, seed in itertools.product(("cosine", "constant", "sgd"), (1, 2), seeds):
        nn.utils.vector_to_parameters(start.clone(), base.parameters())
        runs[recipe, task, seed] = [weights - start for weights in train(base, task, seed, recipe)]
    rng, counts = random.Random(0), Counter[str]()
    for (recipe, task, seed), run in runs.items():
        for spread, length in itertools.product(("short", "long", "random"), (4, 8, 16)):
            for _ in range(4):
                places = series(length, spread, rng)
                steps = [EVERY * (place + 1) for place in places]
                counts[f"single {spread} neighbours"] += length - 1
                counts[f"single {spread} series"] += 1
                alarms = found([run[place] for place in places], steps)
                counts[f"single {spread} alarms"] += len(alarms)
                counts[f"single {spread} series with alarms"] += bool(alarms)
                for kind, other in (
                    ("other task", (recipe, 3 - task, seed)),
                    ("other seed", (recipe, task, seeds[(seed + 1 - options.first) % len(seeds)])),
                ):
                    cut = rng.randrange(1, length)
                    spliced = [run[place] for place in places[:cut]] + [runs[other][place] for place in places[cut:]]
                    alarms = found(spliced, steps)
                    counts[f"{kind} {spread} spliced"] += 1
                    counts[f"{kind} {spread} found"] += cut in alarms
    print(json.dumps(dict(sorted(counts.items())), indent=1))


if __name__ == "__main__":
    main()
