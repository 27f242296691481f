"""The head in closed form and cut to a few coordinates, against autograd on the whole network."""

import pytest
import torch
from torch import Tensor

from rankrise import theory
from rankrise.theory._tasks import diagonal_attention

INDICES = ([3], [9], [9, 2], [11, 0, 5, 7], [7, 8, 9, 10, 11, 6, 0, 1, 2, 3, 4, 5], [6, 7, 8], [4, 1, 0], [])


def _networks(l2: float = 0.1) -> tuple[theory.DiagonalNetwork, theory.DiagonalNetwork]:
    """Return the head in closed form, and the same head by autograd."""
    task = theory.teacher_task(samples=30, tokens=5, dim=6, seed=3)
    by_autograd = theory.DiagonalNetwork(diagonal_attention, task.x, task.y, num_weights=12, l2=l2)
    return theory.attention_head(task.x, task.y, l2=l2), by_autograd


def _products(index: list[int], seed: int = 0) -> Tensor:
    q = torch.zeros(12, dtype=torch.float64)
    q[index] = torch.randn(len(index), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return q


@pytest.mark.parametrize("index", INDICES)
def test_columns_of_few_and_of_many_coordinates(index: list[int]) -> None:
    head, by_autograd = _networks()
    q = _products(list(range(12)))
    torch.testing.assert_close(
        head.hessian_columns(q, index), by_autograd.hessian_columns(q, index), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("index", INDICES)
def test_a_gradient_at_few_products_that_are_not_zero(index: list[int]) -> None:
    head, by_autograd = _networks()
    for seed in range(2):  # the second call reuses the cut of the first
        q = _products(index, seed)
        (loss, g), (loss_again, g_again) = head.loss_and_gradient(q), by_autograd.loss_and_gradient(q)
        assert loss == pytest.approx(loss_again, rel=1e-14)
        torch.testing.assert_close(g, g_again, rtol=0, atol=1e-13)


@pytest.mark.parametrize("index", INDICES)
def test_a_network_cut_to_some_coordinates(index: list[int]) -> None:
    head, by_autograd = _networks()
    q = _products(index)
    loss, g = by_autograd.loss_and_gradient(q)
    hessian = by_autograd.hessian_columns(q, index)[index]
    some = list(range(len(index)))[1:]
    for net in (head, by_autograd):
        cut = net.restricted(index)
        cut_loss, cut_g = cut.loss_and_gradient(q[index])
        assert cut_loss == pytest.approx(loss, rel=1e-14)
        torch.testing.assert_close(cut_g, g[index], rtol=0, atol=1e-13)
        torch.testing.assert_close(cut.hessian_columns(q[index], some), hessian[:, some], rtol=0, atol=1e-12)
        again = cut.restricted(some)
        q_again = q.clone()
        q_again[index[:1]] = 0
        expected = by_autograd.gradient(q_again)[[index[i] for i in some]]
        torch.testing.assert_close(again.loss_and_gradient(q[index][some])[1], expected, rtol=0, atol=1e-13)


def test_overflow_in_a_cut_head_is_said() -> None:
    head, _ = _networks()
    with pytest.raises(ValueError, match=r"its loss must be finite; got a loss of .* coordinates 7 to 7"):
        head.restricted([7]).loss_and_gradient(torch.tensor([1e200], dtype=torch.float64))


@pytest.mark.parametrize("seed", [0, 1])
def test_stages_of_the_fast_head_are_those_of_autograd(seed: int) -> None:
    task = theory.teacher_task(samples=60, tokens=4, dim=3, seed=seed)
    fast = theory.incremental_stages(theory.attention_head(task.x, task.y))
    plain = theory.incremental_stages(theory.DiagonalNetwork(diagonal_attention, task.x, task.y, num_weights=6))
    assert fast.coordinates == plain.coordinates
    assert fast.signs == plain.signs
    assert fast.status is plain.status
    torch.testing.assert_close(fast.products, plain.products, rtol=0, atol=1e-9)
    torch.testing.assert_close(fast.times, plain.times, rtol=0, atol=1e-12)
    for left, right in zip(fast.certificates, plain.certificates, strict=True):
        assert left.minimum_constant == pytest.approx(right.minimum_constant, rel=1e-9)
