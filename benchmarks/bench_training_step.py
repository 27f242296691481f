"""Milliseconds per optimiser step of the paper's ViT on CIFAR-10: `rankrise.lab.training.train` against plain loops.

Ours is the whole loop as `rankrise run vit-cifar10` has it, data, augmentation and rank tracking included. Every
contender sees the same batches (512 images, flip and crop, on the device) of the same network, but for HF's ViT, whose
heads cannot be wider than width / heads: 64 instead of 128, so it does less. Without --data the images are synthetic.

    python benchmarks/bench_training_step.py --data DIR --out benchmarks/results
"""

import argparse
import json
import logging
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankrise.lab.data import Batch, DataConfig, Dataset, load_dataset
from rankrise.lab.models import ViTConfig, build_model
from rankrise.lab.training import TrainingConfig, train
from rankrise.store import environment

COMMAND = re.sub(r" --(out|data) \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))
BATCH, PAPER_EPOCHS = 512, 500
Loss = Callable[[Tensor, Tensor], Tensor]


class PlainBlock(nn.Module):
    """The block as a textbook has it."""

    def __init__(self, c: ViTConfig, *, fused_attention: bool) -> None:
        super().__init__()
        inner = c.num_heads * c.head_dim
        self.norm1, self.norm2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.q, self.k, self.v = (nn.Linear(c.width, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, c.width)
        self.mlp = nn.Sequential(nn.Linear(c.width, c.mlp_width), nn.GELU(), nn.Linear(c.mlp_width, c.width))
        self.num_heads, self.fused_attention = c.num_heads, fused_attention

    def forward(self, x: Tensor) -> Tensor:
        """Tokens to tokens."""
        y = self.norm1(x)
        q, k, v = (m(y).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        if self.fused_attention:
            heads = F.scaled_dot_product_attention(q, k, v)
        else:
            heads = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        x = x + self.o(heads.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class PlainViT(nn.Module):
    """The same network, block by block."""

    def __init__(self, c: ViTConfig, *, fused_attention: bool) -> None:
        super().__init__()
        self.embed = nn.Conv2d(c.num_channels, c.width, c.patch_size, c.patch_size)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, c.width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, c.num_tokens, c.width))
        self.blocks = nn.Sequential(*(PlainBlock(c, fused_attention=fused_attention) for _ in range(c.num_layers)))
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits."""
        x = self.embed(images).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


@Dataset.register
class Clocked:
    """A data set that notes when each epoch begins; the device is waited for once an epoch."""

    def __init__(self, dataset) -> None:
        self._dataset, self.begins = dataset, []

    def __getattr__(self, name: str):
        return getattr(self._dataset, name)

    def to(self, device) -> "Clocked":
        """On another device."""
        self._dataset = self._dataset.to(device)
        return self

    def train_batches(self, **options) -> Iterator[Batch]:
        """Those of the data set."""
        torch.cuda.synchronize()
        self.begins.append(time.perf_counter())
        return self._dataset.train_batches(**options)


def ours(dataset, device: str, epochs: int) -> dict[str, object]:
    """`train` itself; the first two epochs, with the compilation, are not counted."""
    clocked = Clocked(dataset)
    config = TrainingConfig(
        epochs=epochs, batch_size=BATCH, warmup_epochs=1, precision="bf16", track_every=100, num_spectra=2,
        evaluate_every=epochs,
    )  # fmt: skip
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(build_model(ViTConfig()), clocked, config, out=folder, device=device)
    seconds = [b - a for a, b in pairwise(clocked.begins[2:])]
    steps = dataset.num_batches(BATCH)
    return {
        "milliseconds": 1e3 * statistics.mean(seconds) / steps,
        "milliseconds_by_epoch": [1e3 * s / steps for s in seconds],
        "seconds_before_epoch_3": clocked.begins[2] - begin,
    }


def loop(loss_of: Loss, parameters, dataset, steps: int, *, fused: bool) -> float:
    """Milliseconds per step of a plain loop, median over pieces of ten steps; five steps warm up."""
    optimiser = torch.optim.Adam(parameters, lr=1e-4, fused=fused)
    batches = dataset.train_batches(batch_size=BATCH, seed=0, epoch=0)
    pieces = []
    for n in range(5 + steps):
        if n >= 5 and (n - 5) % 10 == 0:
            torch.cuda.synchronize()
            pieces.append(time.perf_counter())
        loss = loss_of(*next(batches))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.cuda.synchronize()
    pieces.append(time.perf_counter())
    return 1e2 * statistics.median(b - a for a, b in pairwise(pieces))


def in_bf16(model: nn.Module) -> Loss:
    """The loss of a batch under autocast."""

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(model(images), labels)

    return loss_of


def eager_float32(dataset, device: str) -> float:
    """No TF32, no fused kernel."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = PlainViT(ViTConfig(), fused_attention=False).to(device)
    return loop(lambda x, y: F.cross_entropy(model(x), y), model.parameters(), dataset, 30, fused=False)


def eager_bf16(dataset, device: str) -> float:
    """Autocast, with what PyTorch has fused."""
    model = PlainViT(ViTConfig(), fused_attention=True).to(device)
    return loop(in_bf16(model), model.parameters(), dataset, 60, fused=True)


def compiled_bf16(dataset, device: str) -> float:
    """The same under `torch.compile`."""
    model = PlainViT(ViTConfig(), fused_attention=True).to(device)
    return loop(torch.compile(in_bf16(model)), model.parameters(), dataset, 80, fused=True)


def hugging_face(dataset, device: str) -> float:
    """HF's ViT, as near as its configuration comes."""
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForImageClassification

    c = ViTConfig()
    model = ViTForImageClassification(
        TheirConfig(
            hidden_size=c.width, num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads,
            intermediate_size=c.mlp_width, image_size=c.image_size, patch_size=c.patch_size, num_labels=c.num_classes,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, qkv_bias=False,
        )
    )  # fmt: skip
    model.to(device).train()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(pixel_values=images, labels=labels).loss

    return loop(loss_of, model.parameters(), dataset, 60, fused=True)


def lightning(dataset, device: str) -> float:
    """Lightning's Trainer with the plain network in bf16, the same batches; timed by a callback."""
    import lightning as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    steps, times = 65, []

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Batch]:
            return iter(dataset.train_batches(batch_size=BATCH, seed=0, epoch=0))

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = PlainViT(ViTConfig(), fused_attention=True)

        def training_step(self, batch, index: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-4, fused=True)

        def on_train_batch_end(self, *_: object) -> None:
            if len(times) < steps and self.trainer.global_step % 10 == 5:
                torch.cuda.synchronize()
                times.append(time.perf_counter())

    trainer = pl.Trainer(
        max_steps=steps, precision="bf16-mixed", accelerator="gpu", devices=1, logger=False, barebones=True
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Batches(), batch_size=None))
    return 1e2 * statistics.median(b - a for a, b in pairwise(times))


CONTENDERS = {
    "eager float32, explicit softmax, unfused Adam": eager_float32,
    "eager bf16, fused attention and Adam": eager_bf16,
    "torch.compile bf16, fused attention and Adam": compiled_bf16,
    "HF ViTForImageClassification, bf16 (heads of 64)": hugging_face,
    "Lightning Trainer, bf16-mixed": lightning,
}


def main() -> None:
    """Run ours, then the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with cifar-10-batches-py")
    parser.add_argument("--epochs", type=int, default=14, help="of ours")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    name = "cifar10" if arguments.data else "synthetic_images"
    extra = {} if arguments.data else {"num_train": 50_000}
    dataset = load_dataset(DataConfig(name, augment=("flip", "crop"), **extra), root=arguments.data).to("cuda")
    row: dict[str, object] = {"data": name, "batch_size": BATCH, "rankrise": ours(dataset, "cuda", arguments.epochs)}
    print(row, flush=True)
    mine = row["rankrise"]["milliseconds"]
    row["hours_of_the_papers_500_epochs"] = PAPER_EPOCHS * dataset.num_batches(BATCH) * mine / 3.6e6
    row["others"] = {}
    for label, contender in CONTENDERS.items():
        try:
            torch._dynamo.reset()
            row["others"][label] = {"milliseconds": (ms := contender(dataset, "cuda")), "times_ours": ms / mine}
        except Exception as error:  # a peer that does not run is reported, not hidden
            row["others"][label] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(label, row["others"][label], flush=True)
        torch.cuda.empty_cache()
        if arguments.out is not None:  # every time: the machine may be taken away
            record = {"command": COMMAND, "seed": 0, "environment": environment(), "rows": [row]}
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / "training_step.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
