"""The attention kernel against float64, on a CUDA device: `make test-gpu`."""

import pytest
import torch
import torch.nn.functional as F

from rankrise.lab.models import ViTConfig, build_model
from rankrise.lab.models._short_attention import short_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # said once, by the thread that runs backward first
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 17, 64, 65])
@pytest.mark.parametrize("dim", [16, 64, 128])
def test_short_attention_and_its_gradient(tokens, dim, dtype):
    generator = torch.Generator(device="cuda").manual_seed(0)
    qkv = torch.randn(3, tokens, 3, 4, dim, device="cuda", generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(3, tokens, 4, dim, device="cuda", generator=generator).to(dtype)
    exact = qkv.detach().double().requires_grad_()
    q, k, v = exact.transpose(1, 3).unbind(2)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    expected.backward(grad.double())
    out = short_attention(qkv)
    out.backward(grad)
    bound = 5e-3 if dtype == torch.bfloat16 else 1e-3  # of the norm: two roundings of the type
    for got, want in ((out, expected), *((qkv.grad[:, :, i], exact.grad[:, :, i]) for i in range(3))):
        assert (got.detach().double() - want.detach()).norm() <= bound * want.detach().norm()


def test_the_compiled_vit_in_bf16_follows_float32():
    model = build_model(ViTConfig(num_layers=2)).cuda()
    images = torch.randn(8, 3, 32, 32, device="cuda", generator=torch.Generator(device="cuda").manual_seed(0))
    expected = model(images)
    expected.square().sum().backward()
    exact = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        logits = torch.compile(model)(images).float()
    logits.square().sum().backward()
    assert (logits - expected).norm() <= 0.02 * expected.norm()
    for weight, gradient in zip(model.parameters(), exact, strict=True):
        assert (weight.grad - gradient).norm() <= 0.05 * gradient.norm()
