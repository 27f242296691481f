"""The parts of a run of modular arithmetic: the table, the two networks and the training.

This module loads PyTorch; the kind imports it when a run begins.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankrise.gauges import zero_sum_cross_entropy
from rankrise.lab.experiments.kinds._modular_kind import ModularSpec, dtype_of
from rankrise.lab.experiments.kinds._theory_kind import Tick
from rankrise.tracking import ClassifierProbe, RankTracker

ConfigField = tuple[Tensor, Tensor]  # pairs (n, 2) and answers (n,)
_HEADS = 4
_WARMUP = 10  # steps of warm-up of the transformer


class ModularMLP(nn.Module):
    """Embeddings of both numbers in half the width each, two hidden layers with ReLU, and a last layer without bias."""

    def __init__(self, p: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(p, width // 2)
        self.hidden = nn.Sequential(nn.Linear(2 * (width // 2), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, p, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs (B, 2) to logits (B, p)."""
        out: Tensor = self.head(self.hidden(self.embed(pairs).flatten(1)))
        return out


class ModularTransformer(nn.Module):
    """One pre-norm block on the tokens a, b and "=", with learned positions, read at "="; a last layer without bias."""

    def __init__(self, p: int, width: int) -> None:
        super().__init__()
        self.p = p
        self.embed = nn.Embedding(p + 1, width)
        self.positions = nn.Parameter(torch.randn(3, width))
        self.block = nn.TransformerEncoderLayer(
            width, _HEADS, 4 * width, dropout=0.0, activation="relu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, p, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs (B, 2) to logits (B, p)."""
        tokens = F.pad(pairs, (0, 1), value=self.p)
        out: Tensor = self.head(self.norm(self.block(self.embed(tokens) + self.positions)[:, -1]))
        return out


def modular_network(spec: ModularSpec) -> nn.Module:
    """Return the network of a spec with the weights of its seed; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        made = ModularMLP(spec.p, spec.width) if spec.network == "mlp" else ModularTransformer(spec.p, spec.width)
    return made.to(dtype_of(spec))


def modular_table(spec: ModularSpec) -> tuple[ConfigField, ConfigField]:
    """Return the training part and the rest of the table.

    In a table of addition (a, b) and (b, a) have the same answer, and may lie on both sides of the split: a network
    then knows the answers to some test pairs. Subtraction and division have no such pairs.

    >>> train, test = modular_table(ModularSpec(p=5, operation="divide", train_share=0.5, num_steps=1))
    >>> pairs, answers = (torch.cat(parts) for parts in zip(train, test))
    >>> bool((answers * pairs[:, 1] % 5 == pairs[:, 0]).all()), len(pairs)
    (True, 20)
    """
    numbers = torch.arange(spec.p)
    pairs = torch.cartesian_prod(numbers, numbers[1:] if spec.operation == "divide" else numbers)
    a, b = pairs.unbind(1)
    answers = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "divide": lambda: a * torch.tensor([0, *(pow(x, -1, spec.p) for x in range(1, spec.p))])[b],
    }[spec.operation]() % spec.p
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(spec.seed))
    num = int(spec.train_share * len(pairs))
    train, test = order[:num], order[num:]
    return (pairs[train], answers[train]), (pairs[test], answers[test])


def loss_of(spec: ModularSpec, logits: Tensor, answers: Tensor) -> Tensor:
    """Return the loss that the network is trained on."""
    if spec.loss == "zero_sum":
        return zero_sum_cross_entropy(logits, answers)
    return F.cross_entropy(logits.double() if spec.loss == "fp64" else logits, answers)


def train_modular(
    spec: ModularSpec, folder: Path, *, config: Mapping[str, Any], device: torch.device, tick: Tick
) -> int:
    """Train and write the run; return the number of steps, after which a loss that is not finite ends it early."""
    model = modular_network(spec).to(device)
    (pairs, answers), test = ((x.to(device), y.to(device)) for x, y in modular_table(spec))
    optimiser, batches = _optimiser(spec, model), _batches(spec, len(pairs), device)
    tracker = RankTracker(
        model,
        folder,
        every=spec.every,
        quantities=(),
        probes=[ClassifierProbe("head")],
        config=config,
        exist="overwrite",
        needs_folder=True,
    )
    done, is_finite = 0, True
    try:
        while True:
            if done % spec.every == 0:
                scores = _scores(spec, model, (pairs, answers), test)
                is_finite = bool(scores["loss"].isfinite())
                if not is_finite:
                    break
                tracker.step(done, **scores)
                tick(done / spec.num_steps)
            if done == spec.num_steps:
                break
            batch = next(batches)
            if spec.network == "transformer":
                optimiser.param_groups[0]["lr"] = spec.learning_rate * min(1.0, (done + 1) / _WARMUP)
            optimiser.zero_grad()
            loss_of(spec, model(pairs[batch]), answers[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            done += 1
    finally:
        tracker.close(seal=is_finite and done == spec.num_steps)
    return done


@torch.no_grad()
def _scores(spec: ModularSpec, model: nn.Module, train: ConfigField, test: ConfigField) -> dict[str, Tensor]:
    """Loss and accuracies; the probe keeps the logits of the training part, because the model is in training there."""
    of_test = model.eval()(test[0])
    of_train = model.train()(train[0])
    return {
        "loss": loss_of(spec, of_train, train[1]),
        "train_accuracy": (of_train.argmax(-1) == train[1]).double().mean(),
        "test_accuracy": (of_test.argmax(-1) == test[1]).double().mean(),
    }


def _optimiser(spec: ModularSpec, model: nn.Module) -> torch.optim.Optimizer:
    if spec.optimiser == "sgd":
        return torch.optim.SGD(model.parameters(), spec.learning_rate, momentum=0.9)
    return torch.optim.Adam(model.parameters(), spec.learning_rate, betas=spec.betas, eps=spec.epsilon)


def _batches(spec: ModularSpec, num: int, device: torch.device) -> Iterator[Tensor | slice]:
    """Yield the places of the samples of every step: all samples, or batches of one shuffled epoch after another."""
    generator = torch.Generator().manual_seed(spec.seed)
    while True:
        if spec.batch_size is None:
            yield slice(None)
        else:
            order = torch.randperm(num, generator=generator).to(device)
            yield from (order[start : start + spec.batch_size] for start in range(0, num, spec.batch_size))
