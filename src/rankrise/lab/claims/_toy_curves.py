"""What a run of the theory recorded, as whole curves: its loss, its products, its perturbations, its activations."""

import numpy as np

from rankrise.runs import Array, NotMeasurable, RunData


def loss_curve(run: RunData) -> tuple[Array, Array]:
    """Times and losses of a theory run, one pair for each recorded point."""
    (at, times), (steps, losses) = run.scalar_path("time"), run.scalar_path("loss")
    if not np.array_equal(at, steps):
        raise NotMeasurable(f"{run.source} has `time` and `loss` at different steps: run it again.")
    if np.any(np.diff(times) < 0):
        raise NotMeasurable(f"{run.source} has times out of order: run it again.")
    return times, losses


def along(run: RunData, quantity: str) -> Array:
    """A vector of both circuits at every recorded time of a theory run, (S, 2k): that of kq, then that of vo."""
    steps, found = run.scalar_path("time")[0], [run.path(quantity, circuit) for circuit in ("kq", "vo")]
    if not all(np.array_equal(at, steps) for at, _ in found):
        raise NotMeasurable(f"{run.source} has not recorded `{quantity}` at every time: run it again.")
    return np.concatenate([values[:, 0, 0] for _, values in found], axis=1)


def read_pushes(run: RunData) -> list[tuple[Array, Array, Array]]:
    """For each perturbation of a theory run: times (T,), and the products without and with noise, each (T, 2d)."""
    plain, moved = (
        np.concatenate([run.path(name, circuit, gaps="heads").values[:, 0] for circuit in ("kq", "vo")], axis=-1)
        for name in ("product", "product_perturbed")
    )  # (S, perturbations, 2d)
    times = run.scalar("time")
    if not len(times) == len(plain) == len(moved) or not np.array_equal(np.isnan(plain), np.isnan(moved)):
        raise NotMeasurable(f"{run.source} has not recorded both products at every time: run it again.")
    there = np.isfinite(plain).all(-1)
    return [(times[rows], plain[rows, n], moved[rows, n]) for n, rows in enumerate(there.T)]


def activation_times(run: RunData) -> Array:
    """The time at which each coordinate of q became active, (2d,); inf for a coordinate that never did."""
    d = run.part("task").get("dim")
    width = run.path("product", "kq").values.shape[-1]
    if d != width:
        raise NotMeasurable(f"{run.source} has {width} products of kq and a spec of {d}: run it again.")
    times = np.full(2 * width, np.inf)
    for offset, circuit in ((0, "kq"), (width, "vo")):
        part = run.rows("activation_time", circuit)
        index = part["index"].to_numpy()
        if len(index) and not 0 <= index.min() <= index.max() < width:
            raise NotMeasurable(f"{run.source} has activation times of coordinates it has not: run it again.")
        times[offset + index] = part["value"].to_numpy()
    return times
