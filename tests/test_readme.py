"""Every number in the README is one in the committed results: its tables are built here again and must stand there."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def spectra_lines():
    labels = {
        ("cpu", 0): "GPT-2 small, 12 heads, one CPU thread",
        ("cpu", 1): "Llama layer (d = 4096), 32 heads, one CPU thread",
        ("cuda", 0): "ViT of the paper, 96 circuits, H200",
        ("cuda", 1): "Llama layer (d = 4096), 32 heads, H200",
    }
    for (device, n), label in labels.items():
        row = results(f"linalg_delta_{device}")["rows"][n]
        ms = row["milliseconds"]
        peer = f"{row['faster_than_transformer_lens']:.1f}×" if device == "cpu" else "-"
        ranks = f"{ms['delta_stable_rank steep']:.1f} to {ms['delta_stable_rank flat']:.1f} ms"
        yield f"| {label} | {ms['delta_spectrum']:.0f} ms | {row['faster_than_dense']:.0f}× | {peer} | {ranks} |"


def flow_lines():
    rows = {(r["instance"], r["log10_alpha"], r["solver"]): r for r in results("theory_flow")["rows"]}

    def cost(instance, alpha, solver):
        row = rows[instance, alpha, solver]
        return ("" if row["verdict"] == "right" else "> ") + f"{row['gradient_equivalents']:.0f}"

    solvers = [
        "rankrise",
        "rankrise, default",
        "extensisq SSV2stab",
        "scipy LSODA",
        "scipy DOP853",
        "torchdiffeq dopri5",
    ]
    for instance in ("8-weight head", "toy"):
        for alpha in (-32, -300):
            yield f"| {instance}, α = 1e{alpha} | " + " | ".join(cost(instance, alpha, s) for s in solvers) + " |"


def tracking_lines():
    for device, label in (("cuda", "the paper's ViT, H200"), ("cpu", "a small ViT, one CPU thread")):
        row = results(f"tracking_overhead_{device}")["rows"][0]
        ms = row["milliseconds"]
        yield (
            f"| {label} | {ms['training step']:.1f} ms | {ms['tracker.step, ranks due']:.0f} ms | "
            f"{ms['tracker.step, spectra due']:.0f} ms | {row['overhead_percent_with_20_spectra']:.2f}% |"
        )


def test_tables_repeat_the_committed_results():
    for line in [*spectra_lines(), *flow_lines(), *tracking_lines()]:
        assert line in README, line
