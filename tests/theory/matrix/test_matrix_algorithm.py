"""Algorithm 1 for matrices: known answers, diagonal networks as 1 x 1 products, turns, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.matrix.instances import anisotropic_sensing, as_numbers, head, sensing

from rankrise import theory


def test_a_diagonal_target_is_learned_in_the_order_of_its_singular_values():
    stages = theory.matrix_stages(theory.matrix_sensing(2 * torch.eye(4).reshape(4, 2, 2), [4.0, 0.0, 0.0, 8.0]))
    assert stages.status is theory.Status.FINISHED
    torch.testing.assert_close(stages.times, torch.tensor([0.25, 0.5], dtype=torch.float64), rtol=1e-12, atol=0)
    assert (stages.matrices, stages.ranks) == ((0, 0), (0, 1))
    torch.testing.assert_close(stages.products[-1][0], torch.diag(torch.tensor([2.0, 4.0], dtype=torch.float64)))
    torch.testing.assert_close(stages.left_vectors[0].abs(), torch.tensor([0.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("seed", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_one_by_one_products_give_back_the_diagonal_algorithm(seed):
    """Seed 0: one coordinate leaves and returns; seed 3: two do."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 4)) @ (np.eye(4) + 1.5 * rng.standard_normal((4, 4)))
    net = theory.linear(x, 3 * rng.standard_normal(6))
    diagonal, full = theory.incremental_stages(net), theory.matrix_stages(as_numbers(net), rtol=1e-3)
    assert [c.left for c in full.certificates] == [c.left for c in diagonal.certificates]
    assert any(c.left for c in full.certificates)
    assert full.matrices == diagonal.coordinates
    torch.testing.assert_close(full.times, diagonal.times, rtol=1e-9, atol=1e-9)
    products = torch.stack([torch.cat([m.flatten() for m in point]) for point in full.products])
    torch.testing.assert_close(products, diagonal.products, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("seed", "extrapolated"), [(106, 3.17246), (131, 0.52019), (136, 4.03471)])
def test_a_turned_last_direction_joins_when_cayley_steps_say(seed, extrapolated):
    """Times of the last direction at 1e-12 and 1e-24 in 75 digits, in SO(2, 2) exactly, extrapolated in 1/log(1/α)."""
    stages = theory.matrix_stages(anisotropic_sensing(seed, 2, 6), t_end=8.0)
    assert any(c.sign_flips == (0,) for c in stages.certificates)
    assert float(stages.times[1]) == pytest.approx(extrapolated, rel=1e-3)
    # The same exponents without a sign miss by more than a fifth.
    (first, second), times = ([s[0].tolist() for s in stages.spectra[:2]], stages.times.tolist())
    unsigned = times[0] + (1 - first[1] * times[0]) / second[0]
    assert abs(unsigned / extrapolated - 1) > 0.2


def check_stages(stages, net):
    assert (stages.losses.diff() <= 1e-12).all()
    assert (stages.times.diff() >= 0).all()
    for before, after, k in zip(stages.factors[:-1], stages.factors[1:], range(len(stages.times)), strict=True):
        grown = [b.shape[1] - a.shape[1] for a, b in zip(before, after, strict=True)]
        left = stages.certificates[k].left
        assert [g + (j in left) for j, g in enumerate(grown)] == [
            int(j == stages.matrices[k]) for j in range(len(grown))
        ]
    for factors, products in zip(stages.factors, stages.products, strict=True):
        gradients = net.loss_and_gradients(products)[1]
        for z, g in zip(factors, gradients, strict=True):
            a, b = z[: len(g)], z[len(g) :]
            torch.testing.assert_close(a.T @ a, b.T @ b, rtol=0, atol=1e-8)
            assert (g @ b).abs().max() < 1e-8 if z.numel() else True
            assert (g.T @ a).abs().max() < 1e-8 if z.numel() else True


def test_a_head_is_learned_one_rank_at_a_time_at_strict_minima():
    net = head(0, 2, 32, 4)
    stages = theory.matrix_stages(net, rtol=1e-3)
    check_stages(stages, net)
    assert stages.status is theory.Status.FINISHED
    assert sorted(zip(stages.matrices, stages.ranks, strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(c.holds and c.curvature > 0 for c in stages.certificates)
    assert stages.losses[-1] < 1e-20
    assert stages.num_gradients < 6000
    for k, values in enumerate(stages.spectra):
        assert (values[0].diff() <= 0).all(), k


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(1, 2), (2, 2), (2, 3)]),
    rank=st.integers(1, 2),
)
def test_support_grows_by_one_rank_a_stage_and_the_loss_falls(seed, shape, rank):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((9, *shape)), rng.standard_normal(9)
    net = theory.matrix_sensing(x, y)
    stages = theory.matrix_stages(net, ranks=[rank], t_end=50.0, rtol=1e-4)
    assert stages.status in (theory.Status.FINISHED, theory.Status.T_END)
    check_stages(stages, net)


def test_a_transformer_with_two_equal_heads_says_that_the_winner_ties():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, 2, generator=generator, dtype=torch.float64)
    net = theory.matrix_transformer(x, x.flip(1), layers=1, heads=2)
    stages = theory.matrix_stages(net, max_stages=1)
    assert stages.status is theory.Status.MAX_STAGES
    assert stages.certificates[0].lead == pytest.approx(0.0, abs=1e-8)
    assert "tied: from there on the stages depend on the start" in stages.certificates[0].verdict
    assert not stages.certificates[0].holds


def test_results_print_as_a_table():
    stages = theory.matrix_stages(anisotropic_sensing(131, 2, 6), t_end=8.0)
    lines = str(stages).splitlines()
    assert lines[0].split()[:5] == ["stage", "time", "matrix", "rank", "loss"]
    assert lines[2].endswith("the last direction of 0 turns")
    assert lines[-1].startswith("finished: Nothing to do")


def test_a_run_ends_with_a_reason():
    net = sensing(0)
    early = theory.matrix_stages(net, t_end=0.2)
    assert (early.status, len(early.times)) == (theory.Status.T_END, 1)
    none = theory.matrix_stages(net, max_stages=0)
    assert (none.status, len(none.times), len(none.losses)) == (theory.Status.MAX_STAGES, 0, 1)
    cut = theory.matrix_stages(net, max_steps=3)
    assert cut.status is theory.Status.MAX_STEPS
    assert math.isnan(cut.certificates[0].curvature)
    assert "Phase B has no limit" in cut.certificates[0].verdict
    separable = theory.MatrixNetwork(lambda x, m: x @ m, torch.eye(2), [0, 1], shapes=[(2, 2)], loss="cross_entropy")
    endless = theory.matrix_stages(separable, max_steps=100)
    assert endless.status in (theory.Status.UNBOUNDED, theory.Status.MAX_STEPS)
    assert not endless.certificates[-1].has_limit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": [1, 1]}, r"`ranks` must hold a positive number of columns for each of the 1 products; got \[1, 1\]"),
        ({"ranks": [0]}, r"`ranks` must hold"),
        ({"ranks": 2}, r"`ranks` must hold a positive number of columns for each of the 1 products; got 2"),
        ({"ranks": [1.5]}, r"`ranks` must hold"),
        ({"max_stages": -1}, r"`max_stages` must be zero or positive; got -1"),
        ({"t_end": 0.0}, r"`t_end` must be positive; got 0.0"),
        ({"rtol": 0.0}, r"`rtol` must be from 1e-12"),
        ({"max_steps": 0}, r"`max_steps` must be at least 1; got 0"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        theory.matrix_stages(sensing(0, d=2, columns=2), **changes)


def test_a_network_of_diagonal_weights_is_sent_to_its_own_algorithm():
    with pytest.raises(ValueError, match=r"`net` must be a network of full matrices; got .*call `incremental_stages`"):
        theory.matrix_stages(theory.linear(torch.eye(2), torch.ones(2)))
