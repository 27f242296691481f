"""Runs of the theory: each kind of spec is solved on the CPU and its table written.

They are short, so one that was cut off starts over.

The table (layer 0; head 0 unless said; circuit "kq" is a = w_K ⊙ w_Q, "vo" is b = w_V ⊙ w_O):

| kind | step | scalars | rows by coordinate |
|---|---|---|---|
| flow | saved point | `time`, `loss` | `product`; at the last step `activation_time` of those that activated |
| stages | stage k = 0 … K | `time` T_k, `loss`, `joined`, `num_joined`, `num_left`, `gap`, `curvature` | `product` |
| matrix_flow | saved point | `time`, `loss` | `spectrum` |
| robustness | saved point | `time`, `perturbed_at` | `product`, `product_perturbed`; head n is perturbation n |
| descent | saved point | `time`, `loss`, `optimiser_step` | `product`; `activation_time` |

The points of a robustness run are those of its perturbations one after another: head n has steps of its own. `time` of
Adam is η·step/log(1/α) as for the others, a convention: its steps do not follow the gradient. `status` at the last step
is the position of the solver's status in `theory.Status`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rankrise import theory
from rankrise.lab.experiments._theory_specs import (
    DescentSpec,
    FlowSpec,
    MatrixFlowSpec,
    RobustnessSpec,
    StagesSpec,
    TheorySpec,
)
from rankrise.lab.experiments._theory_table import curve_rows, path_rows, product_rows
from rankrise.lab.experiments._toy_task import toy_data, toy_network, toy_start

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import ArrayLike

Tick: TypeAlias = Callable[[float], None]  # told of the part that is done


@dataclass(frozen=True)
class Recording:
    """The table of a theory run, in blocks, and how the solver ended."""

    blocks: "list[pa.RecordBatch]"
    status: theory.Status


def record(spec: TheorySpec, tick: Tick) -> Recording:
    """Solve what a spec asks for."""
    recording = _RECORDERS[type(spec)](spec, tick)
    last = max(int(np.max(block["step"].to_numpy())) for block in recording.blocks if block.num_rows)
    status = curve_rows({"status": [list(theory.Status).index(recording.status)]}, steps=[last])
    return Recording([*recording.blocks, status], recording.status)


def initial_weights(spec: TheorySpec) -> dict[str, Tensor]:
    """θ0, before the factor α: what a run's `initial.safetensors` holds."""
    if isinstance(spec, MatrixFlowSpec):
        return dict(zip(("key", "query", "value", "output"), _head_weights(spec), strict=True))
    return dict(zip(("u0", "v0"), toy_start(spec.task, spec.seed), strict=True))


def _flow(spec: FlowSpec, tick: Tick) -> Recording:
    net = toy_network(spec.task, spec.seed)
    flow = _solve(spec, net, tick)
    even = torch.linspace(0, float(flow.times[-1]), spec.num_points, dtype=torch.float64)
    times = torch.unique(torch.cat([flow.times, even]))  # sorted
    products = flow.at(times)
    losses = [net.loss(q) for q in products]
    blocks = [curve_rows({"time": times, "loss": losses}), *product_rows(products)]
    reached = theory.activation_times(flow, spec.threshold)
    return Recording([*blocks, *_activations(reached, len(times) - 1)], flow.status)


def _stages(spec: StagesSpec, tick: Tick) -> Recording:
    net = toy_network(spec.task, spec.seed)
    found = theory.incremental_stages(net, t_end=spec.t_end, on_stage=lambda t: tick(t / spec.t_end))
    nothing = [np.nan]
    of_stage: dict[str, ArrayLike] = {
        "time": [0.0, *found.times.tolist()],
        "loss": found.losses,
        "joined": nothing + [float(i) for i in found.coordinates],
        "num_joined": nothing + [float(len(group)) for group in found.groups],
        "num_left": nothing + [float(len(certificate.left)) for certificate in found.certificates],
        "gap": nothing + [certificate.winner_gap for certificate in found.certificates],
        "curvature": nothing + [certificate.minimum_constant for certificate in found.certificates],
    }
    return Recording([curve_rows(of_stage), *product_rows(found.products)], found.status)


def _matrix_flow(spec: MatrixFlowSpec, tick: Tick) -> Recording:
    x, y = toy_data(spec.task, spec.seed)
    flow = theory.solve_matrix_flow(
        x,
        y,
        _head_weights(spec),
        alpha=10.0**spec.log10_alpha,
        t_end=spec.t_end,
        times=torch.linspace(0, spec.t_end, spec.num_points, dtype=torch.float64),
    )
    spectra = (("kq", flow.kq_singular_values), ("vo", flow.vo_singular_values))
    blocks = [curve_rows({"time": flow.times, "loss": flow.losses})]
    return Recording([*blocks, *(path_rows("spectrum", s, circuit=c) for c, s in spectra)], flow.status)


def _robustness(spec: RobustnessSpec, tick: Tick) -> Recording:
    net = toy_network(spec.task, spec.seed)
    flow = _solve(spec, net, tick)
    blocks: list[pa.RecordBatch] = []
    status = flow.status
    for n, time in enumerate(perturbation_times(spec, flow)):
        pushed = theory.perturb_flow(
            net,
            flow,
            time=time,
            t_end=min(time + spec.duration, float(flow.times[-1])),
            noise=spec.noise,
            threshold=spec.threshold,
            seed=spec.seed + n,
            num_points=spec.num_points,
        )
        steps = list(range(n * spec.num_points, (n + 1) * spec.num_points))
        at = [time, *[np.nan] * (spec.num_points - 1)]
        blocks.append(curve_rows({"time": pushed.times, "perturbed_at": at}, steps=steps))
        blocks += product_rows(pushed.products, steps=steps, head=n)
        blocks += product_rows(pushed.perturbed, quantity="product_perturbed", steps=steps, head=n)
        status = pushed.status if status is theory.Status.FINISHED else status
    return Recording(blocks, status)


def perturbation_times(spec: RobustnessSpec, flow: theory.Flow) -> list[float]:
    """Rescaled times to perturb at: random after the first activation (4.3), or activations, spread evenly (4.4)."""
    reached = theory.activation_times(flow, spec.threshold)
    last = float(flow.times[-1]) - spec.duration
    active = sorted(t for t in reached.tolist() if 0 < t < last)
    if not active:
        raise ValueError(
            f"A coordinate must become active before `t_end` − `duration` = {last:g}; none does. Increase `t_end`."
        )
    if spec.assumption == "4.4":
        chosen = np.unique(np.linspace(0, len(active) - 1, spec.trials).round().astype(int))
        return [active[i] for i in chosen]
    draws = np.random.default_rng(spec.seed).uniform(active[0], last, spec.trials)
    return sorted(draws.tolist())


def _descent(spec: DescentSpec, tick: Tick) -> Recording:
    u0, v0 = toy_start(spec.task, spec.seed)
    run = theory.descend(
        toy_network(spec.task, spec.seed),
        u0,
        v0,
        log10_alpha=spec.log10_alpha,
        learning_rate=spec.learning_rate,
        num_steps=spec.num_steps,
        optimiser=spec.optimiser,
        every=max(1, spec.num_steps // spec.num_points),
        batch_size=spec.batch_size,
        seed=spec.seed,
    )
    steps = run.steps.double()
    times = spec.learning_rate * steps / (-spec.log10_alpha * np.log(10))
    above = run.products.abs() > spec.threshold
    reached = torch.where(above.any(0), times[above.int().argmax(0)], torch.inf)  # the first saved point above
    curves = curve_rows({"time": times, "loss": run.losses, "optimiser_step": steps})
    return Recording([curves, *product_rows(run.products), *_activations(reached, len(steps) - 1)], run.status)


def _solve(spec: FlowSpec | RobustnessSpec, net: theory.DiagonalNetwork, tick: Tick) -> theory.Flow:
    u0, v0 = toy_start(spec.task, spec.seed)
    return theory.solve_flow(
        net, u0, v0, log10_alpha=spec.log10_alpha, t_end=spec.t_end, on_step=lambda t: tick(t / spec.t_end)
    )


def _activations(times: Tensor, step: int) -> "list[pa.RecordBatch]":
    """Rows of the coordinates that activated, at the last step."""
    blocks = product_rows(times[None].numpy(), quantity="activation_time", steps=[step])
    return [block.filter(np.isfinite(block["value"].to_numpy())) for block in blocks]


def _head_weights(spec: MatrixFlowSpec) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(spec.seed)
    d, r = spec.task.dim, spec.head_dim or spec.task.dim
    return tuple(torch.randn(4, d, r, generator=generator, dtype=torch.float64).unbind())


_RECORDERS: dict[type[TheorySpec], Callable[..., Recording]] = {
    FlowSpec: _flow,
    StagesSpec: _stages,
    MatrixFlowSpec: _matrix_flow,
    RobustnessSpec: _robustness,
    DescentSpec: _descent,
}
