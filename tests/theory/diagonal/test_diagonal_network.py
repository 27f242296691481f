"""Networks: closed forms against autograd, autograd against differences, chunks against one pass, errors."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankrise import theory
from rankrise.theory._tasks import diagonal_attention
from rankrise.theory.diagonal._examples import _linear_h


def _draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _pairs() -> list[tuple[theory.DiagonalNetwork, theory.DiagonalNetwork]]:
    """The same network in closed form and by autograd."""
    x, y, _ = theory.teacher_task(samples=30, tokens=4, dim=5, seed=1)
    features, targets = _draw(30, 6), _draw(30, seed=1)
    return [
        (theory.attention_head(x, y, l2=0.3), theory.DiagonalNetwork(diagonal_attention, x, y, num_weights=10, l2=0.3)),
        (
            theory.linear(features, targets, l2=0.1),
            theory.DiagonalNetwork(_linear_h, features, targets, num_weights=6, l2=0.1),
        ),
    ]


@pytest.mark.parametrize(("closed", "autograd"), _pairs(), ids=["attention_head", "linear"])
def test_closed_form_equals_autograd(closed: theory.DiagonalNetwork, autograd: theory.DiagonalNetwork) -> None:
    q = _draw(closed.num_weights, seed=2)
    index = range(closed.num_weights)
    torch.testing.assert_close(closed.loss(q), autograd.loss(q), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(closed.gradient(q), autograd.gradient(q), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        closed.hessian_columns(q, index), autograd.hessian_columns(q, index), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("heads", [1, 2])
def test_gradient_and_hessian_are_derivatives(heads: int) -> None:
    x = _draw(6, 3, 2)
    net = theory.transformer(x, _draw(6, 3, 2, seed=1), layers=2, heads=heads, l2=0.1)
    q, h = 0.3 * _draw(net.num_weights, seed=3), 1e-6
    for i in range(net.num_weights):
        step = torch.zeros_like(q)
        step[i] = h
        slope = (net.loss(q + step) - net.loss(q - step)) / (2 * h)
        assert -float(net.gradient(q)[i]) == pytest.approx(slope, abs=1e-7)
        column = -(net.gradient(q + step) - net.gradient(q - step)) / (2 * h)
        torch.testing.assert_close(net.hessian_columns(q, [i])[:, 0], column, rtol=0, atol=1e-7)


def test_chunks_do_not_change_the_answer() -> None:
    x, y, _ = theory.teacher_task(samples=50, tokens=3, dim=4)
    whole, streamed = theory.attention_head(x, y), theory.attention_head(x, y)
    streamed._chunk = 7
    q = _draw(8, seed=4)
    torch.testing.assert_close(whole.gradient(q), streamed.gradient(q), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        whole.hessian_columns(q, [1, 5]), streamed.hessian_columns(q, [1, 5]), rtol=1e-12, atol=1e-14
    )


def test_cross_entropy_is_the_mean_over_samples() -> None:
    x, labels = _draw(9, 4), torch.arange(9) % 3
    net = theory.DiagonalNetwork(lambda x, q: x[:, :3] * q, x, labels, num_weights=3, loss="cross_entropy")
    q = _draw(3, seed=5)
    assert net.loss(q) == pytest.approx(float(torch.nn.functional.cross_entropy(x[:, :3] * q, labels)))


def test_custom_loss() -> None:
    x, y = _draw(5, 3), _draw(5, seed=1)
    net = theory.linear(x, y, loss=lambda prediction, y: (prediction - y).pow(4).mean())
    assert net.loss(torch.zeros(3)) == pytest.approx(float(y.pow(4).mean()))
    assert net.loss_name == "custom"


def test_batch_gradients_average_to_the_gradient() -> None:
    x, y, q = theory.teacher_task(samples=12, tokens=3, dim=2)
    for net in (theory.attention_head(x, y, l2=0.1), theory.transformer(x, y, layers=1, heads=1, l2=0.1)):
        parts = [net.batch_gradient(q, torch.arange(start, start + 4)) for start in (0, 4, 8)]
        torch.testing.assert_close(torch.stack(parts).mean(0), net.gradient(q))


def test_data_that_requires_grad_or_holds_integers_is_converted() -> None:
    x, y = _draw(6, 3), _draw(6, seed=1)
    q = _draw(3, seed=2)
    expected = theory.linear(x, y).gradient(q)
    learned = theory.linear(x.clone().requires_grad_(), y.clone().requires_grad_())
    torch.testing.assert_close(learned.gradient(q), expected)
    h = theory.DiagonalNetwork(lambda x, q: x @ q, x.clone().requires_grad_(), y, num_weights=3)
    torch.testing.assert_close(h.gradient(q), expected)
    integers = torch.arange(6).reshape(3, 2)
    whole = theory.linear(integers, torch.arange(3))
    torch.testing.assert_close(
        whole.gradient(q[:2]), theory.linear(integers.double(), torch.arange(3.0)).gradient(q[:2])
    )
    tokens = torch.arange(12).reshape(2, 3, 2)
    assert theory.attention_head(tokens, tokens).gradient(torch.zeros(4)).isfinite().all()


def test_h_without_q_has_no_gradient() -> None:
    net = theory.DiagonalNetwork(lambda x, q: x[:, 0], _draw(4, 2), _draw(4, seed=1), num_weights=2)
    assert net.gradient(torch.ones(2)).tolist() == [0.0, 0.0]
    assert net.hessian_columns(torch.ones(2), [0]).tolist() == [[0.0], [0.0]]
    assert theory.incremental_stages(net).coordinates == ()


def _own(h: object, y: Tensor, **options: object) -> float:
    return theory.DiagonalNetwork(h, torch.ones(3, 2), y, num_weights=2, **options).loss(torch.zeros(2))  # type: ignore[arg-type]


def _logits(x: Tensor, q: Tensor) -> Tensor:
    return x * q


def test_transformer_knows_its_coordinates() -> None:
    x = _draw(4, 3, 2)
    net = theory.transformer(x, x, layers=2, heads=3)
    assert net.num_weights == len(net.coordinates) == 2 * 2 * 3 * 2
    # Moving a product of the second layer leaves the first layer's output, hence all else, as it was.
    where = net.coordinates.index(theory.Coordinate(layer=1, head=2, circuit="vo", index=1))
    q = torch.zeros(net.num_weights, dtype=torch.float64)
    q[where] = 0.5
    assert where == 12 + 2 * 4 + 3
    assert not torch.equal(net.h(x, q), net.h(x, torch.zeros_like(q)))


def test_exchangeable_heads_have_equal_gradients_at_zero() -> None:
    x = _draw(10, 3, 2)
    g = theory.transformer(x, _draw(10, 3, 2, seed=1), layers=1, heads=2).gradient(torch.zeros(8))
    torch.testing.assert_close(g[:4], g[4:], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: theory.linear(torch.ones(3, 2), torch.ones(4)), r"`x` and `y` must hold the same, positive number"),
        (
            lambda: theory.attention_head(torch.ones(3, 0, 2), torch.ones(3, 0, 2)),
            r"`x` must hold at least one number for every sample; got shape \(3, 0, 2\): leave no axis empty\.",
        ),
        (
            lambda: theory.transformer(torch.ones(3, 2, 0), torch.ones(3, 2, 0), layers=1, heads=1),
            r"`x` must have shape \(N, n, d\), d ≥ 1; got \(3, 2, 0\)",
        ),
        (lambda: theory.linear(torch.ones(3, 2, 2), torch.ones(3)), r"`x` must have shape \(N, p\)"),
        (lambda: theory.attention_head(torch.ones(3, 2), torch.ones(3, 2)), r"`x` must have shape \(N, n, d\)"),
        (lambda: theory.linear(torch.ones(3, 2), torch.ones(3), loss="mes"), r"got 'mes'\. Did you mean 'mse'"),
        (lambda: theory.linear(torch.ones(3, 2), torch.ones(3), l2=-1.0), r"`l2` must be zero or positive; got -1.0"),
        (lambda: theory.linear(torch.full((3, 2), torch.nan), torch.ones(3)), r"`x` must be finite; got 6 entries"),
        (lambda: theory.linear(torch.ones(3, 2), torch.ones(3)).loss(torch.ones(3)), r"`q` must have shape \(2,\)"),
        (
            lambda: theory.linear(torch.ones(3, 2), torch.ones(3), l2=torch.inf),
            r"`l2` must be zero or positive; got inf",
        ),
        (lambda: _own(lambda x, q: x @ q[:, None], torch.ones(3)), r"shape of `y` .*; got \(3, 1\) and \(3,\)"),
        (
            lambda: _own(_logits, torch.ones(3), loss="cross_entropy"),
            r"integer labels from 0 to 1 .*; got torch.float64",
        ),
        (lambda: _own(_logits, torch.tensor([0, 1, 2]), loss="cross_entropy"), r"got torch.int64 from 0 to 2"),
        (lambda: _own(_logits, torch.tensor([0, -1, 1]), loss="cross_entropy"), r"got torch.int64 from -1 to 1"),
        (lambda: _own(_logits, torch.ones(3, 2).long(), loss="cross_entropy"), r"axis of classes; got \(3, 2\) and"),
        (lambda: _own(_logits, torch.ones(3), loss=lambda p, y: p[:, 0] - y), r"`loss` must return one number"),
        (lambda: theory.teacher_task(dim=0), r"`dim` must be at least 1; got 0"),
        (lambda: theory.transformer(torch.ones(2, 2, 2), torch.ones(2, 2, 2), layers=0, heads=1), r"got 0 and 1"),
    ],
)
def test_errors(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_nan_in_h_names_the_coordinates() -> None:
    x, y = torch.ones(3, 2, dtype=torch.float64), torch.ones(3)
    net = theory.DiagonalNetwork(lambda x, q: torch.log(x @ q), x, y, num_weights=2)
    with pytest.raises(ValueError, match=r"got a loss of nan at q with coordinates 1 to 1 in \[-2, 0\]"):
        net.gradient(torch.tensor([0.0, -2.0]))
    root = theory.DiagonalNetwork(lambda x, q: torch.sqrt((x @ q).abs()), x, y, num_weights=2)
    with pytest.raises(ValueError, match=r"for coordinates 0 to 1 at q = 0"):
        root.gradient(torch.zeros(2))


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    x, y, q = theory.teacher_task(samples=20, tokens=3, dim=4)
    cpu, gpu = theory.attention_head(x, y), theory.attention_head(x.cuda(), y.cuda())
    assert gpu.device.type == "cuda"
    torch.testing.assert_close(cpu.gradient(q), gpu.gradient(q).cpu(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("h", "num_weights", "message"),
    [
        (
            lambda x, q: x @ q,
            3,
            r"`num_weights` = 3 numbers, .* raised RuntimeError: .*pass the length of q that h expects",
        ),
        (lambda x, q: x[:, 0] * q[5], 2, "raised IndexError"),
        (lambda x, q: np.tanh(x.numpy() @ q.numpy()), 2, "be built from torch functions"),
        (lambda x, q: (x @ q.detach()).numpy(), 2, "`h.x, q.` must return a tensor; got ndarray"),
        (lambda x, q: x @ q, 2.5, "`num_weights` must be a whole number from 1 on; got 2.5"),
        (lambda x, q: x @ q, "2", "`num_weights` must be a whole number from 1 on; got '2'"),
        (lambda x, q: x @ q, 0, "`num_weights` must be a whole number from 1 on; got 0"),
    ],
)
def test_a_network_function_that_does_not_fit_is_explained(h: Any, num_weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        theory.DiagonalNetwork(h, torch.ones(3, 2), torch.ones(3), num_weights=num_weights).gradient(
            [0.0] * num_weights
        )
