"""Ŵ = (γ / σ(W)) W in any model: at the start, through training, folded, resumed and tracked."""

import copy

import pytest
import torch
from tests.tracking.models import data, select, small_model, train_step
from torch import nn
from torch.utils.checkpoint import checkpoint

import rankrise as rr
from rankrise.gauges import SigmaReparam
from rankrise.lab.models import GPTConfig, ViTConfig, build_model

SIZES = {"width": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "mlp_width": 32}
VIT = ViTConfig(image_size=8, num_channels=1, patch_size=4, **SIZES)
GPT = GPTConfig(vocab_size=16, context=6, **SIZES)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))


def hf(name, **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))


LLAMA = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 32}  # fmt: skip
MODELS = {
    "our ViT": (lambda: build_model(VIT, seed=0), lambda: torch.randn(3, 1, 8, 8, generator=generator())),
    "our GPT": (lambda: build_model(GPT, seed=0), lambda: torch.arange(12).reshape(2, 6)),
    "torch": (lambda: small_model(dropout=0.0), lambda: torch.randn(4, 5, 12, generator=generator())),
    "convolutions": (convolutional, lambda: torch.randn(2, 3, 8, 8, generator=generator())),
    "GPT-2": (
        lambda: hf("GPT2", n_embd=32, n_layer=2, n_head=4, vocab_size=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        lambda: torch.arange(12).reshape(2, 6),
    ),
    "Llama": (lambda: hf("Llama", **LLAMA), lambda: torch.arange(12).reshape(2, 6)),
}


def output(model, x):
    result = model(x)
    return result if isinstance(result, torch.Tensor) else result.last_hidden_state


def parts(model):
    """Every part of every weight in effect, with its γ."""
    for module in model.modules():
        for name, computed in getattr(module, "parametrizations", {}).items():
            one = computed[0]
            whole = one._matrix(getattr(module, name).detach())
            for part, gamma in enumerate(one.gamma.detach()):
                yield whole[one.labels == part], gamma


def errors(model):
    """How far the norm of every weight in effect is above |γ|, as a share of it."""
    return [(torch.linalg.matrix_norm(w.double(), 2) / gamma.abs() - 1).item() for w, gamma in parts(model)]


@pytest.mark.parametrize("name", MODELS)
def test_function_is_unchanged_at_the_start_and_norms_are_gamma_through_training(name):
    build, inputs = MODELS[name]
    model, x = build(), inputs()
    before = output(model, x).detach()
    model = rr.sigma_reparam(model, iterations=8)
    torch.testing.assert_close(output(model, x), before, atol=1e-6, rtol=1e-6)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    target = torch.randn(before.shape, generator=generator(1))
    worst = 0.0
    for _ in range(20):
        (output(model, x) - target).square().mean().backward()
        now = errors(model)
        assert min(now) > -1e-5  # power iteration never takes σ too large
        worst = max(worst, *now)
        optimiser.step()
        optimiser.zero_grad()
    if name in ("our ViT", "torch", "convolutions"):
        assert worst < 0.02
    else:
        assert worst < 0.2  # weights that begin at 0.02 are other weights after three steps of Adam
    for _ in range(100):  # steps that change no weight
        output(model, x)
    assert max(errors(model)) < 0.02
    model.eval()
    before = output(model, x).detach()
    folded = rr.fold_sigma(model)
    torch.testing.assert_close(output(folded, x), before, atol=1e-6, rtol=1e-6)
    assert {n for n, _ in folded.named_parameters()} == {n for n, _ in build().named_parameters()}
    assert not folded._forward_pre_hooks


def test_fused_weights_have_a_gamma_for_queries_keys_and_values():
    model = build_model(VIT, seed=0)
    singles = [torch.linalg.matrix_norm(part, 2) for part in model.blocks[0].attn.qkv.weight.detach().chunk(3)]
    rr.sigma_reparam(model)
    one = model.blocks[0].attn.qkv.parametrizations.weight[0]
    torch.testing.assert_close(one.gamma.detach(), torch.stack(singles))
    assert model.blocks[0].attn.proj.parametrizations.weight[0].gamma.shape == (1,)
    neox = hf("GPTNeoX", vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8)
    fused = neox.layers[0].attention.query_key_value.weight.detach().clone().view(4, 3, 8, 32)
    singles = [torch.linalg.matrix_norm(fused[:, role].flatten(0, 1), 2) for role in range(3)]
    rr.sigma_reparam(neox)
    one = neox.layers[0].attention.query_key_value.parametrizations.weight[0]
    torch.testing.assert_close(one.gamma.detach(), torch.stack(singles))  # heads are interleaved here


def test_gradient_is_that_of_the_formula():
    torch.manual_seed(0)
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    one = SigmaReparam(weight, torch.zeros(5, dtype=torch.long), gamma="one", has_inputs_first=False).double()
    one.u.copy_(torch.linalg.svd(weight.detach())[2][:1])
    torch.autograd.gradcheck(lambda w: one(w), weight, atol=1e-6)  # at the exact u, the gradient of σ is v uᵀ
    exact = weight / torch.linalg.matrix_norm(weight, 2)
    torch.testing.assert_close(one(weight), exact)
    assert torch.isclose(torch.linalg.matrix_norm(one(weight), 2), torch.tensor(1.0, dtype=torch.float64))


def test_reading_evaluation_and_recomputation_move_nothing():
    model = rr.sigma_reparam(small_model(dropout=0.0))
    x = data(1, model) if hasattr(model, "width") else torch.randn(4, 5, 12)

    def us():
        return [value.clone() for name, value in model.state_dict().items() if name.endswith(".u")]

    before = us()
    model.eval()(x)
    with torch.no_grad():
        model.train()(x)
    _ = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    assert all(torch.equal(a, b) for a, b in zip(before, us(), strict=True))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("original"):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator())
    model(x)
    once = us()
    assert all(not torch.equal(a, b) for a, b in zip(before, once, strict=True))
    again = copy.deepcopy(model)
    for layer in again.layers:  # with recomputed activations one forward is one iteration too
        layer.forward = lambda *args, forward=layer.forward, **kw: checkpoint(forward, *args, use_reentrant=False, **kw)
    first, second = model(x).square().mean(), again(x).square().mean()
    first.backward(), second.backward()
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_resumed_training_is_the_same_to_the_bit():
    def start():
        model = rr.sigma_reparam(small_model())
        return model, torch.optim.Adam(model.parameters(), 1e-2)

    def steps(model, optimiser, first, last):
        for step in range(first, last):
            torch.manual_seed(step)
            model.train()
            x = torch.randn(4, 5, 12, generator=generator(step))
            model(x).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()

    whole, optimiser = start()
    steps(whole, optimiser, 0, 6)
    half, optimiser = start()
    steps(half, optimiser, 0, 3)
    saved, moments = copy.deepcopy(half.state_dict()), copy.deepcopy(optimiser.state_dict())
    resumed, optimiser = start()
    resumed.load_state_dict(saved)
    optimiser.load_state_dict(moments)
    steps(resumed, optimiser, 3, 6)
    assert whole.state_dict().keys() == resumed.state_dict().keys()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_tracker_reads_the_weight_in_effect_and_changes_nothing(tmp_path):
    def train(tracked):
        model = rr.sigma_reparam(small_model(dropout=0.0))
        model.width = 12
        start = copy.deepcopy(model)
        optimiser = torch.optim.SGD(model.parameters(), 0.5)
        tracker = rr.RankTracker(model, tmp_path, every=1, spectra=1) if tracked else None
        for step in range(1, 4):
            train_step(model, optimiser, step)
            if tracker:
                tracker.step(step)
        if tracker:
            tracker.close()
        return start, model

    _, plain = train(tracked=False)
    start, model = train(tracked=True)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    table = rr.load_run(tmp_path)
    q = [m.eval().layers[1].self_attn.in_proj_weight[4:8].detach() for m in (start, model)]
    k = [m.layers[1].self_attn.in_proj_weight[16:20].detach() for m in (start, model)]
    expected = rr.delta_spectrum(k[1].T, q[1].T, k[0].T, q[0].T)
    found = select(table, quantity="spectrum", circuit="kq", layer=1, head=1, step=3)
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-6, rtol=1e-4)
    rr.fold_sigma(model)
    again = rr.RankTracker(model, tmp_path, every=1, spectra=1, resume=3)  # the exported model has the same heads
    again.close(seal=False)


def test_choice_of_weights_and_refusals():
    model = rr.sigma_reparam(small_model(), only=lambda name, module: name.endswith("linear1"))
    assert sum("gamma" in name for name, _ in model.named_parameters()) == 2
    with pytest.raises(ValueError, match=r"'layers\.0\.linear1' must not be parametrised yet"):
        rr.sigma_reparam(model)
    rr.sigma_reparam(model, only=lambda name, module: name.endswith("linear2"))
    assert len(model._forward_pre_hooks) == 1
    with pytest.raises(ValueError, match="it chose none"):
        rr.sigma_reparam(nn.LayerNorm(3))
    with pytest.raises(ValueError, match="`gamma` must be one of"):
        rr.sigma_reparam(nn.Linear(2, 2), gamma="two")
    zero = nn.Linear(2, 2)
    nn.init.zeros_(zero.weight)
    with pytest.raises(ValueError, match="'1' must be finite and not 0"):
        rr.sigma_reparam(nn.Sequential(nn.Linear(2, 2), zero))
    tied = nn.ModuleDict({"embed": nn.Embedding(3, 2), "mlp": nn.Linear(2, 2), "head": nn.Linear(2, 3, bias=False)})
    tied["head"].weight = tied["embed"].weight
    rr.sigma_reparam(tied)
    assert tied["head"].weight is tied["embed"].weight


def test_gamma_one_and_half_precision():
    model = rr.sigma_reparam(nn.Linear(8, 4), gamma="one")
    assert torch.isclose(torch.linalg.matrix_norm(model.weight, 2), torch.tensor(1.0))
    half = rr.sigma_reparam(nn.Linear(8, 4).bfloat16())
    assert half.weight.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 8)).dtype == torch.bfloat16
        assert model.parametrizations.weight[0].sigma(model.parametrizations.weight.original).dtype == torch.float32
