"""The outside gradient as the probe reads it, against exact gradients of whole weights."""

import pytest
import torch
from tests.growth.models import batch, byte_gpt, loss_of

from rankrise.growth import Growth, growing_lora
from rankrise.growth._probe import ModuleProbe, needed_t


def weights_of(model):
    """Base weight of every LoRA module, which now asks for gradients."""
    found = {name: m.base_layer.weight for name, m in model.named_modules() if hasattr(m, "base_layer")}
    for weight in found.values():
        weight.requires_grad_(True)
    return {name.removeprefix("base_model.model."): weight for name, weight in found.items()}


def adapter_optimiser(model, rate=2e-3, **options):
    return torch.optim.AdamW([p for n, p in model.named_parameters() if "lora_" in n], lr=rate, **options)


def watched(rate, seed, at_rest):
    """Growth and exact gradients (modules to a stack over micro-batches) of one window in a training."""
    torch.manual_seed(seed)
    model = growing_lora(byte_gpt(60, seed), rank=2)
    optimiser = adapter_optimiser(model, rate)
    growth = Growth(model, optimiser, total_steps=300, seed=seed)
    weights, caught = weights_of(model), []
    exact = {name: [] for name in weights}
    growth._grow = caught.extend
    generator = torch.Generator().manual_seed(seed)
    while not caught:
        is_watching = bool(growth._probes)
        loss = loss_of(model, batch(generator))
        optimiser.zero_grad()
        model.zero_grad()
        loss.backward()
        for name, weight in weights.items() if is_watching else ():
            exact[name].append(weight.grad.clone())
        if not (is_watching and at_rest):
            optimiser.step()
        growth.step()
    outside = {
        n: (s.outside_columns(torch.eye(len(s.b))), s.outside_rows(torch.eye(s.a.shape[1])))
        for n, s in growth._slots.items()
    }
    return growth, {name: torch.stack(found) for name, found in exact.items()}, caught, outside


def exact_signal(gradients, outside):
    """s̄ with (u, v) from the SVD of the first half's mean gradient, on the second half."""
    half = len(gradients) // 2
    left, right = outside
    u, _, vh = torch.linalg.svd(left @ gradients[:half].mean(0) @ right)
    return float(torch.einsum("o,boi,i->b", u[:, 0], gradients[half:], vh[0]).mean())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_signal_agrees_with_exact_gradients_over_modules(seed):
    growth, exact, candidates, outside = watched(2e-3, seed, at_rest=True)
    expected = [exact_signal(exact[name], outside[name]) for name in exact]
    found = [max(c.signal for c in candidates if c.module == name) for name in exact]
    assert len(exact["model.layers.0.self_attn.q_proj"]) == 16
    assert torch.corrcoef(torch.tensor([expected, found]))[0, 1] >= 0.95
    for c in candidates:
        slots = growth._slots[c.module]
        assert (slots.a.detach()[slots.live] @ c.direction).abs().max() < 1e-5  # outside the adapter


def test_a_sketch_is_the_exact_gradient_times_the_probe():
    """Signals equal uᵀ G v of the same gradients to rounding, also while the weights move."""
    _, exact, candidates, _ = watched(2e-3, 0, at_rest=False)
    largest = max(c.signal for c in candidates)
    for c in candidates:
        half = exact[c.module][8:]
        column = half.mean(0) @ c.direction
        torch.testing.assert_close(c.column, column, rtol=0, atol=1e-4 * float(column.norm()) + 1e-6 * largest)


def test_watching_changes_no_output_and_no_gradient_of_the_adapter():
    """Bit for bit: logits, and the gradients that are clipped and applied."""
    ids = batch(torch.Generator().manual_seed(0))
    found = []
    for is_watching in (False, True):
        torch.manual_seed(0)
        model = growing_lora(byte_gpt(), rank=2)
        growth = Growth(model, adapter_optimiser(model), total_steps=1000)
        with torch.no_grad():
            for slots in growth._slots.values():
                slots.b[:, slots.live] = 0.01
        probes = [ModuleProbe(slots, 0) for slots in growth._slots.values()] if is_watching else []
        for part in ("right", "left") if is_watching else ("right",):
            for probe in probes:
                probe.part = part
                probe.u = torch.linalg.qr(torch.randn(len(probe.slots.b), 4)).Q
                probe._reset()
                probe.open()
            model.zero_grad()
            output = model(input_ids=ids, labels=ids)
            output.loss.backward()
            grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            found.append((output.logits.detach(), grads))
            assert all(probe.count == 1 and probe.sums["first"].abs().sum() > 0 for probe in probes)
    (logits, grads), *others = found
    for other_logits, other_grads in others:
        assert torch.equal(logits, other_logits)
        assert grads.keys() == other_grads.keys()
        assert all(torch.equal(grads[name], other_grads[name]) for name in grads)


@pytest.mark.parametrize("decay", [0.2, pytest.param(0.0, marks=pytest.mark.slow)])
def test_noise_grows_nothing(decay):
    """Gradients without a mean, of flat and of falling spectra: at most 1% of events grow anything."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = growing_lora(torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4))), rank=2)
    growth = Growth(model, None, total_steps=2000)
    scale = torch.exp(-decay * torch.arange(32.0))
    events, grown = 400, 0
    for seed in range(events):
        probes = [ModuleProbe(slots, seed) for slots in growth._slots.values()]
        for part, count in (("right", 4), ("left", 4), ("signal", 8)):
            for probe in probes:
                for _ in range(count):
                    gradient = scale[:, None] * torch.randn(32, 32, generator=generator) * scale
                    probe._add(probe.u.mT @ gradient if part == "left" else gradient @ probe.v.mT)
                if part != "signal":
                    probe.advance()
        found = [candidate for probe in probes for candidate in probe.candidates()]
        grown += any(c.t > needed_t(found) for c in found)
    assert grown <= 0.01 * events
