"""What tracking costs: the paper's CIFAR vision transformer in training, with and without a `RankTracker`.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/bench_tracking_overhead.py --out benchmarks/results
    PYTHONPATH=src python3 benchmarks/bench_tracking_overhead.py --device cuda --out benchmarks/results

On cuda: 6 layers, 8 heads of dimension 128, width 512, MLP 512, 65 tokens, batch 512, bf16 autocast, compiled. On cpu:
a small one, float32, eager. Milliseconds of a training step (within stretches of many) and of each kind of measurement
are medians of interleaved rounds in one process; a measurement is timed in a model that has trained, from the call of
`tracker.step` to its return, disk included. The overhead of 500 epochs (50,000 images) is extrapolated:

    (num_ranks · ms_ranks + num_spectra · (ms_spectra − ms_ranks) + num_steps · ms_nothing) / (num_steps · ms_step),

ranks every 200 steps, spectra every 2000 and at least 20 times; `…_with_20_spectra` takes exactly 20. Where pyarrow is
not installed nothing is written, and the record says so.
"""

import argparse
import importlib.util
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rankrise as rr
from rankrise.store import environment

# As in the docstring; where the results go is nobody's business.
COMMAND = re.sub(r" --out \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))

NUM_IMAGES, NUM_EPOCHS, EVERY = 50_000, 500, 200
IDLE = 100


@dataclass(frozen=True)
class Shape:
    """A vision transformer and its batch."""

    layers: int
    heads: int
    head_dim: int
    width: int
    mlp: int
    tokens: int
    batch: int


SHAPES = {"cuda": Shape(6, 8, 128, 512, 512, 65, 512), "cpu": Shape(3, 4, 32, 64, 128, 65, 32)}


class Attention(nn.Module):
    """Heads whose total width need not be that of the model."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.head_dim = shape.heads, shape.head_dim
        inner = shape.heads * shape.head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(shape.width, inner, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and MLP, norms first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attn = Attention(shape)
        self.mlp = nn.Sequential(nn.Linear(shape.width, shape.mlp), nn.GELU(), nn.Linear(shape.mlp, shape.width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Tokens of a 32 × 32 image in, logits of ten classes out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Linear(48, shape.width)
        self.position = nn.Parameter(0.02 * torch.randn(shape.tokens, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, 10)

    def forward(self, patches: Tensor) -> Tensor:
        """(batch, tokens, 48) to (batch, 10)."""
        x = self.embed(patches) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(call: Callable[[], object], device: str, repeats: int) -> list[float]:
    """Wall time of each of some calls."""
    taken = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def trainer(model: nn.Module, shape: Shape, device: str) -> Callable[[], None]:
    """One step of training on fixed random images."""
    g = torch.Generator().manual_seed(0)
    patches = torch.randn(shape.batch, shape.tokens, 48, generator=g).to(device)
    labels = torch.randint(0, 10, (shape.batch,), generator=g).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-4, fused=device == "cuda")

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(model(patches), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def steps_ms(step: Callable[[], None], device: str, *, num_steps: int) -> float:
    """Milliseconds of a step within a stretch of them, without waiting in between."""

    def stretch() -> None:
        for _ in range(num_steps):
            step()

    return milliseconds(stretch, device, 1)[0] / num_steps


def leave_out_the_store() -> None:
    """Without pyarrow: numbers and directions still travel to the CPU, but no row is made and no file written.

    Stand-ins replace pyarrow and the functions of `rankrise.store`. The tracker takes them from there when it is first
    imported, so this must come before the first use of `rr.RankTracker`.
    """
    from rankrise import store

    assert "rankrise.tracking" not in sys.modules

    class NoRun:
        initial_path, last_measured, dropped, is_ours = None, -1, (0, -1), True

        def last_directions(self) -> dict[str, Tensor]:
            return {}

        def save_directions(self, step: int, tensors: dict[str, Tensor]) -> None:
            for tensor in tensors.values():
                tensor.cpu()

        def append(self, block: object, *, sync: bool = False, is_late: bool = False) -> None:
            pass

        def sync(self) -> None:
            pass

        def seal(self) -> None:
            pass

        def close(self) -> None:
            pass

    no_rows = SimpleNamespace(num_rows=1, nbytes=0)
    for name, stand_in in (("create_run", NoRun()), ("rows", no_rows), ("scalar_rows", no_rows)):
        setattr(store, name, lambda *_, stand_in=stand_in, **__: stand_in)
    pyarrow: Any = ModuleType("pyarrow")
    pyarrow.concat_batches = lambda blocks: no_rows
    sys.modules["pyarrow"] = pyarrow


def measure(device: str, *, rounds: int, stretch: int) -> dict[str, object]:
    """The record of one device."""
    shape = SHAPES[device]
    stores = importlib.util.find_spec("pyarrow") is not None
    if not stores:
        leave_out_the_store()
    torch.manual_seed(0)
    bare = ViT(shape).to(device)
    model = torch.compile(bare) if device == "cuda" else bare
    step = trainer(model, shape, device)
    for _ in range(5):  # compile, and let the allocator settle
        step()
    synchronise(device)
    resident = torch.cuda.memory_allocated() if device == "cuda" else 0
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        synchronise(device)
    peak_alone = torch.cuda.max_memory_allocated() if device == "cuda" else 0

    with tempfile.TemporaryDirectory() as folder:
        tracker = rr.RankTracker(
            model, folder, every=lambda s: s % 3 > 0, spectra=lambda s: s % 3 == 2, strict=True
        )  # steps 1, 4, …: ranks; 2, 5, …: ranks and spectra; 0, 3, …: nothing
        clock = iter(range(10**9))
        kinds: dict[str, list[float]] = {"nothing": [], "ranks": [], "spectra": []}
        alone, step_ms = [], []
        for _ in range(rounds + 1):
            step_ms.append(steps_ms(step, device, num_steps=stretch))
            # No step of training waits for the device, so the many calls with nothing due are timed between two waits.
            idle = [3 * next(clock) for _ in range(IDLE)]
            kinds["nothing"].append(milliseconds(lambda: [tracker.step(s) for s in idle], device, 1)[0] / IDLE)  # noqa: B023
            for kind, remainder in (("ranks", 1), ("spectra", 2)):
                now = 3 * next(clock) + remainder
                kinds[kind] += milliseconds(lambda: tracker.step(now), device, 1)  # noqa: B023
            alone.append(steps_ms(step, device, num_steps=stretch))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            for remainder in (1, 2):
                tracker.step(3 * next(clock) + remainder)
            synchronise(device)
        extra_resident = (torch.cuda.memory_allocated() - resident) if device == "cuda" else None
        extra_peak = (torch.cuda.max_memory_allocated() - before + extra_resident) if device == "cuda" else None
        initial_bytes = tracker.estimate().initial_bytes
        tracker.close()
        bytes_on_disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())

    taken = {kind: statistics.median(values[1:]) for kind, values in kinds.items()}  # the first round warms up
    step_median = statistics.median(step_ms[1:] + alone[1:])
    num_steps = NUM_EPOCHS * -(-NUM_IMAGES // shape.batch)
    num_spectra = max(20, num_steps // (10 * EVERY))
    num_ranks = num_steps // EVERY
    cost = num_ranks * taken["ranks"] + num_spectra * (taken["spectra"] - taken["ranks"]) + num_steps * taken["nothing"]
    cost_20 = cost + (20 - num_spectra) * (taken["spectra"] - taken["ranks"])
    return {
        "device": device,
        "shape": asdict(shape),
        "rounds": rounds,
        "milliseconds": {"training step": step_median} | {f"tracker.step, {k} due": v for k, v in taken.items()},
        "spread": {kind: [min(values[1:]), max(values[1:])] for kind, values in kinds.items()}
        | {"training step": [min(step_ms[1:] + alone[1:]), max(step_ms[1:] + alone[1:])]},
        "extrapolated": {"epochs": NUM_EPOCHS, "steps": num_steps, "ranks": num_ranks, "spectra": num_spectra},
        "overhead_percent": 100 * cost / (num_steps * step_median),
        "overhead_percent_with_20_spectra": 100 * cost_20 / (num_steps * step_median),
        "initial_bytes": initial_bytes,
        "extra_gpu_bytes_resident": extra_resident,
        "extra_gpu_bytes_peak_of_a_measurement": extra_peak,
        "gpu_bytes_peak_of_training": peak_alone or None,
        "writes_to_disk": stores,
        "bytes_on_disk_here": bytes_on_disk,
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="folder for the JSON record")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it runs")
    args = parser.parse_args()
    rounds, stretch = (1, 1) if args.quick else (9, 50 if args.device == "cuda" else 10)
    row = measure(args.device, rounds=rounds, stretch=stretch)
    print(json.dumps(row, indent=1), flush=True)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"command": COMMAND, "seed": 0, "environment": environment(), "rows": [row]}
        path = args.out / f"tracking_overhead_{args.device}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
