"""Stages of full matrices with weight decay: known answers, diagonal networks, flows in many digits, refusals."""

import numpy as np
import pytest
import torch
from tests.theory.make_matrix_reference import DECAY_WITHIN, load_decayed
from tests.theory.matrix.instances import as_numbers, head, sensing

from rankrise import theory


@pytest.mark.parametrize(
    ("decay", "times", "values"),
    [(0.5, [2 / 7, 2 / 3], [3.5, 1.5]), (1.0, [1 / 3, 1.0], [3.0, 1.0]), (2.5, [2 / 3], [1.5, 0.0]), (5.0, [], [0, 0])],
)
def test_singular_values_of_isotropic_measurements_are_soft_thresholded(decay, times, values):
    """With ⟨X, M⟩ the entries of 2 M, G is diag(2, 4) - M, and a direction of speed σ joins at 1 / (σ - λ)."""
    net = theory.matrix_sensing(2 * torch.eye(4).reshape(4, 2, 2), [4.0, 0.0, 0.0, 8.0])
    stages = theory.matrix_stages(net, weight_decay=decay)
    assert stages.weight_decay == decay
    assert stages.times.tolist() == pytest.approx(times, rel=1e-9)
    assert stages.singular_values(-1)[0].tolist() == pytest.approx(values, abs=1e-9)
    assert stages.status is theory.Status.FINISHED


@pytest.mark.parametrize(("seed", "decay"), [(0, 0.3), (3, 0.05), (8, 1.0)])
def test_one_by_one_products_give_back_the_diagonal_algorithm(seed, decay):
    """Coordinates leave in all three, in seed 3 two of them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 4)) @ (np.eye(4) + 1.5 * rng.standard_normal((4, 4)))
    net = theory.linear(x, 3 * rng.standard_normal(6))
    diagonal = theory.incremental_stages(net, weight_decay=decay)
    full = theory.matrix_stages(as_numbers(net), weight_decay=decay, rtol=1e-3)
    assert full.matrices == diagonal.coordinates
    assert [c.left for c in full.certificates] == [c.left for c in diagonal.certificates]
    assert any(c.left for c in full.certificates)
    torch.testing.assert_close(full.times, diagonal.times, rtol=1e-9, atol=1e-9)


def test_each_point_is_stationary_with_a_penalty_on_the_nuclear_norm():
    net, decay = head(5, 2, 24, 4), 0.5
    stages = theory.matrix_stages(net, weight_decay=decay, rtol=1e-4)
    assert stages.status is theory.Status.FINISHED
    assert len(stages.times) >= 2
    for products, factors in zip(stages.products, stages.factors, strict=True):
        for g, m, z in zip(net.loss_and_gradients(products)[1], products, factors, strict=True):
            u, _, vt = torch.linalg.svd(m)
            u, v = u[:, : z.shape[1]], vt[: z.shape[1]].T
            torch.testing.assert_close(g @ v, decay * u, rtol=0, atol=1e-8)
            torch.testing.assert_close(g.T @ u, decay * v, rtol=0, atol=1e-8)
    waiting = torch.cat(stages.spectra[-1])
    assert len(waiting)
    assert waiting.max() <= decay


def errors(case):
    """Relative distance of each stage of the limit from the extrapolated time; only late ones may be in one of both."""
    net = sensing(case["seed"], 3, 3) if case["network"] == "sensing" else head(case["seed"], 2, 24, 4)
    stages = theory.matrix_stages(net, weight_decay=case["weight_decay"], t_end=case["end"], rtol=1e-4)
    limit = dict(zip(zip(stages.matrices, stages.ranks, strict=True), stages.times.tolist(), strict=True))
    found = {(stage["matrix"], stage["rank"]): stage["time"] for stage in case["stages"]}
    assert all((limit.get(key) or found[key]) > 0.9 * case["end"] for key in limit.keys() ^ found.keys())
    return [abs(found[key] / time - 1) for key, time in limit.items() if key in found]


@pytest.mark.parametrize("case", load_decayed(), ids=lambda case: f"{case['network']} {case['seed']}")
def test_stages_with_decay_are_those_of_flows_in_many_digits(case):
    assert max(errors(case)) < DECAY_WITHIN


@pytest.mark.parametrize("decay", [-1.0, float("nan"), float("inf")])
def test_bad_arguments_are_refused(decay):
    with pytest.raises(ValueError, match="`weight_decay` must be zero or positive"):
        theory.matrix_stages(sensing(0, d=2, columns=2), weight_decay=decay)


def test_a_prediction_at_finite_alpha_is_refused():
    stages = theory.matrix_stages(sensing(0, d=2, columns=2), weight_decay=0.1)
    with pytest.raises(ValueError, match=r"`predict` needs stages without weight decay; got weight_decay=0\.1"):
        stages.predict([torch.eye(2)] * 2, log10_alpha=-32)
