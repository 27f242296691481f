"""The Jacobian-vector product against finite differences, and the two gauges against the exact Jacobian."""

import math

import pytest
import torch
from tests.tracking.models import small_model
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rankrise.gauges import jvp, laziness, linearise
from rankrise.lab.models import GPTConfig, ViTConfig, build_model

SIZES = {"width": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "mlp_width": 16}


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, intermediate_size=16)
    return transformers.LlamaForCausalLM(config)


TOKENS = torch.arange(12).reshape(2, 6)
MODELS = {
    "our ViT": (
        lambda: build_model(ViTConfig(image_size=8, num_channels=1, patch_size=4, **SIZES), seed=0),
        torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    ),
    "our GPT": (lambda: build_model(GPTConfig(vocab_size=16, context=6, **SIZES), seed=0), TOKENS),
    "torch": (
        lambda: small_model(dropout=0.0),
        torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    ),
    "Llama": (llama, TOKENS),
}


def functional(name):
    build, inputs = MODELS[name]
    model = build().double().eval()

    def function(weights):
        result = torch.func.functional_call(model, dict(weights), (inputs,))
        return result if isinstance(result, torch.Tensor) else result.logits

    return function, {name: weight.detach() for name, weight in model.named_parameters()}


def shifted(weights, size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {n: w + size * torch.randn(w.shape, generator=generator, dtype=w.dtype) for n, w in weights.items()}


@pytest.mark.parametrize("name", MODELS)
def test_jvp_agrees_with_finite_differences(name):
    function, weights = functional(name)
    tangent = {n: w - weights[n] for n, w in shifted(weights, 1.0).items()}
    outputs, image = jvp(function, weights, tangent)
    # Llama computes its norms in float32 whatever its weights are, which a difference over a tiny step would show.
    step, most = (1e-4, 1e-4) if name == "Llama" else (1e-6, 1e-7)
    with torch.no_grad():
        ahead, behind = (function({n: w + sign * step * tangent[n] for n, w in weights.items()}) for sign in (1, -1))
        torch.testing.assert_close(outputs, function(weights), atol=1e-6, rtol=1e-5)
    assert (image - (ahead - behind) / (2 * step)).norm() < most * image.norm()


@pytest.mark.parametrize("size", [1e-3, 0.05])
def test_gauges_are_those_of_the_exact_jacobian(size):
    function, weights = functional("torch")
    names = [n for n in weights if "layers.0" in n]
    weights = {n: weights[n] for n in names}
    rest = {n: w for n, w in functional("torch")[1].items() if n not in names}

    def some(moved):
        return function({**rest, **moved})[0]  # the first sample

    now = shifted(weights, size)
    found = laziness(some, now, linearise(some, weights, tangents=200))
    with sdpa_kernel(SDPBackend.MATH):
        j0, j = (torch.func.jacrev(some)(w) for w in (weights, now))
    j0, j = ({n: part.flatten(end_dim=1).flatten(1) for n, part in jacobian.items()} for jacobian in (j0, j))
    change = sum((j[n] - j0[n]).square().sum() for n in names).sqrt() / sum(j0[n].square().sum() for n in names).sqrt()
    assert found.jacobian_change == pytest.approx(change.item(), rel=0.15)
    moved = (some(now) - some(weights)).flatten()
    predicted = sum(j0[n] @ (now[n] - weights[n]).flatten() for n in names)
    assert found.linearisation_error == pytest.approx(((moved - predicted).norm() / moved.norm()).item(), rel=1e-6)
    lengths = [
        sum(w.square().sum() for w in part.values()).sqrt()
        for part in (weights, {n: now[n] - weights[n] for n in names})
    ]
    assert found.weight_change == pytest.approx((lengths[1] / lengths[0]).item())


def test_linear_network_is_lazy_and_an_unmoved_one_has_no_error():
    weights = {"w": torch.randn(3, 4, generator=torch.Generator().manual_seed(0))}
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

    def function(w):
        return x @ w["w"].T

    start = linearise(function, weights)
    found = laziness(function, shifted(weights, 1.0), start)
    assert found.linearisation_error < 1e-6
    assert found.jacobian_change < 1e-6
    still = laziness(function, weights, start)
    assert math.isnan(still.linearisation_error)
    assert still.weight_change == 0


def test_tangents_along_some_weights_see_their_part_of_the_jacobian():
    def function(w):  # curved in a, linear in b
        return torch.cat([w["a"] ** 2, w["b"]])

    weights = {"a": torch.ones(3), "b": torch.ones(3)}
    now = {"a": 1.5 * torch.ones(3), "b": 2 * torch.ones(3)}
    assert laziness(function, now, linearise(function, weights, names=["a"])).jacobian_change == pytest.approx(0.5)
    assert laziness(function, now, linearise(function, weights, names=["b"])).jacobian_change == 0


class NoForward(torch.autograd.Function):
    """Squares, and has a derivative backwards only."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


def test_part_without_forward_derivative_is_differenced_with_a_warning():
    weights = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}
    with pytest.warns(UserWarning, match="finite differences take its place"):
        _, image = jvp(lambda w: NoForward.apply(w["w"]), weights, {"w": torch.ones(2, dtype=torch.float64)})
    torch.testing.assert_close(image, torch.tensor([2.0, 4.0], dtype=torch.float64))
    with pytest.warns(UserWarning, match="finite"):
        _, image = jvp(lambda w: NoForward.apply(w["w"]), weights, {"w": torch.zeros(2, dtype=torch.float64)})
    assert not image.any()


def test_network_that_fails_says_why():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        jvp(lambda w: torch.ones(2, 3) @ w["w"], {"w": torch.ones(2, 2)}, {"w": torch.ones(2, 2)})


def test_batch_is_read_in_eval_with_attention_that_has_a_derivative():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)

    def function(w):
        return torch.func.functional_call(attention, dict(w), (x, x, x), {"need_weights": False})[0]

    weights = {n: w.detach() for n, w in attention.named_parameters()}
    found = laziness(function, shifted(weights, 0.1), linearise(function, weights))
    assert 0 < found.linearisation_error < 2
