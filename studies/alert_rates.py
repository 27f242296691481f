"""How often do the alerts of a tracker fire on ordinary training, and do they fire on what they are meant for?

    python studies/alert_rates.py --out runs/alerts --seeds 20

Trains two small models without any fault, once for each seed: a vision transformer on the digits of scikit-learn and a
Llama on the bytes of Python's own documentation strings. Then it trains each with a planted fault: a head whose
gradient is stopped, a direction that is added to one head, and noise that is taken away. The table says in how many
runs each alert fired. `docs/tracking.md` quotes it. Needs `pip install 'rankrise[hf,demo]'`.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import rankrise as rr
from rankrise.tracking import RankCollapse, RankOneSpike, StalledHead

STEPS, EVERY, SPECTRA = 400, 5, 10
ALERTS = (RankCollapse(), RankOneSpike(), StalledHead())
Batch = Callable[[torch.Generator], tuple[Tensor, Tensor]]
Fault = Callable[[int, nn.Module], None]


class DigitsViT(nn.Module):
    """Sixteen patches of 2 × 2, two layers of four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(4, 32), nn.Parameter(0.1 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, patches: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        features = self.encoder(self.embed(patches) + self.position).mean(1)
        return nn.functional.cross_entropy(self.head(features), labels)


def digits() -> tuple[nn.Module, Batch]:
    """The vision transformer and its batches."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images / 8 - 1, dtype=torch.float32).reshape(-1, 4, 2, 4, 2)
    patches, labels = images.transpose(2, 3).reshape(-1, 16, 4), torch.tensor(found.target)

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(labels), (64,), generator=generator)
        return patches[chosen], labels[chosen]

    return DigitsViT(), batch


class TinyLlama(nn.Module):
    """A Llama of two layers and four heads on bytes."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.model(input_ids=ids, labels=labels).loss
        return loss


def llama() -> tuple[nn.Module, Batch]:
    """The Llama and its batches."""
    text = "".join(filter(None, (getattr(getattr(__builtins__, n, None), "__doc__", "") for n in dir(__builtins__))))
    ids = torch.tensor(list(text.encode("ascii", "replace")))

    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(ids) - 32, (16, 1), generator=generator)
        windows = ids[starts + torch.arange(32)]
        return windows, windows

    return TinyLlama(), batch


def stall(step: int, model: nn.Module) -> None:
    """From half of the training on, layer 1 keeps the weights of its second head."""
    for weight, where in _of_one_head(model):
        if step == STEPS // 2:
            weight.__dict__["kept"] = weight.detach()[where].clone()
        elif step > STEPS // 2:
            with torch.no_grad():
                weight[where] = weight.__dict__["kept"]


def spike(step: int, model: nn.Module) -> None:
    """Half way through, the query and key weights of one head get one direction more."""
    if step == STEPS // 2:
        with torch.no_grad():
            for weight, where in _of_one_head(model)[:2]:
                part = weight[where]
                part += 2.0 * part.norm() * torch.ones_like(part) / part.numel() ** 0.5


def collapse(step: int, model: nn.Module) -> None:
    """Half way through, the query and key weights of all heads of layer 1 get one direction more."""
    if step == STEPS // 2:
        with torch.no_grad():
            for head in range(4):
                for weight, where in _of_one_head(model, head)[:2]:
                    part = weight[where]
                    part += 2.0 * part.norm() * torch.ones_like(part) / part.numel() ** 0.5


def _of_one_head(model: nn.Module, head: int = 1) -> list[tuple[nn.Parameter, tuple[slice, ...]]]:
    """Parameters of layer 1 and where in them one head of 8 dimensions lies: query, key, value, output."""
    rows, columns = slice(8 * head, 8 * head + 8), (slice(None), slice(8 * head, 8 * head + 8))
    if isinstance(model, DigitsViT):
        attention = model.encoder.layers[1].self_attn
        parts = [(attention.in_proj_weight, (slice(32 * n + rows.start, 32 * n + rows.stop),)) for n in range(3)]
        return [*parts, (attention.out_proj.weight, columns)]
    attention = model.model.model.layers[1].self_attn
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [*((projection.weight, (rows,)) for projection in projections), (attention.o_proj.weight, columns)]


MODELS = {"digits ViT": digits, "tiny Llama": llama}
FAULTS = {"no fault": None, "stalled head": stall, "spike": spike, "collapse": collapse}


def train(
    build: Callable[[], tuple[nn.Module, Batch]], out: Path, *, seed: int, scale: float, fault: Fault | None
) -> set[str]:
    """Train once and return the names of the alerts that were raised."""
    torch.manual_seed(seed)
    model, batch = build()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "attn" in name and weight.ndim == 2:
                weight.mul_(scale)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    raised: list[str] = []
    with rr.RankTracker(
        model, out, every=EVERY, spectra=SPECTRA, matrices=False, directions=0, alerts=ALERTS, exist="overwrite",
        quantities=["stable_rank", "frobenius_norm", "spectral_norm", "effective_rank"],
        on_alert=lambda alert: raised.append(alert.name),
    ) as tracker:  # fmt: skip
        for step in range(1, STEPS + 1):
            loss = model(*batch(generator))
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if fault is not None:
                fault(step, model)
            tracker.step(step, loss=loss)
    return set(raised)


def cases(seeds: int, planted: int) -> Iterator[tuple[str, str, float, Fault | None, int]]:
    """Model, fault, scale of the initial weights of attention, and number of runs."""
    for model in MODELS:
        yield model, "no fault", 1.0, None, seeds
        yield model, "no fault", 0.1, None, seeds
        for name, fault in FAULTS.items():
            if fault is not None:
                yield model, name, 1.0, fault, planted


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/alerts"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=20, help="runs without a fault, for each model and scale")
    parser.add_argument("--planted", type=int, default=5, help="runs with each fault, for each model")
    parser.add_argument("--first", type=int, default=0, help="the first seed; the thresholds were chosen on 0 to 7")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    warnings.simplefilter("ignore", rr.tracking.TrackingWarning)
    print("model, fault, initial scale: runs, " + ", ".join(rule.name for rule in ALERTS))
    for model, name, scale, fault, num_runs in cases(options.seeds, options.planted):
        if model not in options.models:
            continue
        out, counts = options.out / f"{model} {name} {scale}", Counter[str]()
        for seed in range(options.first, options.first + num_runs):
            counts.update(train(MODELS[model], out / str(seed), seed=seed, scale=scale, fault=fault))
        found = ", ".join(str(counts[rule.name]) for rule in ALERTS)
        print(f"{model}, {name}, {scale:g}: {num_runs}, {found}", flush=True)


if __name__ == "__main__":
    main()
