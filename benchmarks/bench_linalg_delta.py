"""Spectra of Δ(W_K W_Qᵀ) through thin factors, against dense SVD and TransformerLens; stable ranks without a spectrum.

    OMP_NUM_THREADS=1 python benchmarks/bench_linalg_delta.py --out benchmarks/results
    PYTHONPATH=src python3 benchmarks/bench_linalg_delta.py --device cuda --out benchmarks/results

Ratios within one run, contenders interleaved round by round, each after an untimed call of its own, medians of rounds.
Factors are float32 standard normals over √d with a change of 1e-3: a flat spectrum, the worst case for the power
iteration. `steep` has a change of rank 2 on top. Dense work that would take minutes is done for `dense_heads` heads and
multiplied up, which the record says.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import rankrise as rr
from rankrise.store import environment

# As in the docstring; where the results go is nobody's business.
COMMAND = re.sub(r" --out \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))

Factors = tuple[Tensor, Tensor, Tensor, Tensor]  # K, Q, K0, Q0


def factors(heads: int, dim: int, rank: int, device: str, *, steep: bool = False) -> Factors:
    """A stack of heads before and after a small change."""
    g = torch.Generator().manual_seed(0)
    k0, q0 = (torch.randn(heads, dim, rank, generator=g) / dim**0.5 for _ in range(2))
    k, q = (w + 1e-3 * torch.randn(heads, dim, rank, generator=g) / dim**0.5 for w in (k0, q0))
    if steep:
        k += torch.randn(heads, dim, 2, generator=g) @ torch.randn(heads, 2, rank, generator=g) / dim**0.5
    return k.to(device), q.to(device), k0.to(device), q0.to(device)


def dense(k: Tensor, q: Tensor, k0: Tensor, q0: Tensor) -> Tensor:
    """What one writes first: form the d × d difference, take its singular values."""
    return torch.linalg.svdvals(k @ q.mT - k0 @ q0.mT)


def transformer_lens(k: Tensor, q: Tensor, k0: Tensor, q0: Tensor) -> Tensor:
    """TransformerLens' factored SVD of the same stacked factors."""
    from transformer_lens import FactoredMatrix

    left, right = torch.cat([k - k0, k0], dim=-1), torch.cat([q, q - q0], dim=-1)
    return FactoredMatrix(left, right.mT).S


def peak_memory(function: Callable[[], object], device: str) -> int:
    """Bytes allocated by torch during one call."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def seconds(contenders: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of each contender over interleaved rounds, after a warm-up round; on a CPU, of its time."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name, call in contenders.items():
            call()  # so that nobody starts in the caches and pages another one left
            if device == "cuda":
                torch.cuda.synchronize()
            start = clock()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            if round_:
                taken[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def measure(
    name: str, heads: int, dim: int, rank: int, *, device: str, dense_heads: int, rounds: int
) -> dict[str, object]:
    """One row: a stack of heads through every contender."""
    stack = factors(heads, dim, rank, device)
    steep = factors(heads, dim, rank, device, steep=True)
    few: Factors = tuple(f[:dense_heads] for f in stack)  # type: ignore[assignment]
    moved = tuple(f + 1e-5 * torch.randn_like(f) / dim**0.5 for f in stack[:2]) + stack[2:]
    warm = rr.delta_stable_rank(*stack).right_vectors
    contenders: dict[str, Callable[[], object]] = {
        "delta_spectrum": lambda: rr.delta_spectrum(*stack),
        "delta_stable_rank flat": lambda: rr.delta_stable_rank(*stack),
        "delta_stable_rank flat, warm": lambda: rr.delta_stable_rank(*moved, start=warm),
        "delta_stable_rank steep": lambda: rr.delta_stable_rank(*steep),
    }
    try:
        import transformer_lens as _  # noqa: F401

        contenders["TransformerLens FactoredMatrix"] = lambda: transformer_lens(*stack)
    except ImportError:
        print("TransformerLens is not installed here: left out.", file=sys.stderr)
    taken = seconds(contenders, rounds, device)
    slow = seconds({"dense svdvals": lambda: dense(*few)}, 1 if dim > 2000 else 3, device)
    taken["dense svdvals"] = slow["dense svdvals"] * heads / dense_heads
    ours = rr.delta_spectrum(*stack)
    exact = rr.delta_spectrum(*(f.double() for f in few))
    row = {
        "name": name, "heads": heads, "dim": dim, "head_dim": rank, "dense_heads": dense_heads, "rounds": rounds,
        "milliseconds": {k: round(1e3 * v, 3) for k, v in taken.items()},
        "faster_than_dense": round(taken["dense svdvals"] / taken["delta_spectrum"], 1),
        "error_over_sigma1": ((ours[:dense_heads] - exact).abs().amax() / exact.amax()).item(),
        "peak_bytes": peak_memory(contenders["delta_spectrum"], device),
        "bytes_of_d_by_d_float32": 4 * dim * dim * heads,
    }  # fmt: skip
    if "TransformerLens FactoredMatrix" in taken:
        row["faster_than_transformer_lens"] = round(
            taken["TransformerLens FactoredMatrix"] / taken["delta_spectrum"], 1
        )
    return row


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="folder for the JSON record")
    parser.add_argument("--quick", action="store_true", help="one small row, to see that it runs")
    args = parser.parse_args()
    rows = {
        "cpu": [("GPT-2 small, one layer", 12, 768, 64, 12, 9), ("Llama, one layer", 32, 4096, 128, 1, 2)],
        "cuda": [("ViT of the paper, 96 circuits", 96, 512, 128, 96, 9), ("Llama, one layer", 32, 4096, 128, 4, 5)],
    }[args.device]
    if args.quick:
        rows = [("quick", 2, 64, 8, 2, 1)]
    results = []
    for name, heads, dim, rank, dense_heads, rounds in rows:
        row = measure(name, heads, dim, rank, device=args.device, dense_heads=dense_heads, rounds=rounds)
        results.append(row)
        print(json.dumps(row, indent=1), flush=True)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"command": COMMAND, "seed": 0, "environment": environment(), "rows": results}
        path = args.out / f"linalg_delta_{args.device}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
