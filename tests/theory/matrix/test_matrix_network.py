"""Networks of full matrices: closed forms against autograd and finite differences, refusals."""

import pytest
import torch

from rankrise import theory


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def networks():
    x, y = draw(6, 3, 2), draw(6, 3, 2, seed=1)
    labels = (y[..., 0] > 0).long()
    yield "head", theory.matrix_head(x, y)
    yield "head with a penalty", theory.matrix_head(x, y, l2=0.3)
    yield "head with labels", theory.matrix_head(x, labels, loss="cross_entropy")
    yield "transformer", theory.matrix_transformer(x, y, layers=2, heads=2)
    yield "sensing", theory.matrix_sensing(draw(5, 2, 3), draw(5), l2=0.1)


@pytest.mark.parametrize(("name", "net"), list(networks()), ids=lambda value: value if isinstance(value, str) else "")
def test_gradients_and_hessian_products_agree_with_finite_differences(name, net):
    products = [0.5 * draw(*shape, seed=i) for i, shape in enumerate(net.shapes)]
    along = [draw(*shape, seed=10 + i) for i, shape in enumerate(net.shapes)]
    step = 1e-5
    ahead, behind = ([m + sign * step * v for m, v in zip(products, along, strict=True)] for sign in (1, -1))
    loss, gradients = net.loss_and_gradients(products)
    assert loss == pytest.approx(net.loss(products), rel=1e-12)
    slope = sum(float((g * v).sum()) for g, v in zip(gradients, along, strict=True))
    assert -slope == pytest.approx((net.loss(ahead) - net.loss(behind)) / (2 * step), rel=1e-7)
    hessian = net.hessian_products(products, [v[None] for v in along])
    for got, front, back in zip(
        hessian, net.loss_and_gradients(ahead)[1], net.loss_and_gradients(behind)[1], strict=True
    ):
        torch.testing.assert_close(got[0], (back - front) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("chunk", [1, 4])
def test_closed_forms_agree_with_autograd_in_chunks_of_any_size(chunk):
    x, y = draw(6, 3, 2), draw(6, 3, 2, seed=1)
    closed = theory.matrix_head(x, y)
    plain = theory.MatrixNetwork(closed.h, x, y, shapes=closed.shapes)
    closed._chunk = chunk
    products = [draw(2, 2, seed=2), draw(2, 2, seed=3)]
    along = [draw(3, 2, 2, seed=4), draw(3, 2, 2, seed=5)]
    assert closed.loss(products) == pytest.approx(plain.loss(products), rel=1e-12)
    for got, expected in zip(
        (*closed.loss_and_gradients(products)[1], *closed.hessian_products(products, along)),
        (*plain.loss_and_gradients(products)[1], *plain.hessian_products(products, along)),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_sensing_agrees_with_its_definition_also_on_a_batch():
    x, y = draw(7, 2, 3), draw(7)
    net = theory.matrix_sensing(x, y)
    m = draw(2, 3, seed=3)
    residual = y - (x * m).sum((1, 2))
    loss, (g,) = net.loss_and_gradients([m])
    assert loss == pytest.approx(0.5 * float(residual.square().mean()), rel=1e-12)
    torch.testing.assert_close(g, (residual[:, None, None] * x).mean(0))
    index = torch.tensor([2, 5])
    torch.testing.assert_close(net.batch_gradients([m], index)[0], (residual[index, None, None] * x[index]).mean(0))


def test_a_network_that_ignores_its_matrices_has_no_gradient():
    net = theory.MatrixNetwork(lambda x, m: x, torch.eye(2), torch.eye(2), shapes=[(2, 3)])
    assert net.loss_and_gradients([torch.ones(2, 3)])[1][0].abs().max() == 0
    assert net.hessian_products([torch.ones(2, 3)], [torch.ones(1, 2, 3)])[0].abs().max() == 0


def test_circuits_name_layer_head_and_circuit():
    x = draw(3, 2, 2)
    net = theory.matrix_transformer(x, x, layers=1, heads=2)
    assert [(c.layer, c.head, c.circuit) for c in net.circuits] == [
        (0, 0, "kq"), (0, 0, "vo"), (0, 1, "kq"), (0, 1, "vo")
    ]  # fmt: skip
    assert [c.circuit for c in theory.matrix_head(x, x).circuits] == ["kq", "vo"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shapes": []}, r"`shapes` must hold a pair"),
        ({"shapes": [(2, 0)]}, r"`shapes` must hold a pair"),
        ({"y": torch.ones(3, 2)}, r"`x` and `y` must hold the same, positive number of samples; got 2 and 3"),
        ({"x": torch.full((2, 2), torch.nan)}, r"`x` must be finite; got 4 entries"),
        ({"l2": -1.0}, r"`l2` must be zero or positive; got -1.0"),
        ({"loss": "mae"}, r"`loss` must be one of 'mse', 'cross_entropy'; got 'mae'"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    arguments = {"x": torch.eye(2), "y": torch.eye(2), "shapes": [(2, 2)]} | changes
    x, y = arguments.pop("x"), arguments.pop("y")
    with pytest.raises(ValueError, match=message):
        theory.MatrixNetwork(lambda x, m: x @ m, x, y, **arguments)


def test_functions_that_are_not_finite_or_not_one_number_are_refused():
    eye, zeros = torch.eye(2), torch.zeros(2, 2)
    with pytest.raises(ValueError, match="`h` and its loss must be finite; got a loss of nan"):
        theory.MatrixNetwork(lambda x, m: x @ m / 0 * 0, eye, eye, shapes=[(2, 2)]).loss([zeros])
    with pytest.raises(ValueError, match="The derivative of `h` must be finite"):
        theory.MatrixNetwork(lambda x, m: x @ m.sqrt(), eye, eye, shapes=[(2, 2)]).loss_and_gradients([zeros])
    with pytest.raises(ValueError, match="`loss` must return one number"):
        theory.MatrixNetwork(lambda x, m: x @ m, eye, eye, shapes=[(2, 2)], loss=lambda h, y: h - y).loss([zeros])
    with pytest.raises(ValueError, match=r"`products` must be matrices of shapes \[\(2, 2\)\]; got \[\(3, 2\)\]"):
        theory.MatrixNetwork(lambda x, m: x @ m, eye, eye, shapes=[(2, 2)]).loss([torch.zeros(3, 2)])
    with pytest.raises(ValueError, match=r"`x` must have shape \(N, d, d'\)"):
        theory.matrix_sensing(eye, torch.ones(2))
    with pytest.raises(ValueError, match="`layers` and `heads` must be at least 1; got 0 and 1"):
        theory.matrix_transformer(torch.ones(2, 2, 2), torch.ones(2, 2, 2), layers=0, heads=1)


@pytest.mark.parametrize(
    ("h", "message"),
    [
        (lambda x: x, r"`h\(x, M_1, …\)` must take x of shape \(2, 2\) and matrices of shapes \[\(2, 2\)\]"),
        (lambda x, m: None, "must return a tensor; got NoneType"),
        (lambda x, m: (x @ m) * 1j, r"must be real; got torch\.complex128"),
    ],
)
def test_an_h_that_does_not_fit_is_explained(h, message):
    with pytest.raises(ValueError, match=message):
        theory.MatrixNetwork(h, torch.eye(2), torch.eye(2), shapes=[(2, 2)]).loss([torch.zeros(2, 2)])


@pytest.mark.parametrize("shapes", [3, None, [], "ab", [(2,)], [(0, 2)], [(2, 2.5)], [("a", 2)], [2, 2]])
def test_shapes_are_pairs_of_whole_numbers(shapes):
    with pytest.raises(ValueError, match="`shapes` must hold a pair"):
        theory.MatrixNetwork(lambda x, m: x @ m, torch.eye(2), torch.eye(2), shapes=shapes)
