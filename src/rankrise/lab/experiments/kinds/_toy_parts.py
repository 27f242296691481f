"""What theory runs compute with: the toy's data, network and start, and the rows of their tables.

This module loads PyTorch; kinds import it when a run begins.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankrise import theory
from rankrise.lab.experiments.kinds._theory_kind import Tick, ToyTask
from rankrise.store import schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import ArrayLike

    from rankrise.lab.experiments.kinds._flow_kind import FlowSpec
    from rankrise.lab.experiments.kinds._robustness_kind import RobustnessSpec

_NOISE = 0x5EED  # added to the seed of targets that are noise, so that the targets are not the tokens again
_TEACHER = 0xFACE  # this is added to the seed to draw a teacher with full matrices
_ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu}


def toy_data(task: ToyTask, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, each (samples, tokens, dim); labels (samples, tokens) for cross-entropy."""
    x, y, q = theory.teacher_task(samples=task.samples, tokens=task.tokens, dim=task.dim, seed=seed)
    if task.targets == "noise":
        y = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + _NOISE), dtype=x.dtype)
    elif task.activation is not None:
        y = _block(task, x, x, seed, loss="mse").h(x, q)
    elif task.targets == "full_teacher":
        scale, generator = task.dim**-0.25, torch.Generator().manual_seed(seed + _TEACHER)
        w_k, w_q, w_v, w_o = scale * torch.randn(4, task.dim, task.dim, generator=generator, dtype=x.dtype)
        y = theory.matrix_head(x, x).h(x, w_k @ w_q.T, w_v @ w_o.T)
    elif task.layer_norm:
        y = _normed(x, q)
    return x, y.argmax(-1) if task.loss == "cross_entropy" else y


def toy_network(task: ToyTask, seed: int) -> theory.DiagonalNetwork:
    """The network that learns, with q = [a, b], 2d products."""
    x, y = toy_data(task, seed)
    if task.activation is not None:
        return _block(task, x, y, seed, loss=task.loss)
    if task.layer_norm:
        return theory.DiagonalNetwork(_normed, x, y, num_weights=2 * task.dim, loss=task.loss, l2=task.l2)
    return theory.attention_head(x, y, loss=task.loss, l2=task.l2)


def toy_start(task: ToyTask, seed: int) -> tuple[Tensor, Tensor]:
    """θ0 = (u0, v0), each (2d,)."""
    return theory.gaussian_start(2 * task.dim, seed=seed)


def _normed(x: Tensor, q: Tensor) -> Tensor:
    """LN(X + softmax(X diag(a) Xᵀ) X diag(b)), q = [a, b], with a LayerNorm without weights."""
    a, b = q.chunk(2)
    z = x + torch.softmax((x * a) @ x.mT, dim=-1) @ x * b
    return torch.nn.functional.layer_norm(z, z.shape[-1:])


def matrix_start(task: ToyTask, seed: int, head_dim: int | None = None) -> tuple[Tensor, ...]:
    """θ0 of a head with full matrices: W_K, W_Q, W_V, W_O, each (d, head_dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, task.dim, head_dim or task.dim, generator=generator, dtype=torch.float64).unbind()


def _block(task: ToyTask, x: Tensor, y: Tensor, seed: int, *, loss: str) -> theory.DiagonalNetwork:
    assert task.activation is not None
    activation = _ACTIVATIONS[task.activation]
    return theory.transformer(x, y, layers=1, heads=1, activation=activation, seed=seed, loss=loss, l2=task.l2)


def solve_toy(spec: "FlowSpec | RobustnessSpec", net: theory.DiagonalNetwork, tick: Tick) -> theory.Flow:
    """The flow of a spec, from its own start."""
    u0, v0 = toy_start(spec.task, spec.seed)
    return theory.solve_flow(
        net, u0, v0, log10_alpha=spec.log10_alpha, t_end=spec.t_end, on_step=lambda t: tick(t / spec.t_end)
    )


def path_rows(
    quantity: str, values: "ArrayLike", *, circuit: str, steps: "ArrayLike | None" = None, head: int = 0
) -> "pa.RecordBatch":
    """Rows of a vector at several steps; `index` is its coordinate.

    Args:
        quantity: The name of the quantity.
        values: (T, k).
        circuit: "kq" or "vo".
        steps: (T,), 0 … T − 1 unless given.
        head: A number that tells the paths of one run apart.

    >>> path_rows("product", [[0.5, 1.0]], circuit="kq").select(["step", "index", "value"]).to_pylist()
    [{'step': 0, 'index': 0, 'value': 0.5}, {'step': 0, 'index': 1, 'value': 1.0}]
    """
    import pyarrow as pa

    value = np.asarray(values, dtype=np.float64)
    num, k = value.shape
    step = np.arange(num) if steps is None else np.asarray(steps)
    none = pa.array(np.zeros(num * k, dtype=np.int8))
    columns = [
        np.repeat(step, k),
        np.zeros(num * k),
        np.full(num * k, head),
        pa.array([circuit]).take(none),
        pa.array([quantity]).take(none),
        np.tile(np.arange(k), num),
        value.ravel(),
    ]
    return _batch(columns)


def product_rows(
    values: "ArrayLike", *, quantity: str = "product", steps: "ArrayLike | None" = None, head: int = 0
) -> "list[pa.RecordBatch]":
    """Rows of q = [a, b], (T, 2d): a = w_K ⊙ w_Q is circuit "kq", b = w_V ⊙ w_O is "vo"."""
    value = np.asarray(values, dtype=np.float64)
    halves = np.split(value, 2, axis=1)
    return [
        path_rows(quantity, half, circuit=circuit, steps=steps, head=head)
        for circuit, half in zip(("kq", "vo"), halves, strict=True)
    ]


def curve_rows(curves: "Mapping[str, ArrayLike]", *, steps: "Sequence[int] | None" = None) -> "pa.RecordBatch":
    """Rows of curves of single numbers, each (T,), in the form of a training run's scalars; NaN is left out.

    >>> curve_rows({"loss": [2.0, 1.0]})["value"].to_pylist()
    [2.0, 1.0]
    """
    names, places, values = [], [], []
    for name, curve in curves.items():
        value = np.asarray(curve, dtype=np.float64)
        step = np.arange(len(value)) if steps is None else np.asarray(steps)
        keep = ~np.isnan(value)
        names += [name] * int(keep.sum())
        places.append(step[keep])
        values.append(value[keep])
    num = len(names)
    nowhere = np.full(num, -1)
    return _batch([np.concatenate(places), nowhere, nowhere, [""] * num, names, nowhere, np.concatenate(values)])


def _batch(columns: list[object]) -> "pa.RecordBatch":
    import pyarrow as pa

    arrays = [
        column.cast(field.type) if isinstance(column, pa.Array) else pa.array(_typed(column, field), field.type)
        for column, field in zip(columns, schema(), strict=True)
    ]
    return pa.record_batch(arrays, schema=schema())


def _typed(column: object, field: "pa.Field") -> object:
    return column.astype(field.type.to_pandas_dtype()) if isinstance(column, np.ndarray) else column


def activation_rows(times: Tensor, step: int) -> "list[pa.RecordBatch]":
    """When each coordinate became active, as rows at the last step; coordinates that never did have none."""
    blocks = product_rows(times[None].numpy(), quantity="activation_time", steps=[step])
    return [block.filter(np.isfinite(block["value"].to_numpy())) for block in blocks]


def status_rows(blocks: "Sequence[pa.RecordBatch]", status: theory.Status) -> "pa.RecordBatch":
    """How the solver ended, as a row at the last step of the blocks."""
    last = max(int(np.max(block["step"].to_numpy())) for block in blocks if block.num_rows)
    return curve_rows({"status": [list(theory.Status).index(status)]}, steps=[last])
