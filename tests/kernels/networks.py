"""Small networks of every kind, with inputs, and their Jacobian as torch writes it out."""

import pytest
import torch
from tests.tracking.models import small_model
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

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


def outputs_of(model, inputs, weights):
    result = torch.func.functional_call(model, weights, (inputs,))
    return result if isinstance(result, torch.Tensor) else result.logits


def dense(model, inputs, rows):
    """V by `torch.func.jacrev`, with each kind of rows written in another way than the package does."""
    weights = {n: p.detach() for n, p in model.named_parameters()}

    def function(w):
        z = outputs_of(model, inputs, w)
        if rows == "lse":
            return torch.stack([sample.exp().sum(-1).log().sum() / sample[..., 0].numel() ** 0.5 for sample in z])
        if rows == "fisher":
            p = z.softmax(-1)
            return (p.detach().sqrt() * p.log()).flatten()
        flat = z.flatten(1)
        return (flat.sum(1) / flat.shape[1] ** 0.5 if rows == "sum" else flat).flatten()

    with sdpa_kernel(SDPBackend.MATH):
        jacobian = torch.func.jacrev(function)(weights)
    return torch.cat([part.detach().flatten(1) for part in jacobian.values()], dim=1)
