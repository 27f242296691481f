"""Runs with a table of our choosing, so that the answer to every claim is known."""

import numpy as np
import torch

from rankrise.lab.experiments import experiments
from rankrise.lab.experiments.kinds._toy_parts import curve_rows, path_rows, product_rows
from rankrise.store import create_run, rows

FACTORS = (1.0, 0.3, 0.1, 0.03)


def data_of(name):
    """What the experiment of that name is about."""
    return experiments()[name].paper.data.name


def seal(root, name, seed, spec, blocks):
    """A sealed run of an experiment."""
    folder = root / name / f"seed-{seed}"
    config = {"experiment": name, "spec": {**spec, "seed": seed}}
    run = create_run(folder, spec={"kind": "theory", "config": config}, initial={"w": torch.zeros(1)})
    for block in blocks:
        run.append(block)
    run.seal()
    return folder


def stages(root, *, products=((0, 0), (1, 0), (1, 1)), times=None, gap=0.5, curvature=0.5, losses=None, seed=0):
    """A run of `toy-stages`; `joined` follows from the products."""
    products = np.array(products, dtype=float)
    num = len(products)
    new = [np.flatnonzero((products[k + 1] != 0) & (products[k] == 0)) for k in range(num - 1)]
    nothing = [np.nan]
    curves = {
        "time": np.arange(num) if times is None else times,
        "loss": np.linspace(1, 0, num) if losses is None else losses,
        "joined": nothing + [float(i[0]) for i in new],
        "gap": nothing + [gap] * (num - 1),
        "curvature": nothing + [curvature] * (num - 1),
    }
    spec = {"kind": "stages", "task": {"kind": "toy", "dim": products.shape[1] // 2}}
    return seal(root, "toy-stages", seed, spec, [curve_rows(curves), *product_rows(products)])


def staircase(times, drops, width):
    """A loss from 1 to 0 in equal drops, each `width` long."""
    return 1 - np.mean([np.clip((times - drop) / width + 0.5, 0, 1) for drop in drops], axis=0)


def toy(root, name, *, losses, times=None, activations=(0.5, 0.9), products=None, log10_alpha=-32.0, seed=0):
    """A flow or a descent; products stay away from the threshold unless given."""
    times = np.linspace(0, 1, len(losses)) if times is None else np.asarray(times)
    activations = np.array(activations, dtype=float)
    if products is None:
        products = (times[:, None] >= activations).astype(float)
    spec = {
        "kind": "flow",
        "task": {"kind": "toy", "dim": len(activations) // 2},
        "log10_alpha": log10_alpha,
        "threshold": 1e-3,
    }
    reached = product_rows(activations[None], quantity="activation_time", steps=[len(losses) - 1])
    reached = [block.filter(np.isfinite(block["value"].to_numpy())) for block in reached]
    blocks = [curve_rows({"time": times, "loss": losses}), *product_rows(products), *reached]
    return seal(root, name, seed, spec, blocks)


def matrix_flow(root, *, emerge, sizes=1.0, seed=0):
    """Singular values of both products that jump from 0 to `sizes` at given times; the loss falls evenly."""
    times = np.linspace(0, 1, 101)
    sigma = (times[:, None] >= np.array(emerge)) * np.array(sizes)
    blocks = [curve_rows({"time": times, "loss": 1 - times})]
    blocks += [path_rows("spectrum", sigma, circuit=circuit) for circuit in ("kq", "vo")]
    return seal(root, "toy-matrix-flow", seed, {"kind": "matrix_flow", "task": {"dim": len(emerge)}}, blocks)


def matrix_stages(root, *, predicted=(0.3, 0.6), minor=0.5, seed=0):
    """A run of `toy-full-stages`: one direction of each product, kq first, at 0.3 and 0.6; predicted at α = 1e-8."""
    nothing = [np.nan]
    curves = {
        "time": [0.0, 0.3, 0.6],
        "loss": [1.0, 0.5, 0.0],
        "product": [*nothing, 0.0, 1.0],
        "smallest_minor": [*nothing, minor, 2 * minor],
        "curvature": [*nothing, 1.0, 1.0],
    }
    blocks = [curve_rows(curves)]
    blocks += [path_rows("spectrum", [[0.0], [1.0], [1.0]], circuit="kq")]
    blocks += [path_rows("spectrum", [[0.0], [0.0], [1.0]], circuit="vo")]
    blocks.append(path_rows("predicted_time", [predicted], circuit="", steps=[2]))
    spec = {"kind": "matrix_stages", "task": {"dim": 1}, "log10_alphas": [-8.0]}
    return seal(root, "toy-full-stages", seed, spec, blocks)


def full_flow(root, name="toy-full-flow-1e-8", *, at=(0.3, 0.6), seed=0):
    """A flow of full matrices whose two singular values jump from 1e-6 to 1 at given times."""
    times = np.linspace(0, 1, 101)
    sigma = np.where(times[:, None] >= np.array(at), 1.0, 1e-6)
    blocks = [curve_rows({"time": times, "loss": 1 - times})]
    blocks += [path_rows("spectrum", sigma[:, [j]], circuit=circuit) for j, circuit in enumerate(("kq", "vo"))]
    spec = {"kind": "matrix_flow", "task": {"dim": 1}, "log10_alpha": -8.0}
    return seal(root, name, seed, spec, blocks)


def adam_phases(root, *, starts, seed=0):
    """Runs whose loss falls evenly over ten points; `starts` (ε, 2d) is when coordinates start, of one β₂ and one α."""
    spec = {
        "kind": "adam_phases",
        "task": {"dim": len(starts[0]) // 2},
        "epsilons": [1e-8, 1.0][: len(starts)],
        "beta2s": [0.9],
        "log10_alphas": [-8.0],
        "num_points": 10,
    }
    points = list(range(11))
    blocks = [curve_rows({"time": np.array(points) / 10})]
    for n, first in enumerate(starts):
        losses = 1 - np.array(points)[:, None] / 10
        blocks.append(path_rows("loss_of_case", losses, circuit="", steps=points, head=n))
        blocks.append(path_rows("active_from", [first], circuit="", steps=[10], head=n))
    return seal(root, "toy-adam-phases", seed, spec, blocks)


def named_stages(root, name, **changes):
    """A run of Algorithm 1 under the name of another experiment."""
    run = stages(root / "made", **changes)
    (root / name).mkdir(parents=True, exist_ok=True)
    return run.rename(root / name / run.name)


def robustness(root, name, *, final=(), gaps=None, seed=0):
    """Perturbations of 0.1 that end at distances `final`, or with distances `gaps` at even times; products are 1."""
    blocks = []
    for n, path in enumerate(gaps or [(0.1, end, end, end) for end in final]):
        steps = [len(path) * n + k for k in range(len(path))]
        plain = np.ones((len(path), 4))
        moved = plain + np.array(path)[:, None]
        times = np.linspace(0, 1, len(path))
        blocks += [curve_rows({"time": times}, steps=steps), *product_rows(plain, steps=steps, head=n)]
        blocks += product_rows(moved, quantity="product_perturbed", steps=steps, head=n)
    return seal(root, name, seed, {"kind": "robustness", "task": {"dim": 2}, "noise": 0.05}, blocks)


def network(
    root,
    name,
    *,
    kq=None,
    vo=None,
    init=10,
    init_scale=1.0,
    accuracy=0.6,
    width=64,
    head_dim=32,
    num_measured=12,
    epochs=10,
    data=None,
    num_heads=2,
    seed=0,
    more=(),
):
    """A trained network: stable ranks (layers, measurements) after the start; heads that differ by ±0.1.

    `more` are further blocks of its table.
    """
    if kq is None and vo is None:
        kq, vo = ((1.5, 2, 2.5), (1.5, 2.5, 3)), ((2, 3, 4), (3, 4, 5))
    kq, vo = kq or vo, vo or kq  # the other circuit alike
    blocks = []
    for circuit, ranks in (("kq", kq), ("vo", vo)):
        ranks = np.array(ranks, dtype=float)
        if num_measured is not None:  # the same curve, measured more often
            at = np.linspace(0, ranks.shape[1] - 1, num_measured)
            ranks = np.stack([np.interp(at, np.arange(ranks.shape[1]), row) for row in ranks])
        layers = np.arange(len(ranks))
        heads = np.linspace(-0.1, 0.1, num_heads)
        blocks.append(
            rows(0, "stable_rank", np.zeros((len(ranks), num_heads)), circuit=circuit, layers=layers, heads=True)
        )
        for k, values in enumerate(ranks.T, 1):
            block = values[:, None] + heads
            blocks.append(rows(10 * k, "stable_rank", block, circuit=circuit, layers=layers, heads=True))
        start = np.ones((len(ranks), init)) if np.isscalar(init) else np.array(init, dtype=float)
        start = np.stack([start] * num_heads, axis=1)  # a flat spectrum has its length as stable rank
        blocks.append(rows(0, "initial_spectrum", start, circuit=circuit, layers=layers, heads=True))
    blocks.append(rows(10 * ranks.shape[1], "test_accuracy", [accuracy]))
    model = {"kind": "vit", "width": width, "head_dim": head_dim, "init_scale": init_scale}
    spec = {"kind": "training", "model": model, "data": {"name": data or data_of(name)}, "training": {"epochs": epochs}}
    return seal(root, name, seed, spec, [*blocks, *more])


def family(root, base, *, ranks, accuracies=(0.6, 0.6, 0.6, 0.5), circuit="kq", seed=0):
    """Runs at four initial scales whose final stable ranks are given, one for both of two layers or one for each."""
    found = {}
    for factor, rank, accuracy in zip(FACTORS, ranks, accuracies, strict=True):
        name = f"{base}-scale-{factor:g}"
        curves = {circuit: [(1.2, r) for r in ((rank, rank) if np.isscalar(rank) else rank)]}
        found[name] = [network(root, name, **curves, init_scale=factor, accuracy=accuracy, seed=seed)]
    return found
