"""Plain optimisers on full matrices: against the flow, against the diagonal form, and refusals."""

import math

import pytest
import torch
from tests.theory.matrix.instances import as_numbers, head, sensing, start

from rankrise import theory


def test_small_steps_follow_the_flow():
    net = sensing(0, 2, 3)
    flow = theory.solve_matrix_flow(net, start(net, 0), log10_alpha=-4, t_end=1.0, times=[0.5, 1.0])
    steps = math.ceil(4 * math.log(10) / 0.002)
    run = theory.matrix_descend(
        net, start(net, 0), log10_alpha=-4, learning_rate=4 * math.log(10) / steps, num_steps=steps, every=steps // 2
    )
    assert run.status is theory.Status.FINISHED
    assert run.times[-1] == pytest.approx(1.0)
    torch.testing.assert_close(run.singular_values[0][-1], flow.singular_values[0][-1], rtol=0.01, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"optimiser": "gd", "weight_decay": 0.1},
        {"optimiser": "sgd", "batch_size": 4},
        {"optimiser": "adam", "betas": (0.8, 0.99), "eps": 1e-3},
    ],
    ids=lambda options: options["optimiser"],
)
def test_single_numbers_are_the_diagonal_descent(options):
    task = theory.teacher_task(samples=10, tokens=3, dim=1, seed=1)
    net = theory.attention_head(task.x, task.y)
    u0, v0 = theory.gaussian_start(2, seed=1)
    common = {"log10_alpha": -2, "learning_rate": 0.02, "num_steps": 40, "every": 10, "seed": 3, **options}
    diagonal = theory.descend(net, u0, v0, **common)
    factors = [w.reshape(1, 1) for w in (u0[0], v0[0], u0[1], v0[1])]
    full = theory.matrix_descend(as_numbers(net), factors, **common)
    products = torch.cat(full.singular_values, dim=1)
    torch.testing.assert_close(products, diagonal.products.abs(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(full.losses, diagonal.losses, rtol=1e-9, atol=1e-12)
    assert full.steps.tolist() == [0, 10, 20, 30, 40]
    assert (full.times is None) == (options["optimiser"] == "adam")


def test_adam_starts_both_products_within_a_few_steps_however_small_alpha_is():
    """The flow needs a time that grows as log(1/α); second directions come later with Adam too."""
    net = head(5, 2, 24, 4)
    for log10_alpha in (-4, -8, -16):
        run = theory.matrix_descend(
            net, start(net, 5), log10_alpha=log10_alpha, learning_rate=0.01, num_steps=20, optimiser="adam"
        )
        for path in run.singular_values:
            assert path[12, 0] > 1e-3


def test_a_run_that_diverges_says_so():
    net = sensing(0, 2, 2)
    run = theory.matrix_descend(net, start(net, 0), log10_alpha=-1, learning_rate=10.0, num_steps=200)
    assert run.status is theory.Status.DIVERGED
    assert len(run.losses) < 201


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": [torch.ones(4, 2)]}, r"`start` must hold two factors for each product"),
        ({"optimiser": "sgdd"}, r"`optimiser` must be one of .* Did you mean 'sgd'"),
        ({"log10_alpha": -400}, r"`log10_alpha` must be from -300"),
        ({"eps": 0.0}, r"`betas` must be two numbers from 0 to below 1 and `eps` positive"),
        ({"betas": (0.9, 1.0)}, r"`betas` must be two numbers"),
        ({"batch_size": 3}, r"`batch_size` must be given for 'sgd' and only there"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    arguments = {"start": [torch.ones(4, 2)] * 2, "log10_alpha": -4, "learning_rate": 0.1, "num_steps": 3} | changes
    with pytest.raises(ValueError, match=message):
        theory.matrix_descend(sensing(0), arguments.pop("start"), **arguments)
