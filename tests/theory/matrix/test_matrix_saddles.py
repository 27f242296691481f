"""Networks whose products feel no gradient at zero: named where the loss can fall, left alone at a minimum."""

import pytest
import torch
from tests.theory.matrix.instances import sensing

from rankrise import theory

X = torch.randn(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network(h, y=None):
    return theory.MatrixNetwork(h, X, X.flip(1) if y is None else y, shapes=[(2, 2), (2, 2)])


@pytest.mark.parametrize(
    ("h", "stuck"),
    [
        (lambda x, a, b: x @ a @ b, (0, 1)),
        (lambda x, a, b: torch.relu(x @ a) + 0 * (x @ b), (0,)),
        (lambda x, a, b: x @ a @ a + x @ b, ()),
    ],
    ids=["two at once", "relu", "the other product is enough"],
)
def test_products_that_never_start_are_named_where_the_loss_can_fall(h, stuck):
    stages = theory.matrix_stages(network(h), rtol=1e-3)
    assert stages.stuck == stuck
    assert stages.status is (theory.Status.SADDLE if stuck else theory.Status.FINISHED)
    if stuck:
        assert stages.advice.startswith(f"Stuck at a saddle of loss {float(stages.losses[-1]):.4g}: products {stuck}. ")
        assert str(stages).splitlines()[0] == "No stages."


def test_a_minimum_is_no_saddle():
    nothing_to_learn = theory.matrix_stages(network(lambda x, a, b: x @ a @ b, y=0 * X))
    assert (nothing_to_learn.status, nothing_to_learn.stuck) == (theory.Status.FINISHED, ())
    learned = theory.matrix_stages(sensing(3, 2, 2, rank=1), rtol=1e-3)
    assert (learned.status, learned.stuck) == (theory.Status.FINISHED, ())


def test_without_stages_there_is_nothing_to_predict_and_a_flow_that_rests():
    net, factors = network(lambda x, a, b: x @ a @ b), list(torch.eye(2).repeat(4, 1, 1) + 0.1)
    prediction = theory.matrix_stages(net).predict(factors, alpha=1e-32)
    assert (prediction.times.tolist(), prediction.flags) == ([], ())
    flow = theory.solve_matrix_flow(net, factors, alpha=1e-32)
    assert flow.status is theory.Status.FINISHED
    assert flow.times[-1] == 1.0
    assert flow.stage_times.tolist() == []
    assert str(flow).splitlines()[0] == "No stages."
