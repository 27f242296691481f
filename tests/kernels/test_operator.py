"""The operator and its Gram matrix against the Jacobian that torch writes out."""

import pytest
import torch
from scipy.sparse.linalg import svds
from tests.kernels.networks import MODELS, built, dense, generator, mlp
from tests.tracking.models import small_model
from torch import nn

import rankrise as rr
from rankrise.kernels import JacobianOperator


@pytest.mark.parametrize("chunk", [2, 64])
@pytest.mark.parametrize(
    ("name", "rows"),
    [(n, "sum") for n in MODELS if n != "Llama"]
    + [("MLP", "outputs"), ("ViT", "outputs")]
    + [(n, rows) for n in ("MLP", "CNN", "ViT", "GPT") for rows in ("lse", "fisher")],
)
def test_gram_products_and_diagonal_are_those_of_the_dense_jacobian(name, rows, chunk):
    model, inputs = built(name)
    operator, v = JacobianOperator(model, inputs, rows=rows, chunk=chunk), dense(model, inputs, rows)
    assert operator.shape == tuple(v.shape)
    kernel = v @ v.T
    size = kernel.abs().max()
    assert (operator.gram() - kernel).abs().max() <= 1e-10 * size
    assert (operator.diagonal() - kernel.diagonal()).abs().max() <= 1e-10 * size
    torch.testing.assert_close(operator.column_squares(), v.square().sum(0), atol=1e-10, rtol=1e-9)
    p = torch.randn(v.shape[1], 2, generator=generator(), dtype=torch.float64)
    q = torch.randn(v.shape[0], 2, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(operator.matmul(p), v @ p, atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(operator.rmatmul(q), v.T @ q, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("rows", ["sum", "fisher"])
@pytest.mark.parametrize("name", MODELS)
def test_products_with_v_and_its_transpose_are_adjoint(name, rows):
    model, inputs = built(name)
    operator = JacobianOperator(model, inputs, rows=rows)
    p = torch.randn(operator.shape[1], 1, generator=generator(), dtype=torch.float64)
    q = torch.randn(operator.shape[0], 1, generator=generator(), dtype=torch.float64)
    left, right = (operator.matmul(p) * q).sum(), (p * operator.rmatmul(q)).sum()
    assert abs(left - right) <= (1e-5 if name == "Llama" else 1e-10) * abs(left)  # Llama's norms are in float32
    torch.testing.assert_close(operator.matmul(operator.rmatmul(q)), operator.gram() @ q, atol=1e-5, rtol=1e-4)


def test_scaled_operator_is_the_jacobian_with_scaled_columns():
    model, inputs = built("MLP")
    v = dense(model, inputs, "lse")
    scale = torch.rand(v.shape[1], generator=generator(), dtype=torch.float64)
    operator = JacobianOperator(model, inputs, rows="lse", chunk=2).scaled(scale).scaled(2 * scale)
    v = v * 2 * scale**2
    eye, rows = torch.eye(v.shape[1], dtype=torch.float64), torch.eye(v.shape[0], dtype=torch.float64)
    for found in (operator.matmul(eye), operator.rmatmul(rows).mT):
        torch.testing.assert_close(found, v)
    torch.testing.assert_close(operator.gram(), v @ v.mT)
    torch.testing.assert_close(operator.column_squares(), v.square().sum(0))


def test_solver_of_scipy_finds_the_singular_values():
    model, inputs = built("CNN")
    v = dense(model, inputs, "outputs")
    view = JacobianOperator(model, inputs, rows="outputs").to_scipy()
    assert (view.shape, view.dtype) == (tuple(v.shape), "float64")
    found = sorted(svds(view, k=3, rng=0, return_singular_vectors=False), reverse=True)
    assert found == pytest.approx(torch.linalg.svdvals(v)[:3].tolist(), rel=1e-9)
    q, p = v[:, 0].numpy(), v[0].numpy()
    assert view.matvec(p) == pytest.approx((v @ v[0]).numpy())
    assert view.rmatvec(q) == pytest.approx((v.mT @ v[:, 0]).numpy())


class Branching(nn.Module):
    """Decides by its data, which vectorised gradients cannot."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > -1e9 else x


def test_network_that_decides_by_its_data_is_differentiated_one_sample_at_a_time():
    model, x = Branching().double().eval(), torch.randn(4, 3, generator=generator(), dtype=torch.float64)
    expected = JacobianOperator(model.layer, x).gram()
    torch.testing.assert_close(JacobianOperator(model, x, chunk=3).gram(), expected)


def test_rows_of_ones_own_and_some_parameters():
    model, x = built("MLP")
    own = JacobianOperator(model, x, rows=lambda z: z.square().sum(1, keepdim=True), parameters=["2.weight", "2.bias"])
    hidden = torch.cat([torch.tanh(model[0](x)), torch.ones(5, 1)], dim=1)
    z = model(x)
    torch.testing.assert_close(own.gram(), 4 * (z @ z.T * (hidden @ hidden.T)).detach())
    assert own.shape == (5, 30)


def test_inputs_by_name_and_weights_that_are_computed():
    model = rr.sigma_reparam(small_model(dropout=0.0)).double().eval()
    x = torch.randn(3, 5, 12, generator=generator(), dtype=torch.float64)
    by_name, by_place = JacobianOperator(model, {"src": x}), JacobianOperator(model, [x])
    torch.testing.assert_close(by_name.gram(), by_place.gram())
    assert by_name.gram().trace() > 0


def test_refusals():
    with pytest.raises(ValueError, match="must be in evaluation mode"):
        JacobianOperator(mlp(), torch.randn(2, 6))
    with pytest.raises(ValueError, match="`rows` must be sum, lse, outputs, fisher or a function; got 'all'"):
        JacobianOperator(mlp().eval(), torch.randn(2, 6), rows="all")
    with pytest.raises(ValueError, match="it names none"):
        JacobianOperator(mlp().eval(), torch.randn(2, 6), parameters=["7.weight"])
    operator = JacobianOperator(mlp().eval(), torch.randn(2, 6))
    with pytest.raises(ValueError, match=r"`scale` must be \(93,\), a factor for each weight; got \(2,\)"):
        operator.scaled(torch.ones(2))
    with pytest.raises(ValueError, match=r"`columns` must be \(93, k\); got \(2, 1\)"):
        operator.matmul(torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"`columns` must be \(2, k\); got \(93, 1\)"):
        operator.rmatmul(torch.ones(93, 1))
