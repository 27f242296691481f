"""Run directories with known answers, written through the store as the runner writes them."""

import numpy as np
import torch

from rankrise.store import create_run, rows, scalar_rows

TASK = {"dim": 2, "tokens": 3, "samples": 5}


def write_run(folder, *, experiment, spec, blocks):
    run = create_run(
        folder,
        spec={"kind": "tracker", "config": {"experiment": experiment, "spec": spec}},
        initial={"w": torch.zeros(1)},
    )
    for block in blocks:
        run.append(block)
    run.seal()
    return folder


def network_spec(*, seed=0, init_scale=1.0, epochs=10, kind="vit", data="cifar10", layers=2, heads=2):
    return {
        "kind": "training",
        "data": {"name": data, "path": None, "num_train": 1000},
        "model": {"kind": kind, "init_scale": init_scale, "num_layers": layers, "num_heads": heads},
        "training": {"epochs": epochs, "optimiser": "adam"},
        "seed": seed,
    }


def network_run(out, experiment, *, ranks, spectra=None, initial=None, record=None, **spec):
    """`ranks` {step: (layers, heads)} for kq, twice that for vo; `spectra` {step: (layers, heads, k)} likewise."""
    blocks = []
    for circuit, factor in (("kq", 1.0), ("vo", 2.0)):
        for step, values in ranks.items():
            value = factor * np.asarray(values, dtype=float)
            blocks.append(rows(step, "stable_rank", value, circuit=circuit, layers=range(len(value)), heads=True))
        for step, values in (spectra or {}).items():
            value = factor * np.asarray(values, dtype=float)
            blocks.append(rows(step, "spectrum", value, circuit=circuit, layers=range(len(value)), heads=True))
        if initial is not None:
            value = factor * np.asarray(initial, dtype=float)
            blocks.append(rows(0, "initial_spectrum", value, circuit=circuit, layers=range(len(value)), heads=True))
    seed = spec.get("seed", 0)
    shape = np.asarray(next(iter(ranks.values()))).shape
    record = record or network_spec(layers=shape[0], heads=shape[1], **spec)
    return write_run(out / experiment / f"{seed:012x}", experiment=experiment, spec=record, blocks=blocks)


def path_blocks(times, losses, products, *, quantity="product", extra=()):
    """`products` (T, 2d): a then b."""
    scalars = [(k, "time", t) for k, t in enumerate(times)] + [(k, "loss", v) for k, v in enumerate(losses)]
    blocks = [scalar_rows([*scalars, *extra])]
    for k, q in enumerate(np.asarray(products, dtype=float)):
        for circuit, half in zip(("kq", "vo"), np.split(q, 2), strict=True):
            blocks.append(rows(k, quantity, half[None, None], circuit=circuit, layers=[0], heads=True))
    return blocks


def flow_run(out, log10_alpha, *, times, losses, products, seed=0, task=TASK):
    name = f"toy-flow-1e{log10_alpha:g}"
    spec = {"kind": "flow", "task": task, "log10_alpha": log10_alpha, "seed": seed}
    blocks = path_blocks(times, losses, products)
    return write_run(out / name / f"{seed:012x}", experiment=name, spec=spec, blocks=blocks)


def stages_run(out, *, times, losses, products, joined, seed=0, task=TASK):
    extra = [(k + 1, "joined", float(i)) for k, i in enumerate(joined)]
    blocks = path_blocks(times, losses, products, extra=extra)
    spec = {"kind": "stages", "task": task, "seed": seed}
    return write_run(out / "toy-stages" / f"{seed:012x}", experiment="toy-stages", spec=spec, blocks=blocks)


def matrix_run(out, *, times, losses, spectra, seed=0, task=TASK):
    blocks = path_blocks(times, losses, spectra, quantity="spectrum")
    spec = {"kind": "matrix_flow", "task": task, "log10_alpha": -4.0, "seed": seed}
    return write_run(out / "toy-matrix-flow" / "0", experiment="toy-matrix-flow", spec=spec, blocks=blocks)


def robustness_run(out, assumption, *, pushes, seed=0, task=TASK):
    """`pushes` [(times, plain (T, 2d), pushed (T, 2d))]: head n has steps of its own."""
    blocks, step = [], 0
    for n, (times, *paths) in enumerate(pushes):
        blocks.append(scalar_rows([(step + k, "time", t) for k, t in enumerate(times)]))
        for quantity, path in zip(("product", "product_perturbed"), paths, strict=True):
            for k, q in enumerate(np.asarray(path, dtype=float)):
                for circuit, half in zip(("kq", "vo"), np.split(q, 2), strict=True):
                    values = np.full((1, n + 1, len(half)), np.nan)
                    values[0, n] = half
                    block = rows(step + k, quantity, values, circuit=circuit, layers=[0], heads=True)
                    blocks.append(block.filter(np.isfinite(block["value"].to_numpy())))
        step += len(times)
    name = f"toy-robustness-{assumption}"
    spec = {"kind": "robustness", "task": task, "log10_alpha": -32.0, "noise": 0.05, "seed": seed}
    return write_run(out / name / "0", experiment=name, spec=spec, blocks=blocks)


def toy_runs(out):
    """All toy experiments: a_1 joins at 1, b_2 at 2; the flow at α lags by 0.1 for 1e-2 and 0.01 for 1e-8."""
    runs = {}
    steps = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, -2]]
    runs["toy-stages"] = [stages_run(out, times=[0, 1, 2], losses=[3, 2, 0], products=steps, joined=[0, 3])]
    for log10_alpha, lag in ((-2.0, 0.1), (-8.0, 0.01)):
        times = [0, 1, 1 + lag, 2, 2 + lag, 3]
        products = [steps[0], steps[0], steps[1], steps[1], steps[2], steps[2]]
        folder = flow_run(out, log10_alpha, times=times, losses=[3, 3, 2, 2, 0, 0], products=products)
        runs[folder.parent.name] = [folder]
    spectra = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0.5, 2, 0]]
    runs["toy-matrix-flow"] = [matrix_run(out, times=[0, 1, 2], losses=[3, 1, 0], spectra=spectra)]
    plain = [[1, 0, 0, 0]] * 4
    pushed = [[1.5, 0, 0, 0], [1.05, 0, 0, 0], [1.005, 0, 0, 0], [1.0005, 0, 0, 0]]
    nothing = ([0, 0.1, 0.2, 0.3], plain, plain)
    for assumption in ("4.3", "4.4"):
        pushes = [([1, 1.1, 1.2, 1.3], plain, pushed), nothing, ([2, 2.1, 2.2, 2.3], plain, pushed)]
        runs[f"toy-robustness-{assumption}"] = [robustness_run(out, assumption, pushes=pushes)]
    return runs
