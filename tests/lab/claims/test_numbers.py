"""The numbers themselves, on tables whose layers, coordinates or perturbations differ; and runs that do not fit."""

import math

import numpy as np
import pytest
from tests.lab.claims import planted
from tests.lab.claims.test_both_directions import LEVELS, STEEP, TIMES, flows, verdict_of

from rankrise.lab.claims import claims
from rankrise.lab.experiments import experiments
from rankrise.lab.experiments.kinds._toy_parts import toy_network

STAGE_TIMES = "stage-times-near@toy-flow-1e-32"


def test_early_is_the_first_twentieth_of_the_steps(tmp_path):
    """40 measurements: the first two count, 1 and 3; later ones do not."""
    curve = [1.0, 3.0, *[9.0] * 37, 2.2]
    folder = planted.network(tmp_path, "vit-cifar10", kq=(curve,), num_measured=None)
    assert verdict_of("rises-kq@vit-cifar10", {"vit-cifar10": [folder]}).value == pytest.approx(1.1)


def test_rank_at_the_start_is_the_stable_rank_and_the_worst_layer_counts(tmp_path):
    """Layer 1: 1 / (1 + 4·¼) = 0.5; layer 2: 1.2 / 2 = 0.6 fails. By the nuclear norm both would be below 0.5."""
    init = ((1, 0.5, 0.5, 0.5, 0.5), (1, 1, 0, 0, 0))
    folder = planted.network(tmp_path, "vit-cifar10", kq=((0.8, 1.0), (0.8, 1.2)), init=init)
    found = verdict_of("lower-than-init-kq@vit-cifar10", {"vit-cifar10": [folder]})
    assert (found.verdict, found.value) == ("fails", pytest.approx(0.6))
    assert "at the start 2.0, 2.0" in found.reason


def test_smallest_scale_in_the_layer_where_it_differs_least(tmp_path):
    runs = planted.family(tmp_path, "vit-cifar10", ranks=((5, 5), (4, 4), (3, 3), (4, 6)))
    found = verdict_of("smallest-scale-is-lower-kq@vit-cifar10-scale", runs)
    assert (found.verdict, found.value) == ("fails", pytest.approx(5 / 6))


def one(root, name, **changes):
    return {name: [planted.toy(root, name, **changes)]}


def test_half_of_the_fall_is_between_start_and_end(tmp_path):
    """The loss falls from 3 to 2 at 0.2, 0.5 and 0.8: half is done at 0.5."""
    runs = one(tmp_path, "toy-flow-1e-32", losses=2 + STEEP, activations=(0.2, 0.45, 0.55, 0.79))
    assert verdict_of("one-after-another@toy-flow-1e-32", runs).value == 0.5


@pytest.mark.parametrize(
    ("activations", "number"),
    [((0.1, 0.15, 0.3, 0.6), 3), ((0.1, 0.1, 0.1, 0.1), 1), ((0.7, 0.1, math.inf, 0.3), 3)],
)
def test_stages_are_counted_by_coordinates(activations, number, tmp_path):
    found = verdict_of("stages@toy-gd", one(tmp_path, "toy-gd", losses=STEEP, activations=activations))
    assert found.value == number


@pytest.mark.parametrize(("apart", "number"), [(0.049, 1), (0.051, 2)])
def test_a_stage_is_a_twentieth_of_the_fall(apart, number, tmp_path):
    runs = one(tmp_path, "toy-gd", losses=1 - TIMES, activations=(0.2, 0.2 + apart))
    assert verdict_of("stages@toy-gd", runs).value == number


def test_singular_values_emerge_at_a_hundredth_of_the_largest(tmp_path):
    """Of 1, 0.02 and 0.005 two emerge, one of them after half of the loss."""
    folder = planted.matrix_flow(tmp_path, emerge=(0.2, 0.7, 0.1), sizes=(1, 0.02, 0.005))
    found = verdict_of("one-after-another@toy-matrix-flow", {"toy-matrix-flow": [folder]})
    assert found.value == 0.5
    assert "4 of 6 singular values emerge" in found.reason


def robust(root, gaps, claim="returns"):
    name = "toy-robustness-4.3"
    return verdict_of(f"{claim}@{name}", {name: [planted.robustness(root, name, gaps=gaps)]})


def test_the_worst_perturbation_counts(tmp_path):
    found = robust(tmp_path, [(0.1, 0.0, 0.0, 0.0), (0.1, 0.012, 0.012, 0.012)])
    assert (found.verdict, found.value) == ("fails", pytest.approx(0.12))
    assert found.n == "1 seed × 2 perturbations, a spec of its own"


def test_passing_through_is_no_return(tmp_path):
    """It crosses the other path once and runs away."""
    away = np.abs(np.linspace(0.1, -1, 111))
    found = robust(tmp_path / "a", [away])
    assert (found.verdict, found.value) == ("fails", pytest.approx(0.55, abs=0.02))
    assert robust(tmp_path / "b", [away], "stays-returned").value == pytest.approx(10)


def test_a_return_that_does_not_last_is_one_and_fails_the_other(tmp_path):
    gaps = [[0.1, *[0.005] * 60, *[0.08] * 60]]
    assert robust(tmp_path / "a", gaps).verdict == "holds"
    assert robust(tmp_path / "b", gaps, "stays-returned").value == pytest.approx(0.8)


def test_a_push_that_moves_nothing_does_not_count(tmp_path):
    small, large = (0.004, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0)  # the noise is 0.05
    assert robust(tmp_path / "a", [small, large]).n == "1 seed × 1 perturbations, a spec of its own"
    found = robust(tmp_path / "b", [small])
    assert (found.verdict, "moved a product" in found.reason) == ("not tested", True)


@pytest.mark.parametrize(
    ("activations", "value"),
    [
        ((0.2, 0.5, 0.8, math.inf), 0.0),
        ((0.2, 0.5, math.inf, math.inf), 0.25),  # the third never comes: at the end, 1, in place of 0.8
        ((0.2, 0.5, 0.8, 0.1), 0.9),  # one that the limit does not have comes first
        ((0.2, 0.5, 0.8, 0.99), 0.01),  # the limit may have it after the end
    ],
)
def test_coordinates_that_are_missing_or_too_many(activations, value, tmp_path):
    runs = one(tmp_path, "toy-flow-1e-32", losses=STEEP, activations=activations)
    runs["toy-stages"] = [planted.stages(tmp_path, products=LEVELS, times=(0, 0.2, 0.5, 0.8))]
    found = verdict_of(STAGE_TIMES, runs)
    assert found.value == pytest.approx(value)
    assert found.verdict == ("holds" if value <= 0.1 else "fails")
    assert found.reason.startswith("4 stages" if math.isfinite(activations[3]) else "3 stages")


@pytest.mark.parametrize(("few", "many"), [("toy-adam", "toy-flow-1e-8"), ("toy-flow-1e-8", "toy-adam")])
def test_one_coordinate_of_four_is_not_as_in_the_flow(few, many, tmp_path):
    runs = {
        **one(tmp_path, few, losses=STEEP, activations=(0.2, *[math.inf] * 3)),
        **one(tmp_path, many, losses=STEEP, activations=(0.2, 0.4, 0.6, 0.8)),
    }
    found = verdict_of("times-as-in-the-flow@toy-adam", runs)
    assert found.verdict == "fails"
    assert found.value == pytest.approx(1.5 if many == "toy-flow-1e-8" else 0.6)


def test_a_run_that_ends_too_early_learned_nothing_that_counts(tmp_path):
    found = verdict_of("learns@toy-ceng501", one(tmp_path, "toy-ceng501", losses=STEEP, activations=(math.inf,) * 4))
    assert (found.verdict, "run it for longer" in found.reason) == ("not tested", True)


def test_the_least_product_of_a_support_is_said(tmp_path):
    folder = planted.stages(tmp_path, products=((0, 0), (-0.002, 0), (1, 3)))
    assert (
        "the least |q| of a support is 0.002"
        in verdict_of("nothing-leaves@toy-stages", {"toy-stages": [folder]}).reason
    )


def test_toys_of_two_tasks_are_not_compared(tmp_path):
    runs = flows(tmp_path, lambda power: 0.02)
    runs["toy-stages"] = [planted.stages(tmp_path / "other")]
    for claim in (STAGE_TIMES, "follows-the-limit@toy-flow-1e-32", "transitions-vanish@toy-flow"):
        found = verdict_of(claim, runs)
        assert (found.verdict, "must be of one task" in found.reason) == ("not tested", True)
    runs = {**one(tmp_path / "x", "toy-gd", losses=STEEP), "toy-flow-1e-8": runs["toy-flow-1e-8"]}
    assert "must be of one task" in verdict_of("times-as-in-the-flow@toy-gd", runs).reason


@pytest.mark.parametrize("change", [{"width": 16}, {"epochs": 5}, {"kq": ((1, 2),) * 3, "head_dim": 8}])
def test_networks_that_differ_in_more_than_their_scale_are_not_compared(change, tmp_path):
    runs = planted.family(tmp_path, "vit-cifar10", ranks=(5, 4, 3, 2))
    last = "vit-cifar10-scale-0.03"
    runs[last] = [planted.network(tmp_path / "other", last, init_scale=0.03, **change)]
    for kind in ("each-smaller-scale-is-lower-kq", "smallest-scale-is-lower-vo", "small-scale-hurts"):
        found = verdict_of(f"{kind}@vit-cifar10-scale", runs)
        assert (found.verdict, "but for the initial scale" in found.reason) == ("not tested", True)


def test_data_sets_are_compared_by_one_network(tmp_path):
    runs = {
        "vit-cifar100": [planted.network(tmp_path, "vit-cifar100")],
        "vit-cifar10": [planted.network(tmp_path, "vit-cifar10", epochs=99)],
    }
    found = verdict_of("more-classes-higher-kq@vit-cifar100", runs)
    assert (found.verdict, "one size and number of epochs" in found.reason) == ("not tested", True)


def test_what_was_set_after_seeing_the_data_is_said():
    for claim in claims():
        assert claim.set_after_seeing == ("set after seeing the data: " in claim.aggregate)
    flagged = {claim.id for claim in claims() if claim.set_after_seeing}
    assert {"returns@toy-robustness-4.3", "transitions-vanish@toy-flow", "stages@toy-adam"} <= flagged


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
@pytest.mark.parametrize("name", ["toy-cross-entropy", "toy-ceng501"])
def test_runs_end_after_the_first_stage_of_their_task(name, scale):
    """T_1 = 1 / max|∇L(0)|."""
    import torch

    spec = experiments()[name].spec(scale)
    rescaled = -math.log(10) * spec.log10_alpha
    end = spec.t_end if name == "toy-cross-entropy" else spec.learning_rate * spec.num_steps / rescaled
    for seed in (0, 1, 2):
        gradient = toy_network(spec.task, seed).gradient(torch.zeros(2 * spec.task.dim, dtype=torch.float64))
        assert end > 1.2 / float(gradient.abs().max())
