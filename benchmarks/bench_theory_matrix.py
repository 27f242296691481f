"""What the flow of full matrices costs: `solve_matrix_flow` against DOP853 and LSODA on the factors (A, B) in float64.

    OMP_NUM_THREADS=1 python benchmarks/bench_theory_matrix.py --out benchmarks/results

All run at the tolerance 1e-9; the factors have the absolute tolerance 1e-9 α. Dense output is free for the others. An
error is the largest relative error of a stage time (singular value first above 1e-3) against `solve_matrix_flow` at the
tolerance 1e-12, or "missing" where a solver finds other stages. That reference is ours; what it agrees with is in
docs/log/matrices.md. A solver stops after 60 seconds. Gradients and processor seconds are of one run each. Below 1e-16,
where float64 on the factors is wrong, `python -m tests.theory.make_matrix_reference many` runs mpmath in 84 digits; its
processor seconds are in tests/theory/data/many_digits.json.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.integrate import DOP853, LSODA

from rankrise import theory
from rankrise.store import environment

TOLERANCE, REFERENCE, THRESHOLD, CAP_SECONDS = 1e-9, 1e-12, 1e-3, 60.0
ALPHAS = (-4, -8, -12, -16, -32, -64, -1000, -1_000_000)
FLOAT64 = -150  # α itself must be a float64, and so must its square

Array = Any


def sensing() -> tuple[theory.MatrixNetwork, float]:
    """4 x 4 matrix sensing, seed 0, to beyond its third stage."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4, 4))
    m = rng.standard_normal((4, 4)) @ rng.standard_normal((4, 4)).T / 2
    return theory.matrix_sensing(x, (x * m).sum((1, 2))), 2.4


def head() -> tuple[theory.MatrixNetwork, float]:
    """A head with d = 3 that learns a full teacher head from 24 samples of 4 tokens, seed 1."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((24, 4, 3))
    w_k, w_q, w_v, w_o = rng.standard_normal((4, 3, 3)) / 3**0.25
    weights = torch.softmax(torch.from_numpy(x @ (w_k @ w_q.T) @ x.swapaxes(1, 2)), dim=-1).numpy()
    return theory.matrix_head(x, weights @ x @ (w_v @ w_o.T)), 1.45


INSTANCES = {"sensing 4 x 4, seed 0": (sensing, 0), "head d = 3, seed 1": (head, 1)}


def start(net: theory.MatrixNetwork, seed: int) -> list[torch.Tensor]:
    """Gaussian factors before the factor α."""
    rng = np.random.default_rng(1000 + seed)
    pairs = [(rng.standard_normal((sum(shape), min(shape))), shape[0]) for shape in net.shapes]
    return [torch.from_numpy(part) for z, d in pairs for part in (z[:d], z[d:])]


def on_factors(
    kind: Any, net: theory.MatrixNetwork, factors: list[torch.Tensor], log10_alpha: float, t_end: float
) -> tuple[list[tuple[float, int, int]] | None, int, float]:
    """Run a scipy solver on (A, B); return stages as (time, matrix, rank), gradients and processor seconds."""
    alpha, clock = 10.0**log10_alpha, -log10_alpha * math.log(10)
    splits = np.cumsum([f.numel() for f in factors])[:-1]
    count = 0

    def parts(theta: Array) -> list[Array]:
        return [p.reshape(f.shape) for p, f in zip(np.split(theta, splits), factors, strict=True)]

    def slope(_: float, theta: Array) -> Array:
        nonlocal count
        count += 1
        pairs = _pairs(parts(theta))
        gradients = net.loss_and_gradients([torch.from_numpy(a @ b.T) for a, b in pairs])[1]
        moved = [p for (a, b), g in zip(pairs, gradients, strict=True) for p in (g.numpy() @ b, g.numpy().T @ a)]
        return np.concatenate([p.ravel() for p in moved])

    def spectra(theta: Array) -> list[Array]:
        return [np.linalg.svd(a @ b.T, compute_uv=False) for a, b in _pairs(parts(theta))]

    first = alpha * np.concatenate([f.numpy().ravel() for f in factors])
    began = time.process_time()
    solver = kind(slope, 0.0, first, t_end * clock, rtol=TOLERANCE, atol=TOLERANCE * alpha)
    found: list[tuple[float, int, int]] = []
    passed = [0] * len(net.shapes)
    while solver.status == "running":
        solver.step()
        if time.process_time() - began > CAP_SECONDS:
            return None, count, CAP_SECONDS
        between, kept = None, count
        for j, values in enumerate(spectra(solver.y)):
            while passed[j] < int((values > THRESHOLD).sum()):
                between = between or solver.dense_output()
                low, high = solver.t_old, solver.t
                for _ in range(50):
                    middle = 0.5 * (low + high)
                    above = spectra(between(middle))[j][passed[j]] > THRESHOLD
                    low, high = (low, middle) if above else (middle, high)
                found.append((high / clock, j, passed[j]))
                passed[j] += 1
        count = kept
    seconds = time.process_time() - began
    return (sorted(found) if solver.status == "finished" else None), count, seconds


def _pairs(parts: list[Array]) -> list[tuple[Array, Array]]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def error(found: list[tuple[float, int, int]] | None, reference: theory.MatrixFlow) -> float | str:
    """Return the largest relative error of a stage time."""
    if found is None:
        return "stopped"
    expected = dict(
        zip(zip(reference.matrices, reference.ranks, strict=True), reference.stage_times.tolist(), strict=True)
    )
    if {(j, m) for _, j, m in found} != set(expected):
        return "missing"
    return max(abs(t / expected[j, m] - 1) for t, j, m in found)


def main() -> None:
    """Print the table and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []

    def add(
        instance: str, log10_alpha: float, solver: str, gradients: int, hessian: int, seconds: float, err: Any
    ) -> None:
        shown = err if isinstance(err, str) else float(f"{err:.2g}")
        row = {"instance": instance, "log10_alpha": log10_alpha, "solver": solver, "gradients": gradients}
        rows.append(row | {"hessian_products": hessian, "seconds": round(seconds, 2), "worst_error": shown})
        print(*rows[-1].values(), sep=" | ", flush=True)

    for name, (make, seed) in INSTANCES.items():
        net, t_end = make()
        factors = start(net, seed)
        for log10_alpha in ALPHAS:
            given = {"log10_alpha": log10_alpha, "t_end": t_end, "times": [t_end]}
            reference = theory.solve_matrix_flow(net, factors, rtol=REFERENCE, **given)
            began = time.process_time()
            ours = theory.solve_matrix_flow(net, factors, rtol=TOLERANCE, **given)
            seconds = time.process_time() - began
            found = list(zip(ours.stage_times.tolist(), ours.matrices, ours.ranks, strict=True))
            counts = ours.num_gradients, ours.num_hessian_products
            add(name, log10_alpha, "solve_matrix_flow", *counts, seconds, error(found, reference))
            for kind in (DOP853, LSODA) if log10_alpha >= FLOAT64 else ():
                stages, gradients, seconds = on_factors(kind, net, factors, log10_alpha, t_end)
                add(name, log10_alpha, kind.__name__, gradients, 0, seconds, error(stages, reference))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        record = {"command": "python benchmarks/bench_theory_matrix.py", "environment": environment(), "rows": rows}
        (out / "theory_matrix.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
