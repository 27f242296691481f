"""Data of any kind becomes a dense real tensor or is refused with one sentence; tasks are functions of their seed."""

import re

import numpy as np
import pytest
import torch
from torch import Tensor

from rankrise import theory
from rankrise.theory._tasks import as_data


def test_tasks_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    task = theory.teacher_task(samples=4, tokens=2, dim=3, seed=7)
    theory.gaussian_start(6, seed=7)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(task.x, theory.teacher_task(samples=4, tokens=2, dim=3, seed=7).x)
    assert theory.attention_head(task.x, task.y).loss(task.q) == pytest.approx(0.0, abs=1e-28)


def _kinds(tensor: Tensor) -> dict[str, object]:
    """The same numbers as everything that is accepted."""
    array = tensor.numpy()
    read_only = array.copy()
    read_only.flags.writeable = False
    return {
        "array": array,
        "lists": tensor.tolist(),
        "read-only array": read_only,
        "reversed array": array[::-1].copy()[::-1],
        "big-endian array": array.astype(">f8"),
        "tensor with a graph": tensor.clone().requires_grad_() * 1.0,
    }


@pytest.mark.parametrize("kind", list(_kinds(torch.zeros(2))))
def test_arrays_and_lists_are_the_tensors_they_hold(kind: str) -> None:
    x, y, q = theory.teacher_task(samples=6, tokens=3, dim=2, seed=1)
    u0, v0 = theory.gaussian_start(4, seed=1)
    given = [_kinds(tensor)[kind] for tensor in (x, y, q, u0, v0)]
    net, same = theory.attention_head(x, y), theory.attention_head(given[0], given[1])
    assert torch.equal(net.gradient(0.5 * q), same.gradient(0.5 * as_data("q", given[2])))
    flow, again = (
        theory.solve_flow(n, u, v, log10_alpha=-8, t_end=0.5) for n, u, v in ((net, u0, v0), (same, *given[3:]))
    )
    assert torch.equal(flow.products, again.products)
    assert torch.equal(flow.at([0.25]), flow.at(np.array([0.25])))
    matrices, others = (
        theory.solve_matrix_flow(theory.matrix_head(*data), [torch.eye(2)] * 4, log10_alpha=-2, t_end=0.1, times=[0.1])
        for data in ((x, y), given[:2])
    )
    assert torch.equal(matrices.losses, others.losses)


def test_labels_stay_integers_and_floats_of_python_are_float64() -> None:
    assert as_data("y", [0, 2]).dtype == torch.int64
    assert as_data("y", [0.1]).item() == 0.1
    net = theory.DiagonalNetwork(
        lambda x, q: x * q, [[1.0, 2.0], [3.0, 4.0]], [0, 1], num_weights=2, loss="cross_entropy"
    )
    assert net.num_samples == 2


def _network(x: object, y: object) -> object:
    return theory.DiagonalNetwork(lambda x, q: x @ q, x, y, num_weights=2)  # type: ignore[arg-type]


def _start(x: object, y: object) -> object:
    return theory.solve_flow(theory.linear(torch.eye(2), torch.ones(2)), x, y, log10_alpha=-8, t_end=1.0)  # type: ignore[arg-type]


def _matrices(x: object, y: object) -> object:
    return theory.matrix_head(x, y)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.ones(2, 2, dtype=torch.complex128), "must be real; got torch.complex128: pass its real part"),
        (np.ones((2, 2)) * 1j, "must be real; got torch.complex128: pass its real part"),
        ([1j, 2.0], "must be real; got torch.complex128: pass its real part"),
        (torch.eye(2).to_sparse(), "must be dense; got a tensor of layout torch.sparse_coo: pass a tensor that"),
        (torch.ones(2, 2, device="meta"), "must hold numbers; got a tensor on the meta device, which has only a shape"),
        (["a", "b"], "must be an array of numbers; got list: pass a tensor, a numpy array, or nested lists"),
        ([[1.0], [1.0, 2.0]], "must be an array of numbers; got list: pass a tensor, a numpy array, or nested lists"),
        (None, "must be an array of numbers; got NoneType: pass a tensor"),
    ],
    ids=["complex tensor", "complex array", "complex list", "sparse", "meta", "text", "ragged", "nothing"],
)
def test_other_data_is_refused_with_one_sentence(data: object, message: str) -> None:
    good = torch.ones(2)
    for make in (_network, theory.linear, theory.attention_head, _start, _matrices):
        for name, arguments in (("x", (data, good)), ("y", (good, data))):
            given = {"x": "u0", "y": "v0"}[name] if make is _start else name
            with pytest.raises(ValueError, match=re.escape(f"`{given}` {message}")):
                make(*arguments)  # type: ignore[operator]
    with pytest.raises(ValueError, match=re.escape(f"`x` {message}")):
        theory.transformer(data, good, layers=1, heads=1)  # type: ignore[arg-type]


def test_a_single_number_is_no_sample() -> None:
    with pytest.raises(ValueError, match=r"positive number of samples; got a single number and 2"):
        _network(1.0, torch.ones(2))
