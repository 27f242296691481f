"""Certificates: the constant c against differences of the loss, gaps, verdicts."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rankrise import theory
from rankrise.theory.diagonal._stage_records import minimum_constant, winner_gap


def _head(seed: int = 0) -> theory.DiagonalNetwork:
    x, y, _ = theory.teacher_task(samples=60, tokens=4, dim=3, seed=seed)
    return theory.attention_head(x, y)


def test_constant_is_the_smallest_curvature_of_the_balanced_loss() -> None:
    """c = ½ λ_min of the Hessian of ũ ↦ L(s ⊙ ũ²), here by finite differences of the gradient."""
    net = _head()
    stages = theory.incremental_stages(net)
    for k, certificate in enumerate(stages.certificates, start=1):
        support = list(stages.supports[k])
        q = stages.products[k]
        sign, u = q[support].sign(), q[support].abs().sqrt()

        def slope(u: Tensor, sign: Tensor = sign, support: list[int] = support, q: Tensor = q) -> Tensor:
            at = torch.zeros_like(q)
            at[support] = sign * u.square()
            return -net.gradient(at)[support] * 2 * sign * u

        h = 1e-6
        eye = torch.eye(len(support), dtype=torch.float64)
        hessian = torch.stack([(slope(u + h * e) - slope(u - h * e)) / (2 * h) for e in eye])
        smallest = float(torch.linalg.eigvalsh(0.5 * (hessian + hessian.T)).min())
        assert certificate.minimum_constant == pytest.approx(0.5 * smallest, rel=1e-4, abs=1e-7)
        assert certificate.strict_minimum
        assert certificate.holds


@pytest.mark.parametrize("seed", range(30, 50))
def test_constant_against_brute_force(seed: int) -> None:
    """Few samples, where Newton's method often has nothing left to do; seed 39 once read c = 0."""
    generator = torch.Generator().manual_seed(seed)
    mix, x = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (5, 3))
    x, y = x @ mix, torch.randn(3, generator=generator, dtype=torch.float64)
    stages = theory.incremental_stages(theory.linear(x, y))
    for q, support, certificate in zip(stages.products[1:], stages.supports[1:], stages.certificates, strict=True):
        index = list(support)
        su = q[index].sign() * q[index].abs().sqrt()
        brute = 0.5 * float(torch.linalg.eigvalsh(4 * su[:, None] * (x.T @ x / 3)[index][:, index] * su).min())
        assert certificate.minimum_constant == pytest.approx(brute, rel=1e-6, abs=1e-9)


def test_constant_of_an_ill_conditioned_minimum() -> None:
    x, y, _ = theory.teacher_task(samples=1, tokens=2, dim=4, seed=99)
    stages = theory.incremental_stages(theory.attention_head(x, y))
    assert stages.certificates[5].minimum_constant == pytest.approx(2.35e-6, rel=0.01)


def test_constant_of_rounding_size_is_zero() -> None:
    assert minimum_constant(np.ones(2), np.ones((2, 2))) == 0.0
    assert minimum_constant(np.zeros(0), np.zeros((0, 0))) == math.inf


def test_winner_gap() -> None:
    assert winner_gap(np.array([2.0, 1.0, 4.0]), np.array([1])) == (1.0, 0)
    assert winner_gap(np.array([1.0, 1.0, 4.0]), np.array([0, 1])) == (0.0, 1)
    assert winner_gap(np.array([1.0, np.inf]), np.array([0])) == (math.inf, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Assumptions 4.2 and 4.3 hold: the winner leads by 50%, c = 0.2."),
        ({"winner_gap": math.inf, "runner_up": None}, "the winner leads alone"),
        ({"winner_gap": 157.76}, "the winner is far ahead: the runner-up would take 159 times as long"),
        ({"winner_gap": 0.000123}, "the winner leads by 0.012%"),
        ({"winner_gap": 3.2e-7}, "the winner leads by only 3.2e-07 of its time"),
        ({"tied": (1, 5), "winner_gap": 0.0}, "coordinates (1, 5) tie, so the limit is not unique"),
        ({"minimum_constant": -1.0}, "Assumption 4.3 fails: c = -1"),
        ({"winner_gap": math.inf}, "the winner was at the wall already"),
        ({"left": (4,), "left_gradient": 0.0}, "Assumption 4.2 fails: coordinates (4,) left"),
        ({"left": (4,), "left_gradient": -0.5}, "no gradient keeps them away"),
        ({"tie_at": 2}, "Assumption 4.2 failed at stage 2, a tie"),
        ({"from_start": True}, "Active from the start"),
        ({"has_limit": False, "minimum_constant": math.nan}, "Phase B has no limit"),
        ({"settled": False, "minimum_constant": math.nan}, "Phase B was cut short"),
    ],
)
def test_verdicts(change: dict[str, object], words: str) -> None:
    fields = {
        "winner_gap": 0.5,
        "runner_up": 3,
        "tied": (1,),
        "minimum_constant": 0.2,
        "left": (),
        "left_gradient": math.inf,
        "settled": True,
    }
    certificate = theory.Certificate(**(fields | change))  # type: ignore[arg-type]
    assert words in certificate.verdict
    assert certificate.holds == ("hold" in certificate.verdict)
