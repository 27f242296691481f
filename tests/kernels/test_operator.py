"""The operator and its Gram matrix against the Jacobian that torch writes out."""

import pytest
import torch
from tests.tracking.models import small_model
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import rankrise as rr
from rankrise.kernels import JacobianOperator
from rankrise.lab.models import GPTConfig, ViTConfig, build_model

SIZES = {"width": 8, "num_layers": 2, "num_heads": 2, "head_dim": 4, "mlp_width": 8}


def generator():
    return torch.Generator().manual_seed(0)


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


def mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def llama():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=8))


IMAGES = torch.randn(5, 1, 8, 8, generator=generator(), dtype=torch.float64)
TOKENS = torch.arange(12).reshape(3, 4)
MODELS = {
    "MLP": (mlp, torch.randn(5, 6, generator=generator(), dtype=torch.float64)),
    "CNN": (convolutional, IMAGES),
    "ViT": (lambda: build_model(ViTConfig(image_size=8, num_channels=1, patch_size=4, **SIZES), seed=0), IMAGES),
    "GPT": (lambda: build_model(GPTConfig(vocab_size=16, context=6, **SIZES), seed=0), TOKENS),  # tied
    "torch": (lambda: small_model(dropout=0.1), torch.randn(3, 5, 12, generator=generator(), dtype=torch.float64)),
    "Llama": (llama, TOKENS),
}


def built(name):
    build, inputs = MODELS[name]
    torch.manual_seed(0)
    return build().double().eval(), inputs


def dense(model, inputs, rows):
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def function(w):
        result = torch.func.functional_call(model, w, (inputs,))
        outputs = (result if isinstance(result, torch.Tensor) else result.logits).flatten(1)
        return (outputs.sum(1) / outputs.shape[1] ** 0.5 if rows == "sum" else outputs).flatten()

    with sdpa_kernel(SDPBackend.MATH):
        jacobian = torch.func.jacrev(function)(weights)
    return torch.cat([part.detach().flatten(1) for part in jacobian.values()], dim=1)


@pytest.mark.parametrize("chunk", [2, 64])
@pytest.mark.parametrize(
    ("name", "rows"), [(n, "sum") for n in MODELS if n != "Llama"] + [("MLP", "outputs"), ("ViT", "outputs")]
)
def test_gram_products_and_diagonal_are_those_of_the_dense_jacobian(name, rows, chunk):
    model, inputs = built(name)
    operator, v = JacobianOperator(model, inputs, rows=rows, chunk=chunk), dense(model, inputs, rows)
    assert operator.shape == tuple(v.shape)
    kernel = v @ v.T
    size = kernel.abs().max()
    assert (operator.gram() - kernel).abs().max() <= 1e-10 * size
    assert (operator.diagonal() - kernel.diagonal()).abs().max() <= 1e-10 * size
    p = torch.randn(v.shape[1], 2, generator=generator(), dtype=torch.float64)
    q = torch.randn(v.shape[0], 2, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(operator.matmul(p), v @ p, atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(operator.rmatmul(q), v.T @ q, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_products_with_v_and_its_transpose_are_adjoint(name):
    model, inputs = built(name)
    operator = JacobianOperator(model, inputs)
    p = torch.randn(operator.shape[1], 1, generator=generator(), dtype=torch.float64)
    q = torch.randn(operator.shape[0], 1, generator=generator(), dtype=torch.float64)
    left, right = (operator.matmul(p) * q).sum(), (p * operator.rmatmul(q)).sum()
    assert abs(left - right) <= (1e-5 if name == "Llama" else 1e-10) * abs(left)  # Llama's norms are in float32
    torch.testing.assert_close(operator.matmul(operator.rmatmul(q)), operator.gram() @ q, atol=1e-5, rtol=1e-4)


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
    with pytest.raises(ValueError, match="`rows` must be sum, outputs or a function; got 'lse'"):
        JacobianOperator(mlp().eval(), torch.randn(2, 6), rows="lse")
    with pytest.raises(ValueError, match="it names none"):
        JacobianOperator(mlp().eval(), torch.randn(2, 6), parameters=["7.weight"])
