"""Ranks by each rule; advice from a tracked run against that from its checkpoints."""

import itertools
import json

import pytest
import torch
from tests.checkpoints.planted import build

import rankrise as rr
from rankrise.checkpoints import ModuleSpectrum, advise, advise_run, extract_lora


def spectrum(name, sigma, shape=(100, 50), **more):
    return ModuleSpectrum(name, shape, tuple(sigma), sum(s * s for s in sigma), **more)


STEEP, FLAT = spectrum("steep", [10.0, 1.0, 0.1]), spectrum("flat", [2.0] * 20)


def test_each_rule():
    both = [STEEP, FLAT]
    assert advise(both).ranks == {"steep": 1, "flat": 19}
    assert advise(both, energy=0.5).ranks == {"steep": 1, "flat": 10}
    assert advise(both, rank=2).ranks == {"steep": 2, "flat": 2}
    assert advise(both, budget=150 * 3).ranks == {"steep": 1, "flat": 2}
    found = advise(both, error=0.5)
    assert found.error <= 0.5
    assert sum(found.ranks.values()) == 10  # 100 of 181 with the first, then 4 each, to 75%
    assert advise(both, rank=9, snap=True).ranks["flat"] == 16
    assert advise([spectrum("x", [1.0] * 90, floor_rank=70)], floor=True, snap=True).ranks == {"x": 64}
    floor = [spectrum("x", [3.0, 1.0], floor_rank=1), spectrum("y", [1.0], floor_rank=0)]
    assert advise(floor, floor=True).ranks == {"x": 1}
    assert [m.note for m in advise(floor, rank=2).modules] == ["1 of its directions may be rounding"] * 2
    with pytest.raises(ValueError, match="`floor` must have been measured"):
        advise(both, floor=True)


def test_curve_falls_and_says_where_it_is_a_bound():
    curve = advise([STEEP, FLAT]).curve
    assert [point.rank for point in curve] == [1, 2, 4, 8, 16, 32]
    assert all(a.error >= b.error for a, b in itertools.pairwise(curve))
    assert curve[-1].error == 0
    cut = ModuleSpectrum("cut", (9, 9), (1.0,), 2.0)
    assert [point.is_bound for point in advise([cut]).curve] == [False]
    assert advise([cut, FLAT]).curve[-1].is_bound


def test_a_module_is_worth_it_if_the_best_use_of_as_many_parameters_gives_it_any():
    tiny = spectrum("tiny", [1e-3])
    found = advise([STEEP, FLAT, tiny], energy=0.9)
    assert {m.name: m.is_worth_it for m in found.modules} == {"steep": True, "flat": True, "tiny": False}
    json.dumps(found.to_json(), allow_nan=False)


def test_mixed_ranks_reach_peft_as_advised():
    import peft

    model = torch.nn.ModuleDict({"h": torch.nn.ModuleList([torch.nn.Linear(50, 100) for _ in range(12)])})
    ranks = {f"h.{i}": 1 + i for i in range(12)}
    spectra = [spectrum(name, [1.0] * rank) for name, rank in ranks.items()]
    lora = peft.get_peft_model(model, peft.LoraConfig(**advise(spectra, energy=1.0).training_config()))
    for name, rank in ranks.items():
        layer = lora.base_model.model.get_submodule(name)
        assert (layer.r["default"], layer.scaling["default"]) == (rank, 1.0)


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory):
    """A tiny GPT-2, really trained for some steps, tracked."""
    folder = tmp_path_factory.mktemp("tuned")
    model = build("gpt2")
    model.save_pretrained(folder / "base")
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    ids = torch.randint(64, (8, 24), generator=torch.Generator().manual_seed(0))
    with rr.RankTracker(model, out=folder / "run", every=5, spectra=5) as tracker:
        for step in range(1, 21):
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            tracker.step(step)
    model.save_pretrained(folder / "tuned")
    return folder


def test_advice_from_the_first_steps_of_a_run(fine_tuned):
    early = advise_run(fine_tuned / "run", steps=9, energy=0.9)
    late = advise_run(fine_tuned / "run", energy=0.9)
    assert early.rule.endswith("at step 5")
    assert late.rule.endswith("at step 20")
    assert set(late.ranks) == {f"transformer.h.{i}.attn.{name}" for i in (0, 1) for name in ("c_attn", "c_proj")}
    exact = extract_lora(fine_tuned / "base", fine_tuned / "tuned", energy=0.9, exact=True).advice
    shapes = {module.name: module.shape for module in exact.modules}
    for module in late.modules:
        assert module.shape == shapes[module.name]
        if module.name.endswith("c_proj"):
            assert module.rank == exact.ranks[module.name]
            assert module.note == ""
        else:  # q, k and v apart need at least the rank of the whole
            assert module.rank >= exact.ranks[module.name]
            assert module.note == "q+k+v fused: an upper bound"
    with pytest.raises(ValueError, match="up to step 3; it has none"):
        advise_run(fine_tuned / "run", steps=3)
