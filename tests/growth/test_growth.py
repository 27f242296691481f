"""Growing, cutting, resuming: what happens to the weights, the optimiser and the outputs."""

import json
from dataclasses import replace

import pytest
import torch
from tests.growth.models import batch, byte_gpt, loss_of
from tests.growth.test_probe import adapter_optimiser

import rankrise as rr
from rankrise.growth import Growth, growing_lora, growth_schedule
from rankrise.growth._growth import growth_of
from rankrise.growth._model import find_slots

STEPS = 70


def grown(mode="both", steps=STEPS, total=STEPS, seed=0, **options):
    torch.manual_seed(seed)  # because PEFT draws random rows
    model = growing_lora(byte_gpt(20), rank=2, mode=mode, **options)
    optimiser = adapter_optimiser(model)
    growth = Growth(model, optimiser, total_steps=total, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    go_on(model, optimiser, growth, generator, steps)
    return model, optimiser, growth, generator


def go_on(model, optimiser, growth, generator, steps):
    for _ in range(steps):
        loss_of(model, batch(generator, size=2)).backward()
        optimiser.step()
        optimiser.zero_grad()
        growth.step()


@pytest.mark.parametrize("mode", ["both", *(pytest.param(m, marks=pytest.mark.slow) for m in ("early", "grow", "cut"))])
def test_the_result_is_within_its_budget(mode, tmp_path):
    model, _, growth, _ = grown(mode)
    assert 0 < growth.parameters <= growth.budget
    kinds = {decision.kind for decision in growth.history}
    assert ("cut" in kinds) == (mode != "early")
    assert growth_of(model) is growth
    if mode in ("both", "grow"):
        assert {"grow", "refuse"} <= kinds
        assert all(d.t > 3 and d.signal > 0 for d in growth.history if d.kind == "grow")
    ranks = rr.save_adapter(model, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == config["lora_alpha"] == max(ranks.values())
    assert config["rank_pattern"] == config["alpha_pattern"]
    assert len(json.loads((tmp_path / "adapter" / "growth.json").read_text())["decisions"]) == len(growth.history)


def test_growth_changes_no_logit():
    """Bit for bit at every step of the events, but for the step that cuts."""
    model, optimiser, growth, generator = grown(steps=0)
    ids = batch(torch.Generator().manual_seed(9))
    events = 0
    for _ in range(34):
        loss_of(model, batch(generator, size=2)).backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            before = model(input_ids=ids).logits
            ranks = growth.ranks
            growth.step()
            events += growth.ranks != ranks
            assert torch.equal(model(input_ids=ids).logits, before)
    assert events >= 1


def test_the_cut_keeps_the_best_part():
    """Within one module no change of rank r is closer; over all modules the budget is kept."""
    _, _, growth, _ = grown("cut", steps=34)
    before = {name: (s.b[:, s.live] @ s.a[s.live]).detach().double() for name, s in growth._slots.items()}
    growth.step()
    for name, slots in growth._slots.items():
        rank = len(slots.live)
        u, s, vh = torch.linalg.svd(before[name])
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        found = (slots.b[:, slots.live] @ slots.a[slots.live]).double()
        torch.testing.assert_close(found, best, rtol=0, atol=1e-6 * float(s[0]))
        assert slots.a[slots.num_slots :].abs().sum() == 0


def test_empty_slots_stay_exactly_empty():
    model = growing_lora(torch.nn.Sequential(torch.nn.Linear(16, 16)), rank=2, target_modules=["0"])
    optimiser = adapter_optimiser(model, weight_decay=0.1)
    (slots,) = find_slots(model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        model(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    assert (slots.a[2:] == 0).all()
    assert (slots.b[:, 2:] == 0).all()
    assert (slots.b[:, :2] != 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["both", "early"])
def test_a_resumed_growth_is_the_uninterrupted_one(mode, tmp_path):
    """Bit for bit, from before, within and after windows, and after the cut."""
    model, optimiser, growth, generator = grown(mode, steps=0)
    states = []
    for step in range(STEPS):
        if step in (0, 3, 6, 13, 40):
            torch.save(
                [model.state_dict(), optimiser.state_dict(), growth.state_dict(), generator.get_state()],
                tmp_path / f"{step}.pt",
            )
            states.append(step)
        go_on(model, optimiser, growth, generator, 1)
    expected = model.state_dict()
    for step in states:
        again, other, fresh, random = grown(mode, steps=0, seed=0)
        weights, state, saved, numbers = torch.load(tmp_path / f"{step}.pt", weights_only=True)
        again.load_state_dict(weights)
        other.load_state_dict(state)
        fresh.load_state_dict(saved)
        random.set_state(numbers)
        go_on(again, other, fresh, random, STEPS - step)
        assert all(torch.equal(expected[name], tensor) for name, tensor in again.state_dict().items()), step
        assert fresh.history == growth.history


def test_the_folder_is_the_adapter(tmp_path):
    """PEFT loads it on the base, and the logits are those of the model that grew."""
    peft = pytest.importorskip("peft")
    model, *_ = grown()
    rr.save_adapter(model, tmp_path / "adapter")
    ids = batch(torch.Generator().manual_seed(9))
    loaded = peft.PeftModel.from_pretrained(byte_gpt(20), str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        found, expected = (m(input_ids=ids).logits for m in (loaded, model.eval()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (expected - byte_gpt(20)(input_ids=ids).logits).abs().max() > 1e-2
    assert {key.split(".")[-2] for key in loaded.state_dict() if "lora_A" in key} == {"default"}


def test_a_woken_slot_begins_with_usual_updates():
    """Late in a training with β₂ = 0.999, updates of woken slots are below 1.2 learning rates if they were seeded."""
    peaks = {}
    for is_seeded in (True, False):
        torch.manual_seed(0)
        weight = torch.randn(24, 24)
        layer = torch.nn.Linear(24, 24, bias=False)
        model = growing_lora(torch.nn.Sequential(layer), rank=1, target_modules=["0"])
        optimiser = adapter_optimiser(model, 1e-3, weight_decay=0)
        growth = Growth(model, optimiser, total_steps=40_000, events=1)
        growth.schedule = replace(growth.schedule, events=(1500,))
        slots = growth._slots["0"]
        peak = 0.0
        for step in range(1600):
            x = torch.randn(32, 24)
            (model(x) - x @ weight.mT).square().mean().backward()
            before = slots.a.detach().clone(), slots.b.detach().clone()
            optimiser.step()
            optimiser.zero_grad()
            if step >= 1500:
                new = [k for k in slots.live if k]
                rows, columns = slots.a[new] - before[0][new], (slots.b[:, new] - before[1][:, new]).mT
                peak = max(
                    peak, *(float(part.detach().square().mean(1).sqrt().max()) / 1e-3 for part in (rows, columns))
                )
            growth.step()
            if step == 1499:
                assert len(slots.live) > 1
                for parameter in (slots.a, slots.b) if not is_seeded else ():
                    state = optimiser.state[parameter]["exp_avg_sq"]
                    values = state if parameter is slots.a else state.mT
                    values[[k for k in slots.live if k]] = 0
        peaks[is_seeded] = peak
    assert peaks[True] <= 1.2
    assert peaks[False] > 2


def test_nothing_eligible_is_uniform_lora():
    """Where the noise gate lets nothing through, `both` is an ordinary LoRA, and `grow` becomes one."""
    for mode in ("both", "grow"):
        model = growing_lora(torch.nn.Sequential(torch.nn.Linear(16, 16)), rank=2, mode=mode, target_modules=["0"])
        optimiser = adapter_optimiser(model)
        growth = Growth(model, optimiser, total_steps=100)
        generator = torch.Generator().manual_seed(0)
        for _ in range(100):
            x, y = torch.randn(4, 16, generator=generator), torch.randn(4, 16, generator=generator)
            (model(x) * y).mean().backward()
            optimiser.step()
            optimiser.zero_grad()
            growth.step()
        assert growth.ranks == {"0": 2}
        kinds = [decision.kind for decision in growth.history]
        assert "grow" not in kinds
        assert "stop" in kinds
        assert ("fallback" in kinds) == (mode == "grow")


def test_schedules():
    assert growth_schedule("both", 1000).cut_at == 500
    assert growth_schedule("early", 1000).cut_at is None
    assert growth_schedule("both", 1000).micro_batches == 8
    assert growth_schedule("both", 200).events == (16, 32, 48, 64, 80)
    assert growth_schedule("both", 200).micro_batches == 4
    assert growth_schedule("both", 30).micro_batches == 3
    assert growth_schedule("both", 1000, per_step=8).window == 4
    assert growth_schedule("cut", 10).events == ()
    for total in range(25, 400, 7):
        schedule = growth_schedule("both", total)
        gaps = [b - a for a, b in zip((0, *schedule.events), schedule.events, strict=False)]
        assert min(gaps) >= schedule.window
    with pytest.raises(ValueError, match=r"before 0\.12 of the training is over"):
        growth_schedule("early", 50)
    with pytest.raises(ValueError, match=r"must be one of both, early, grow, cut; got 'bot'\. Did you mean 'both'"):
        growth_schedule("bot", 100)


def test_what_cannot_grow_is_refused():
    base = byte_gpt()
    for options, message in (
        ({"use_dora": True}, "DoRA"),
        ({"use_rslora": True}, "scale 1 at every rank"),
        ({"r": 4}, "`r` is chosen by the growth"),
        ({"bias": "all"}, "has no biases"),
        ({"over": 0.5}, "`over` must be at least 1"),
        ({"cap": 4}, "`cap` must be at least 12 here; got 4"),
        ({"mode": "other"}, "`mode` must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            growing_lora(base, **options)
    with pytest.raises(ValueError, match="Use `growing_lora`"):
        Growth(base, None, total_steps=100)
    model = growing_lora(base, rank=2)
    with pytest.raises(ValueError, match="all slots are empty"):
        rr.save_adapter(model, "nowhere")
