"""Algorithm 1 with weight decay against its definition: the flow of two exponents, integrated plainly by scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from rankrise import theory


def _head() -> theory.DiagonalNetwork:
    task = theory.teacher_task(samples=60, tokens=4, dim=2, seed=3)
    return theory.attention_head(task.x, task.y)


def _plain_flow(
    net: theory.DiagonalNetwork, decay: float, *, log10_alpha: float, t_end: float
) -> tuple[np.ndarray, np.ndarray]:
    """Integrate d log w/dt = g - λ and d log ŵ/dt = -g - λ from |θ0| = 1; return first passages of 1e-3 and the end."""
    clock = -log10_alpha * math.log(10)
    p = net.num_weights

    def products(y: np.ndarray) -> np.ndarray:
        w, w_hat = np.split(np.minimum(y, 5.0), 2)
        return 0.25 * (np.exp(2 * w) - np.exp(2 * w_hat))

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        g = net.gradient(products(y)).numpy()
        return np.concatenate([g - decay, -g - decay])

    path = solve_ivp(slope, (0, t_end * clock), np.full(2 * p, -clock), method="LSODA", rtol=1e-7, atol=1e-7)
    assert path.success
    above = np.array([np.abs(products(y)) > 1e-3 for y in path.y.T])
    first = np.where(above.any(axis=0), path.t[above.argmax(axis=0)] / clock, np.inf)
    return first, products(path.y[:, -1])


@pytest.mark.parametrize("decay", [0.0, 0.02, 0.1])
def test_stages_with_decay_are_those_of_the_plain_flow(decay: float) -> None:
    net = _head()
    stages = theory.incremental_stages(net, weight_decay=decay)
    first, end = _plain_flow(net, decay, log10_alpha=-200, t_end=1.2 * float(stages.times[-1]))
    limit = stages.activation_times().numpy()
    assert np.array_equal(np.isinf(first), np.isinf(limit))
    joined = np.isfinite(limit)
    np.testing.assert_allclose(first[joined], limit[joined], rtol=0.03)
    np.testing.assert_allclose(end, stages.products[-1].numpy(), atol=2e-3)


def test_each_point_is_a_minimum_with_an_l1_penalty() -> None:
    net, decay = _head(), 0.1
    stages = theory.incremental_stages(net, weight_decay=decay)
    assert stages.weight_decay == decay
    for q, support in zip(stages.products, stages.supports, strict=True):
        index = list(support)
        torch.testing.assert_close(net.gradient(q)[index], decay * q[index].sign(), rtol=0, atol=1e-9)
    last = net.gradient(stages.products[-1])
    waiting = [i for i in range(net.num_weights) if i not in stages.supports[-1]]
    assert all(last[i].abs() <= decay for i in waiting)


def test_orthogonal_features_are_soft_thresholded() -> None:
    net = theory.linear(math.sqrt(3) * torch.eye(3), math.sqrt(3) * torch.tensor([2.0, -4.0, 0.5]))
    stages = theory.incremental_stages(net, weight_decay=1.0)
    assert stages.coordinates == (1, 0)
    assert stages.times.tolist() == pytest.approx([1 / 3, 1.0])
    assert stages.products[-1].tolist() == pytest.approx([1.0, -3.0, 0.0])
    assert theory.incremental_stages(net, weight_decay=5.0).coordinates == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_decay": -1.0}, "`weight_decay` must be zero or positive"),
        ({"weight_decay": 0.1, "u0": [1.0, 2.0], "v0": [0.5, 1.0], "alpha": 1e-8}, "zero for the finite-α form"),
    ],
)
def test_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.incremental_stages(theory.linear(torch.eye(2), torch.ones(2)), **options)  # type: ignore[arg-type]
