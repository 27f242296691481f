"""Certificates: the constant c against differences of the loss, gaps, perturbations, distance from the limit."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rankrise import theory
from rankrise.theory._certificates import minimum_constant, winner_gap


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


def test_a_strict_minimum_takes_perturbations_back() -> None:
    net = _head()
    stages = theory.incremental_stages(net)
    for k in range(1, len(stages.products)):
        test = theory.perturb_minimum(net, stages, k, noise=0.02, trials=3)
        assert test.tested
        assert test.holds, (k, test)
        assert test.fraction == 1.0


def test_nothing_to_perturb_is_not_a_test() -> None:
    net = _head()
    test = theory.perturb_minimum(net, theory.incremental_stages(net, max_stages=1), 0)
    assert test.holds
    assert not test.tested
    assert math.isnan(test.fraction)


def test_transitions_are_robust_to_noise() -> None:
    net = _head()
    stages = theory.incremental_stages(net)
    for k in range(len(stages.coordinates)):
        assert theory.perturb_transition(net, stages, k, noise=0.01, trials=3).holds, k


def test_a_valley_does_not_take_perturbations_back() -> None:
    """Two equal features: only their sum is determined, so the perturbed products rest elsewhere."""
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).expand(20, 2)
    net = theory.linear(x, x[:, 0])
    test = theory.perturb_minimum(net, theory.incremental_stages(net), 1, noise=0.05, trials=2)
    assert not test.holds
    assert test.fraction == 0.0
    assert float(test.distances.max()) < 0.5


def test_errors() -> None:
    net = _head()
    stages = theory.incremental_stages(net, max_stages=1)
    with pytest.raises(ValueError, match=r"`k` must lie in 0 to 1; got 2"):
        theory.perturb_minimum(net, stages, 2)
    with pytest.raises(ValueError, match=r"`k` must lie in 0 to 0; got 1"):
        theory.perturb_transition(net, stages, 1)
    with pytest.raises(ValueError, match=r"`noise` and `trials` must be positive; got 0.0 and 8"):
        theory.perturb_minimum(net, stages, 1, noise=0.0)
    finite = theory.incremental_stages(net, *theory.gaussian_start(6), log10_alpha=-32, max_stages=1)
    with pytest.raises(ValueError, match=r"`stages` must be those of the limit"):
        theory.perturb_minimum(net, finite, 0)
    with pytest.raises(ValueError, match=r"`log10_alphas` must hold at least one value"):
        theory.stage_times(net, *theory.gaussian_start(6), log10_alphas=[], t_end=1.0)
