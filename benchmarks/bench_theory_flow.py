"""What the activation times of the gradient flow cost: `solve_flow` against five other ways to get them.

    OMP_NUM_THREADS=1 python benchmarks/bench_theory_flow.py --out benchmarks/results

Everyone must give each activation time (|u_i v_i| first above 1e-3) within 1e-3, in rescaled time, of a reference. Each
solver starts at a loose setting and is tightened until it does; the first setting that does is its cost. Ours is shown
at its default too. A solver stops when it has spent a fixed multiple of ours, and is then reported as "> cap"; gradient
descent, whose cost is known beforehand, does not start. Costs are in gradients of the loss; a Jacobian column counts at
its measured cost. Dense output is free for everyone: evaluations made only for it are not counted. The reference is
`solve_flow` at a tighter tolerance; the others that are right agree with it to within 1e-3.

Symbols:
    q, g     u ⊙ v and -∂L/∂q
    w, ŵ, s  u + v, u - v, and the rapidity: log w(t) = log w(0) + s, log ŵ(t) = log ŵ(0) - s, ds/dt = g
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.integrate import DOP853, LSODA

from rankrise import theory
from rankrise.store import environment

# As in the docstring; where the results go is nobody's business.
COMMAND = re.sub(r" --out \S+", "", " ".join(["python", f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]))

THRESHOLD = 1e-3
ACCURACY = 1e-3
GRID = 4001

Array = np.ndarray
Solver = Callable[["Problem", "Meter", float], Array]


@dataclass(frozen=True)
class Problem:
    """An instance at one α."""

    instance: str
    net: theory.DiagonalNetwork
    u0: torch.Tensor
    v0: torch.Tensor
    log10_alpha: float
    t_end: float
    cap: float  # multiple of our cost at which the others stop
    reference_rtol: float  # of `solve_flow`, for the reference

    @property
    def clock(self) -> float:
        """The logarithm log(1/α), the unit of rescaled time."""
        return -self.log10_alpha * math.log(10)

    @property
    def grid(self) -> Array:
        """Rescaled times at which everyone is looked at."""
        return np.linspace(0, self.t_end, GRID)


@dataclass
class Meter:
    """Counts gradients, and stops a solver that has used up its allowance."""

    net: theory.DiagonalNetwork
    cap: float = math.inf
    gradients: int = 0
    paused: bool = False

    def gradient(self, q: Array) -> Array:
        """Return g(q), and count it."""
        if not self.paused:
            self.gradients += 1
            if self.gradients > self.cap:
                raise CapReached
        return self.net.gradient(torch.from_numpy(q)).numpy()

    @contextlib.contextmanager
    def free(self) -> Iterator[None]:
        """Do not count what happens inside."""
        self.paused = True
        yield
        self.paused = False


class CapReached(Exception):
    """The allowance is used up."""


class SolverFailed(Exception):
    """The solver gave up; the message is its own."""


@dataclass
class Row:
    """One line of the table."""

    instance: str
    log10_alpha: float
    solver: str
    verdict: str
    setting: float | None = None
    gradients: int = 0
    columns: int = 0
    gradient_equivalents: float = 0.0
    seconds: float = 0.0
    worst_error: float | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)


# The others, each returning log|q| on the problem's grid, (GRID, p)


def weights_slope(meter: Meter) -> Callable[[float, Array], Array]:
    """The right-hand side in (u, v)."""

    def slope(_: float, theta: Array) -> Array:
        u, v = np.split(theta, 2)
        g = meter.gradient(u * v)
        return np.concatenate([v * g, u * g])

    return slope


def weights_start(problem: Problem) -> Array:
    """Return α θ0."""
    return torch.cat([problem.u0, problem.v0]).numpy() * 10.0**problem.log10_alpha


def log_product(theta: Array) -> Array:
    """log|u v| of (u, v) along the last axis, which survives where u v itself underflows."""
    u, v = np.split(theta, 2, axis=-1)
    with np.errstate(divide="ignore"):
        return np.log(np.abs(u)) + np.log(np.abs(v))


def march(solver: Any, problem: Problem, meter: Meter) -> Array:
    """Step a scipy solver to its end, and return its states on the grid."""
    grid, rows = problem.grid * problem.clock, [solver.y[None].copy()]
    done = 1
    while solver.status == "running":
        message = solver.step()
        if solver.status == "failed":
            raise SolverFailed(message)
        if not np.isfinite(solver.y).all():
            raise SolverFailed(f"not finite at rescaled time {solver.t / problem.clock:.3g}")
        upto = len(grid) if solver.status == "finished" else int(np.searchsorted(grid, solver.t, side="right"))
        if upto > done:
            with meter.free():
                rows.append(solver.dense_output()(np.minimum(grid[done:upto], solver.t)).T)
            done = upto
    return np.concatenate(rows)


def gradient_descent(problem: Problem, meter: Meter, learning_rate: float) -> Array:
    """Fixed-step gradient descent on (u, v): Euler's method."""
    num_steps = math.ceil(problem.t_end * problem.clock / learning_rate)
    if num_steps > meter.cap:
        raise CapReached
    theta, slope = weights_start(problem), weights_slope(meter)
    rows = [log_product(theta)]
    for _ in range(num_steps):
        theta = theta + learning_rate * slope(0.0, theta)
        if not np.abs(theta).max() < 1e50:
            raise SolverFailed("diverged")
        rows.append(log_product(theta))
    times, path = np.arange(num_steps + 1) * learning_rate / problem.clock, np.stack(rows)
    return np.stack([np.interp(problem.grid, times, column) for column in path.T], axis=1)


def scipy_on_weights(method: Any) -> Solver:
    """A solver of scipy on (u, v), with an absolute tolerance far below α."""

    def solve(problem: Problem, meter: Meter, rtol: float) -> Array:
        start, end = weights_start(problem), problem.t_end * problem.clock
        atol = 1e-6 * 10.0**problem.log10_alpha
        return log_product(march(method(weights_slope(meter), 0.0, start, end, rtol=rtol, atol=atol), problem, meter))

    return solve


def torchdiffeq_dopri5(problem: Problem, meter: Meter, rtol: float) -> Array:
    """Dormand-Prince 5(4) of torchdiffeq on (u, v), with an absolute tolerance far below α."""
    from torchdiffeq import odeint

    slope = weights_slope(meter)
    times = torch.from_numpy(problem.grid * problem.clock)
    try:
        path = odeint(
            lambda t, theta: torch.from_numpy(slope(0.0, theta.numpy())),
            torch.from_numpy(weights_start(problem)),
            times,
            method="dopri5",
            rtol=rtol,
            atol=1e-6 * 10.0**problem.log10_alpha,
        )
    except AssertionError as error:  # its way to say that the step underflowed
        raise SolverFailed(str(error)) from error
    return log_product(path.numpy())


def extensisq_in_rapidity(problem: Problem, meter: Meter, tolerance: float) -> Array:
    """The stabilised explicit SSV2stab of extensisq on ds/dt = g, the coordinates of `solve_flow`."""
    from extensisq import SSV2stab

    u, v = problem.u0.numpy(), problem.v0.numpy()
    larger = np.abs(v) > np.abs(u)
    u, v = np.where(larger, v, u), np.where(larger, u, v)
    sign = np.sign(u)
    log_w, log_w_hat = np.log(sign * (u + v)) - problem.clock, np.log(sign * (u - v)) - problem.clock

    def slope(_: float, s: Array) -> Array:
        # Clipped so that a trial step that is far too long is rejected by its error, and not by an overflow.
        w, w_hat = np.exp(np.minimum(log_w + s, 3.0)), np.exp(np.minimum(log_w_hat - s, 3.0))
        return meter.gradient(0.25 * (w**2 - w_hat**2))

    end = problem.t_end * problem.clock
    solver = SSV2stab(slope, 0.0, np.zeros_like(u), end, rtol=tolerance, atol=tolerance)
    s = march(solver, problem, meter)
    high = np.maximum(log_w + s, log_w_hat - s)
    gap = np.abs(log_w - log_w_hat + 2 * s)
    with np.errstate(divide="ignore"):
        return 2 * high + np.log(-np.expm1(-2 * gap)) - math.log(4)


PEERS: dict[str, tuple[str | None, Solver, tuple[float, ...]]] = {
    "gradient descent": (None, gradient_descent, (1e-1, 1e-2, 1e-3)),
    "scipy LSODA": (None, scipy_on_weights(LSODA), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    "scipy DOP853": (None, scipy_on_weights(DOP853), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    "torchdiffeq dopri5": ("torchdiffeq", torchdiffeq_dopri5, (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    "extensisq SSV2stab": ("extensisq", extensisq_in_rapidity, (1e-2, 3e-3, 1e-3, 1e-4)),
}
OURS = (1e-1, 1e-2, 1e-3, 1e-4)
DEFAULT = (1e-3,)
# Loosened too far, this one's steps turn unstable and it costs more, so that a cap is no reason to stop tightening it.
DEARER_WHEN_LOOSE = ("extensisq SSV2stab",)


def activations(problem: Problem, log_q: Array) -> Array:
    """The rescaled time at which each log|q| first passes the threshold, linear in between; inf if it does not."""
    level = math.log(THRESHOLD)
    above = log_q > level
    after = above.argmax(axis=0)
    column = np.arange(log_q.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        before = np.maximum(after - 1, 0)
        low, high = log_q[before, column], log_q[after, column]
        inside = problem.grid[before] + (level - low) / (high - low) * (problem.grid[1] - problem.grid[0])
    return np.where(above.any(axis=0), np.where(after == 0, 0.0, inside), np.inf)


def worst_error(problem: Problem, times: Array, reference: Array) -> float:
    """The largest difference, where a time beyond the end counts as the end."""
    return float(np.abs(np.minimum(times, problem.t_end) - np.minimum(reference, problem.t_end)).max())


def solve_ours(problem: Problem, rtol: float) -> tuple[Any, Array]:
    """Return our flow and its activation times."""
    flow = theory.solve_flow(
        problem.net, problem.u0, problem.v0, log10_alpha=problem.log10_alpha, t_end=problem.t_end, rtol=rtol
    )
    return flow, np.asarray(theory.activation_times(flow, threshold=THRESHOLD))


def run_ours(name: str, settings: tuple[float, ...], problem: Problem, reference: Array, column_cost: float) -> Row:
    """Tighten our tolerance until the activation times are right."""
    row = Row(problem.instance, problem.log10_alpha, name, "wrong")
    for rtol in settings:
        start = time.perf_counter()
        flow, times = solve_ours(problem, rtol)
        row.seconds = time.perf_counter() - start
        row.setting, row.gradients, row.columns = rtol, flow.num_gradients, flow.num_jacobian_columns
        row.gradient_equivalents = row.gradients + column_cost * row.columns
        row.worst_error = worst_error(problem, times, reference)
        row.tried.append({"setting": rtol, "cost": row.gradient_equivalents, "worst_error": row.worst_error})
        if row.worst_error <= ACCURACY:
            row.verdict = "right"
            break
    return row


def run_peer(name: str, problem: Problem, reference: Array, allowance: float) -> Row:
    """Tighten another solver's setting until its activation times are right or its allowance is used up."""
    package, solver, settings = PEERS[name]
    row = Row(problem.instance, problem.log10_alpha, name, "wrong")
    if package is not None and version(package) is None:
        row.verdict = f"{package} is not installed"
        return row
    for setting in settings:
        meter = Meter(problem.net, cap=allowance)
        start = time.perf_counter()
        error, verdict = None, "wrong"
        try:
            log_q = solver(problem, meter, setting)
            error = worst_error(problem, activations(problem, log_q), reference)
            verdict = "right" if error <= ACCURACY else "wrong"
        except CapReached:
            verdict = "> cap"
        except SolverFailed as failure:
            verdict = f"failed: {failure}"
        seconds = time.perf_counter() - start
        row.tried.append({"setting": setting, "cost": meter.gradients, "worst_error": error, "verdict": verdict})
        # A setting that ran into the cap says more than a later one that failed or was wrong within it.
        if verdict == "right" or row.verdict != "> cap":
            row.verdict, row.worst_error, row.setting, row.seconds = verdict, error, setting, seconds
            row.gradients = meter.gradients
            row.gradient_equivalents = allowance if verdict == "> cap" else float(meter.gradients)
        if verdict == "right" or (verdict == "> cap" and name not in DEARER_WHEN_LOOSE):
            break
    return row


def measure_column_cost(net: theory.DiagonalNetwork, q: torch.Tensor, repeats: int) -> tuple[float, float]:
    """Seconds of a gradient, and a Jacobian column in gradients; the columns of the active half, best of `repeats`."""
    index = q.abs().argsort(descending=True)[: net.num_weights // 2].tolist()

    def best(work: Callable[[], object]) -> float:
        spans = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            spans.append(time.perf_counter() - start)
        return min(spans)

    gradient = best(lambda: net.gradient(q))
    return gradient, best(lambda: net.hessian_columns(q, index)) / len(index) / gradient


def num_leaves(products: Array) -> int:
    """Coordinates that were active and ended below a hundredth of the threshold."""
    return int(((np.abs(products).max(axis=0) > THRESHOLD) & (np.abs(products[-1]) < 1e-2 * THRESHOLD)).sum())


def problems(quick: bool) -> Iterator[Problem]:
    """Yield the instances: an 8-weight head and the paper's toy, on which no coordinate leaves the support."""
    small = theory.teacher_task(samples=100, tokens=5, dim=4, seed=27)
    head, start = theory.attention_head(small.x, small.y), theory.gaussian_start(8, seed=27)
    for log10_alpha in (-32,) if quick else (-32, -300):
        yield Problem("8-weight head", head, *start, log10_alpha, t_end=2.0, cap=60.0, reference_rtol=1e-7)
    toy = theory.teacher_task(samples=50, tokens=5, dim=8, seed=5) if quick else theory.teacher_task(seed=5)
    net = theory.attention_head(toy.x, toy.y)
    for log10_alpha in (-32,) if quick else (-32, -300):
        start = theory.gaussian_start(net.num_weights, seed=0)
        yield Problem("toy", net, *start, log10_alpha, t_end=2.0 if quick else 0.5, cap=5.5, reference_rtol=1e-4)


def version(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def report(row: Row, ours: Row) -> str:
    """Format one line of the table."""
    cost = f"{'> ' if row.verdict == '> cap' else ''}{row.gradient_equivalents:.0f}"
    ratio = f"{row.gradient_equivalents / ours.gradient_equivalents:.1f}"
    error = "-" if row.worst_error is None else f"{row.worst_error:.1e}"
    alpha = f"1e{row.log10_alpha:g}"
    return (
        f"{row.instance:<15}{alpha:<8}{row.solver:<20}{cost:>9}{ratio:>7}{row.seconds:>9.2f}{error:>9}  {row.verdict}"
    )


def main() -> None:
    """Run everything, print the table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for theory_flow.json")
    parser.add_argument("--quick", action="store_true", help="a smoke run: small instances, α = 1e-32 only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    details, rows, lines = [], [], []
    for problem in problems(arguments.quick):
        flow, reference = solve_ours(problem, problem.reference_rtol)
        products = np.asarray(flow.products)
        seconds, column_cost = measure_column_cost(problem.net, torch.as_tensor(products[-1]), 3)
        ours = run_ours("rankrise", OURS, problem, reference, column_cost)
        default = run_ours("rankrise, default", DEFAULT, problem, reference, column_cost)
        allowance = problem.cap * ours.gradient_equivalents
        peers = (run_peer(name, problem, reference, allowance) for name in PEERS)
        for row in itertools.chain([ours, default], peers):
            rows.append(row)
            lines.append(report(row, ours))
            print(lines[-1], file=sys.stderr, flush=True)
        details.append(
            {
                "instance": problem.instance,
                "log10_alpha": problem.log10_alpha,
                "num_weights": problem.net.num_weights,
                "num_samples": problem.net.num_samples,
                "t_end": problem.t_end,
                "num_active": int(np.isfinite(reference).sum()),
                "num_leaves": num_leaves(products),
                "gradient_seconds": seconds,
                "column_in_gradients": column_cost,
                "cap_in_gradients": allowance,
                "reference_rtol": problem.reference_rtol,
                "reference_gradients": flow.num_gradients,
                "reference_columns": flow.num_jacobian_columns,
                "reference_activation_times": [t if math.isfinite(t) else None for t in reference.tolist()],
            }
        )

    header = (
        f"{'instance':<15}{'alpha':<8}{'solver':<20}{'gradients':>9}{'ratio':>7}{'seconds':>9}{'error':>9}  verdict"
    )
    print("\n".join([header, *lines]))
    if arguments.out is not None:
        record = {
            "command": COMMAND,
            "environment": environment(),
            "peers": {package: version(package) for package, _, _ in PEERS.values() if package is not None},
            "accuracy": ACCURACY,
            "threshold": THRESHOLD,
            "problems": details,
            "rows": [asdict(row) for row in rows],
        }
        arguments.out.mkdir(parents=True, exist_ok=True)
        path = arguments.out / "theory_flow.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
