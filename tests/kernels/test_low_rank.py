"""Leading directions against the dense decomposition of the Jacobian."""

import pytest
import torch
from tests.kernels.networks import built, dense, generator
from torch import nn

from rankrise.kernels import JacobianOperator, top_directions


def deep(num=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    return model.double().eval(), torch.randn(num, 8, generator=generator(), dtype=torch.float64)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("method", ["gram", "krylov"])
def test_directions_are_those_of_the_dense_jacobian(method, centre):
    model, x = deep()
    v = dense(model, x, "outputs")
    v = v - v.mean(0) if centre else v
    u, sigma, w = torch.linalg.svd(v, full_matrices=False)
    operator = JacobianOperator(model, x, rows="outputs", chunk=16)
    found = top_directions(operator, 6, krylov=6, centre=centre, method=method)
    torch.testing.assert_close(found.values, sigma[:6], rtol=1e-9, atol=0)
    assert found.trace == pytest.approx(sigma.square().sum().item(), rel=1e-10)
    assert found.energy == pytest.approx((sigma[:6].square().sum() / sigma.square().sum()).item(), rel=1e-9)
    assert found.residuals.max() < 1e-5
    for one, other in ((found.left, u[:, :6]), (found.right, w[:6].mT)):
        torch.testing.assert_close((one.mT @ other).abs(), torch.eye(6, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.left.mT @ found.left, torch.eye(6, dtype=torch.float64))


def test_residuals_say_how_far_a_direction_is_from_one_of_the_kernel():
    model, x = deep()
    operator = JacobianOperator(model, x, rows="outputs")
    found = top_directions(operator, 12, oversample=0, krylov=2, method="krylov")
    v = dense(model, x, "outputs")
    v = v - v.mean(0)
    off = (v @ (v.mT @ found.left) - found.left * found.values.square()).norm(dim=0) / found.values[0] ** 2
    torch.testing.assert_close(found.residuals, off)
    assert found.residuals[-1] > 1e-4
    squares = torch.linalg.svdvals(v).square()
    assert (squares[:12] - found.values.square()).min() > -1e-12 * squares[0]  # Ritz values never exceed eigenvalues
    nearest = (squares[:, None] - found.values.square()).abs().min(0).values
    assert (nearest / found.values[0] ** 2 <= found.residuals + 1e-12).all()  # an eigenvalue is within the residual


def test_fewer_directions_where_the_jacobian_has_no_more():
    model, x = built("MLP")
    for method in ("gram", "krylov"):
        found = top_directions(JacobianOperator(model, x), 50, method=method)  # 5 samples, centred
        assert len(found.values) == 4
        assert found.energy == pytest.approx(1, abs=1e-12)
        assert found.right.shape == (93, 4)


def test_samples_that_are_all_alike_have_no_direction():
    model, x = built("MLP")
    found = top_directions(JacobianOperator(model, x[:1].expand(4, -1)), 2, method="gram")
    assert found.trace == pytest.approx(0, abs=1e-12)
    dead = nn.Linear(2, 1, bias=False).eval()
    found = top_directions(JacobianOperator(dead, torch.zeros(3, 2)), 2, centre=False)
    assert (len(found.values), found.energy, found.right.shape) == (0, 0.0, (2, 0))


def test_the_cheaper_method_is_chosen():
    model, x = deep()
    assert top_directions(JacobianOperator(model, x), 4).method == "gram"
    assert top_directions(JacobianOperator(model, x, chunk=1), 1, oversample=0, krylov=1).method == "krylov"


def test_result_depends_on_the_seed_alone():
    model, x = deep(12)
    operator = JacobianOperator(model, x, rows="outputs")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (top_directions(operator, 3, krylov=1, method="krylov", seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.left, same.left)
    assert not torch.equal(one.left, other.left)


def test_refusals():
    model, x = built("MLP")
    operator = JacobianOperator(model, x)
    with pytest.raises(ValueError, match="`k` and `krylov` must be at least 1 and `oversample` at least 0; got 0, 4"):
        top_directions(operator, 0)
    with pytest.raises(ValueError, match="`method` must be one of auto, krylov, gram; got 'lanczos'"):
        top_directions(operator, 1, method="lanczos")
