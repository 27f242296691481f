"""Every number in the README is one in the committed results: its tables are built here again and must stand there."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
THEORY = (ROOT / "docs" / "theory.md").read_text()
TRAINING = (ROOT / "docs" / "training.md").read_text()


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


def training_step_lines():
    row = results("training_step")["rows"][0]
    yield f"| `rankrise run`, data, augmentation and tracking included | {row['rankrise']['milliseconds']:.2f} ms | |"
    for label, other in row["others"].items():
        yield f"| {label} | {other['milliseconds']:.1f} ms | {other['times_ours']:.2f}× |"


RUNS = {  # hash of the spec: what it is
    "1b82e3aab262": "scale 1, 100 epochs",
    "09852b07f1c2": "scale 0.1, 100 epochs",
    "fae23fa33862": "scale 1, 60 epochs",
    "cba2ac28ade4": "scale 1, 60 epochs, float32",
    "dd210f84da1a": "scale 1, 60 epochs, flip and crop",
}
REFERENCE = {  # PAPER.md's independent implementation: key-query change, layers 1-6
    "1b82e3aab262": (2.2, 3.4, 3.0, 4.1, 4.7, 6.4),
    "09852b07f1c2": (1.04, 1.12, 1.22, 1.31, 1.63, 1.56),
}


def training_rows():
    record = json.loads((ROOT / "results" / "training.json").read_text())
    return {row["hash"]: row for row in record["rows"]}


def training_lines():
    for name, label in RUNS.items():
        row = training_rows()[name]
        ranks = (", ".join(f"{r:.2f}" for r in row["stable_ranks"][circuit]) for circuit in ("kq", "vo"))
        yield f"| {label} | {row['scalars']['test_accuracy']:.1%} | {' | '.join(ranks)} |"


def test_tables_repeat_the_committed_results():
    for line in [*spectra_lines(), *tracking_lines(), next(iter(training_step_lines()))]:
        assert line in README, line
    for line in flow_lines():
        assert line in THEORY, line
    for line in [*training_step_lines(), *training_lines()]:
        assert line in TRAINING, line


def test_the_committed_runs_agree_with_the_independent_implementation():
    for name, reference in REFERENCE.items():
        for ours, theirs in zip(training_rows()[name]["stable_ranks"]["kq"], reference, strict=True):
            assert abs(ours / theirs - 1) < 0.1, (name, ours, theirs)  # asked: 30%


def test_accuracies_of_the_committed_runs():
    accuracy = {name: row["scalars"].get("test_accuracy") for name, row in training_rows().items()}
    assert accuracy["fae23fa33862"] >= 0.60
    assert accuracy["dd210f84da1a"] >= 0.75
    assert abs(accuracy["fae23fa33862"] - accuracy["cba2ac28ade4"]) <= 0.02
