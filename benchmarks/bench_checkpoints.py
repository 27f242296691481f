"""LoRA extraction against `mergekit-extract-lora` and WeightWatcher, on a planted 49 M-parameter Llama pair.

    python -m venv peers && peers/bin/pip install torch==2.13.0 mergekit==0.1.5 weightwatcher==0.7.7
    OMP_NUM_THREADS=1 python benchmarks/bench_checkpoints.py --peers peers/bin/python --out benchmarks/results

Every module of the pair has a planted change of rank 4, 8, 16 or 32 and 0.3% of its weight; four are left unchanged.
One pair is stored in float32, one in bfloat16, whose rounding is as large as the change. Each contender is a process
of its own on one thread, interleaved round by round; CPU-seconds are medians over rounds, in the decomposition alone
(inside `torch.linalg.svd`, `decompose_delta`) and of the whole process with its imports. The error of what was
written is measured against the best at that rank, by dense SVD in float64. Without `--peers` a dense SVD of every
change stands in for mergekit, and the record calls it that.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rankrise.store import environment

# As in the docstring; where the peers are and the results go is nobody's business.
COMMAND = re.sub(r" --(out|peers) \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))
RANK, RANKS, SIZE = 32, (4, 8, 16, 32), 0.003

TIMED = """
import json, re, resource, sys, time
import torch
torch.set_num_threads(1)
spent = 0.0
def timed(function):
    def call(*args, **options):
        global spent
        begin = time.process_time()
        try:
            return function(*args, **options)
        finally:
            spent += time.process_time() - begin
    return call
"""
# VmHWM and not ru_maxrss, which begins with the parent's.
REPORT = """
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
usage = resource.getrusage(resource.RUSAGE_SELF)
print("BENCH " + json.dumps({"decomposition": spent, "total": usage.ru_utime + usage.ru_stime, "peak": peak}))
"""
OURS = """
import rankrise.checkpoints.lora._work as work
from rankrise.checkpoints import extract_lora
work.decompose_delta = timed(work.decompose_delta)
done = extract_lora({base!r}, {tuned!r}, out={out!r}, {rule})
print("RANKS " + json.dumps(done.advice.ranks))
"""
MERGEKIT = """
torch.linalg.svd = timed(torch.linalg.svd)
from mergekit.scripts.extract_lora import main
sys.argv = ["mergekit-extract-lora", "--model", {tuned!r}, "--base-model", {base!r}, "--out-path", {out!r},
            "--max-rank", "{rank}", "--quiet"]
try:
    main(standalone_mode=False)
except SystemExit:
    pass
"""
DENSE = """
from pathlib import Path
from safetensors.torch import load_file, save_file
base, tuned = (load_file(Path(f) / "model.safetensors") for f in ({base!r}, {tuned!r}))
svd, found = timed(torch.linalg.svd), {{}}
for name, weight in base.items():
    if weight.ndim == 2 and "embed" not in name:
        u, s, vh = svd((tuned[name] - weight).float(), full_matrices=False)
        root, module = s[:{rank}].sqrt(), "base_model.model." + name.removesuffix(".weight")
        found[module + ".lora_B.weight"] = (u[:, :{rank}] * root).contiguous()
        found[module + ".lora_A.weight"] = (root[:, None] * vh[:{rank}]).contiguous()
Path({out!r}).mkdir()
save_file(found, Path({out!r}) / "adapter_model.safetensors")
"""
WEIGHTWATCHER = """
import weightwatcher, transformers
model, base = (transformers.AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in ({tuned!r}, {base!r}))
weightwatcher.WeightWatcher(model=model).analyze(base_model=base, plot=False)
"""


def plant(folder: Path, dtype: torch.dtype, *, hidden: int, layers: int) -> dict[str, int]:
    """Save both models; returns the planted rank of every module, 0 for unchanged ones."""
    generator = torch.Generator().manual_seed(0)
    mlp, kv, vocabulary = hidden * 8 // 3 // 64 * 64, hidden // 3, 3200
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": mlp,
        "num_hidden_layers": layers, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": hidden // 12,
        "vocab_size": vocabulary, "max_position_embeddings": 512, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "torch_dtype": str(dtype).removeprefix("torch."), "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    shapes = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden)}
    for i in range(layers):
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }.items():  # fmt: skip
            shapes[f"model.layers.{i}.{name}"] = shape
    base, tuned, planted = {}, {}, {}
    unchanged = {"model.embed_tokens", "lm_head", "model.layers.0.self_attn.k_proj", "model.layers.1.mlp.up_proj"}
    for number, (name, shape) in enumerate(shapes.items()):
        weight = 0.02 * torch.randn(*shape, generator=generator)
        rank = 0 if name in unchanged else RANKS[number % 4]
        left, right = (torch.linalg.qr(torch.randn(n, max(1, rank), generator=generator)).Q for n in shape)
        change = left @ right.mT * (SIZE * weight.norm() / max(1, rank) ** 0.5) if rank else torch.zeros(shape)
        planted[name] = rank
        base[f"{name}.weight"], tuned[f"{name}.weight"] = weight.to(dtype), (weight + change).to(dtype)
    norms = [f"model.layers.{i}.{n}" for i in range(layers) for n in ("input_layernorm", "post_attention_layernorm")]
    for tensors, side in ((base, "base"), (tuned, "tuned")):
        tensors |= {f"{name}.weight": torch.ones(hidden, dtype=dtype) for name in [*norms, "model.norm"]}
        (folder / side).mkdir(parents=True)
        save_file(tensors, folder / side / "model.safetensors", {"format": "pt"})
        (folder / side / "config.json").write_text(json.dumps(config))
    print(f"{sum(t.numel() for t in base.values()) / 1e6:.1f} M parameters, {dtype}", file=sys.stderr)
    return planted


def run(python: str, code: str, **values: object) -> dict[str, object]:
    """One contender in a process of its own; its numbers, or why it failed."""
    script = TIMED + code.format(**values) + REPORT
    source = {"PYTHONPATH": os.pathsep.join(map(str, sys.path))} if python == sys.executable else {}
    variables = {**os.environ, "PYTHONPATH": "", **source, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, env=variables)
    found: dict[str, object] = {}
    for line in done.stdout.splitlines():
        if line.startswith("BENCH "):
            found |= json.loads(line[6:])
        elif line.startswith("RANKS "):
            found["ranks"] = json.loads(line[6:])
    return found or {"failed": (done.stderr or done.stdout).strip().splitlines()[-1][:300]}


def above_best(adapter: Path, base: Path, tuned: Path) -> dict[str, float]:
    """Error of an adapter's own product over the best error at its ranks, worst module and all together."""
    factors, before, after = (load_file(p) for p in (adapter, base / "model.safetensors", tuned / "model.safetensors"))
    ratios, mine, best, at_rest = [], 0.0, 0.0, 0.0
    config = json.loads((adapter.parent / "adapter_config.json").read_text()) if adapter.parent.joinpath(
        "adapter_config.json").exists() else {}  # fmt: skip
    for key, a in factors.items():
        if not key.endswith("lora_A.weight"):
            continue
        b, name = (
            factors[key.replace("lora_A", "lora_B")],
            key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"),
        )
        scale = _alpha(config, name, a.shape[0]) / a.shape[0]
        delta = after[f"{name}.weight"].double() - before[f"{name}.weight"].double()
        error = float((delta - scale * b.double() @ a.double()).norm())
        if not delta.any():
            at_rest += error**2
            continue
        optimum = float(torch.linalg.svdvals(delta)[a.shape[0] :].norm())
        ratios.append(error / optimum)
        mine, best = mine + error**2, best + optimum**2
    return {"worst_module": max(ratios), "all_modules": math.sqrt(mine / best) if best else 1.0, "modules": len(ratios)}


def _alpha(config: dict, name: str, rank: int) -> float:
    for pattern, alpha in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", name):
            return alpha
    return config.get("lora_alpha", rank)


def measure(
    folder: Path, dtype: torch.dtype, peers: str | None, rounds: int, size: dict[str, int]
) -> dict[str, object]:
    """One pair through every contender."""
    planted = plant(folder, dtype, **size)
    base, tuned = folder / "base", folder / "tuned"
    contenders = {"rankrise, rank 32": (sys.executable, OURS, {"rule": f"rank={RANK}"})}
    if peers is not None:
        contenders["mergekit-extract-lora 0.1.5, rank 32"] = (peers, MERGEKIT, {"rank": RANK})
        contenders["WeightWatcher 0.7.7, analyze against the base"] = (peers, WEIGHTWATCHER, {})
    else:
        contenders["dense SVD of every change, standing in for mergekit"] = (sys.executable, DENSE, {"rank": RANK})
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in contenders}
    quality: dict[str, object] = {}
    for round_ in range(rounds):
        for number, (name, (python, code, values)) in enumerate(contenders.items()):
            out = folder / f"out-{number}-{round_}"
            runs[name].append(run(python, code, base=str(base), tuned=str(tuned), out=str(out), **values))
            print(name, runs[name][-1].get("failed", runs[name][-1]), file=sys.stderr, flush=True)
            adapter = out / "adapter_model.safetensors"
            if round_ == 0 and adapter.exists():
                quality[name] = {**above_best(adapter, base, tuned), "bytes": adapter.stat().st_size}
    floor = run(sys.executable, OURS, base=str(base), tuned=str(tuned), out=str(folder / "floor"), rule="floor=True")
    wanted = {name: rank for name, rank in planted.items() if rank}
    rows = {}
    for name, found in runs.items():
        if "failed" in found[0]:
            rows[name] = found[0]
            continue
        median = {key: statistics.median(float(f[key]) for f in found) for key in ("decomposition", "total", "peak")}
        rows[name] = {
            "cpu_seconds_decomposition": round(median["decomposition"], 3) or None,
            "cpu_seconds_total": round(median["total"], 2),
            "peak_megabytes": round(median["peak"] / 1e6),
            **({"error_over_best": quality[name]} if name in quality else {}),
        }
    ours = next(iter(rows.values()))
    ratios = {
        name: {
            "decomposition": round(row["cpu_seconds_decomposition"] / ours["cpu_seconds_decomposition"], 1)
            if row.get("cpu_seconds_decomposition")
            else None,
            "total": round(row["cpu_seconds_total"] / ours["cpu_seconds_total"], 2),
            "peak": round(row["peak_megabytes"] / ours["peak_megabytes"], 2),
        }
        for name, row in list(rows.items())[1:]
        if "failed" not in row
    }
    return {
        "dtype": str(dtype).removeprefix("torch."), "rounds": rounds, "contenders": rows, "times_ours": ratios,
        "planted_ranks_recovered": {"right": sum(floor.get("ranks", {}).get(n) == r for n, r in wanted.items()),
                                    "of": len(wanted), "beside": len(set(floor.get("ranks", {})) - set(wanted)),
                                    "cpu_seconds_total": floor.get("total")},
    }  # fmt: skip


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="python of the environment that has mergekit and WeightWatcher")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for the JSON record")
    parser.add_argument("--quick", action="store_true", help="a tiny pair, to see that it runs")
    args = parser.parse_args()
    if args.peers is None:
        print("No --peers: mergekit and WeightWatcher are left out; a dense SVD stands in.", file=sys.stderr)
    size = {"hidden": 192, "layers": 2} if args.quick else {"hidden": 768, "layers": 7}
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(Path(folder), dtype, args.peers, 1 if args.quick else args.rounds, size)
        rows.append(row)
        print(json.dumps(row, indent=1), flush=True)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        record = {"command": COMMAND, "seed": 0, "environment": environment(), "rows": rows}
        (args.out / "checkpoints.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {args.out / 'checkpoints.json'}", file=sys.stderr)


if __name__ == "__main__":
    main()
