"""A pair that was really fine-tuned: prose first, then Python; every module's rank against dense float64 SVDs."""

import argparse
import copy
import math
from pathlib import Path
from pydoc_data.topics import topics

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.planted import adapter_logits, build, model_inputs

from rankrise.checkpoints import choose_ranks, diff, extract_lora

pytestmark = pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning")


def windows(text, count, generator):
    """`count` random pieces of the text as tokens: bytes, folded to the vocabulary."""
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long() % 64
    starts = torch.randint(len(data) - 32, (count,), generator=generator)
    return torch.stack([data[start : start + 32] for start in starts])


def train(model, text, *, rate):
    """Next-token prediction with AdamW for 60 steps; the loss on other pieces before and after."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(0)
    held_out = windows(text, 64, generator)

    def loss_now():
        with torch.no_grad():
            return float(model(input_ids=held_out, labels=held_out).loss)

    before = loss_now()
    for _ in range(60):
        ids = windows(text, 8, generator)
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return before, loss_now()


@pytest.fixture(scope="module")
def tuned_pair(tmp_path_factory):
    """A folder with base and tuned, in float32 and as bfloat16 keeps them.

    The model is trained in float64, because float32 training gives another pair on every kind of processor.
    """
    folder = tmp_path_factory.mktemp("fine-tuned")
    model = build("wide_gpt2").double()
    train(model, "".join(topics.values()), rate=3e-3)
    copy.deepcopy(model).float().save_pretrained(folder / "base")
    before, after = train(model, Path(argparse.__file__).read_text(encoding="utf-8"), rate=1e-3)
    assert after < before - 0.1  # it learned Python
    model.float().save_pretrained(folder / "tuned")
    for side in ("base", "tuned"):
        tensors = load_file(folder / side / "model.safetensors")
        (folder / f"{side}16").mkdir()
        save_file({n: t.bfloat16() for n, t in tensors.items()}, folder / f"{side}16" / "model.safetensors")
    return folder


def exact_spectra(folder, sides=("base", "tuned")):
    """Name of every matrix that LoRA can carry to its dense spectrum in float64."""
    base, tuned = (load_file(folder / side / "model.safetensors") for side in sides)
    matrices = {n: tuned[n].double() - base[n].double() for n in base if ".c_" in n and n.endswith(".weight")}
    return {name.removesuffix(".weight"): torch.linalg.svdvals(delta) for name, delta in matrices.items()}


def curve(sigma):
    """Relative error at rank 0, 1, …"""
    return [float(sigma[rank:].norm() / sigma.norm()) for rank in range(len(sigma) + 1)]


RULES = [{"energy": 0.9}, {"rank": 6}, {"error": 0.3}, {"budget": 9000}]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule)))
def test_every_modules_advice_lies_on_its_exact_error_curve(tuned_pair, rule, exact):
    spectra = exact_spectra(tuned_pair)
    advice = extract_lora(tuned_pair / "base", tuned_pair / "tuned", exact=exact, **rule).advice
    assert {module.name for module in advice.modules} == set(spectra)
    slack = 1.0 if exact else 1.01  # a randomised decomposition may be that far from the best
    for module in advice.modules:
        best = curve(spectra[module.name])
        assert best[module.rank] - 1e-6 <= module.error <= slack * best[module.rank] + 1e-6
        if "energy" in rule:
            smallest = next(rank for rank, error in enumerate(best) if error**2 <= 0.1)
            assert smallest <= module.rank <= smallest + (not exact)
        if "rank" in rule:
            assert module.rank == 6
    total = sum(float(sigma.square().sum()) for sigma in spectra.values())
    lost = sum(m.error**2 * float(spectra[m.name].square().sum()) for m in advice.modules)
    assert advice.error == pytest.approx(math.sqrt(lost / total), rel=1e-6)
    costs = {module.name: sum(module.shape) for module in advice.modules}
    if "budget" in rule:
        least, greedy = least_errors(spectra, costs, 9000)
        assert advice.parameters <= 9000
        assert least - 1e-6 <= advice.error <= slack * greedy + 1e-6
    if "error" in rule:
        assert advice.error <= 0.3
        least, _ = least_errors(spectra, costs, advice.parameters - max(costs.values()))
        assert slack * least > 0.3 - 1e-6  # with one direction less there is no way


def least_errors(spectra, costs, budget):
    """By energy per parameter: with a part of the last direction a bound on all ranks, without it what greedy gets."""
    directions = [(float(s**2) / costs[name], costs[name]) for name in spectra for s in spectra[name]]
    total = left = sum(price * cost for price, cost in directions)
    for price, cost in sorted(directions, reverse=True):
        if cost > budget:
            return math.sqrt((left - price * budget) / total), math.sqrt(left / total)
        left, budget = left - price * cost, budget - cost
    return 0.0, 0.0


def test_the_floor_rule_cuts_where_rounding_begins(tuned_pair):
    """In bfloat16: against E, what rounding really did to the change of each weight."""
    sides = ("base", "tuned", "base16", "tuned16")
    base, tuned, base16, tuned16 = (load_file(tuned_pair / side / "model.safetensors") for side in sides)
    spectra = exact_spectra(tuned_pair, sides[2:])
    advice = extract_lora(tuned_pair / "base16", tuned_pair / "tuned16", floor=True).advice
    for module in advice.modules:
        name, sigma = f"{module.name}.weight", spectra[module.name]
        e = (tuned16[name].double() - tuned[name].double()) - (base16[name].double() - base[name].double())
        edge = float(torch.linalg.matrix_norm(e, ord=2))
        assert sigma[module.rank - 1] > 0.85 * edge
        assert all(value < 1.1 * edge for value in sigma[module.rank :])


def test_round_trip_through_peft_equals_the_dense_truncation(tuned_pair, tmp_path):
    """Logits of base + adapter, loaded by PEFT, against the base plus the first directions of a float64 SVD."""
    base, tuned = (load_file(tuned_pair / side / "model.safetensors") for side in ("base", "tuned"))
    done = extract_lora(tuned_pair / "base", tuned_pair / "tuned", out=tmp_path / "a", energy=0.9, exact=True)
    assert 0.2 < done.error < math.sqrt(0.1)
    model = type(build("wide_gpt2")).from_pretrained(tuned_pair / "base").eval()
    inputs = model_inputs(model)
    with torch.no_grad():
        untouched = model(**inputs).logits
        for module, rank in done.advice.ranks.items():
            name = f"{module}.weight"
            u, s, vh = torch.linalg.svd(tuned[name].double() - base[name].double(), full_matrices=False)
            model.get_parameter(name).copy_(base[name].double() + (u[:, :rank] * s[:rank]) @ vh[:rank])
        truncated = model(**inputs).logits
    found = adapter_logits(type(model).from_pretrained(tuned_pair / "base").eval(), tmp_path / "a")
    assert (found - truncated).abs().max() < 1e-5
    assert (untouched - truncated).abs().max() > 1e-2


def test_diff_has_the_exact_spectra(tuned_pair):
    found = {row.name: row for row in diff(tuned_pair / "base", tuned_pair / "tuned").weights()}
    for module, sigma in exact_spectra(tuned_pair).items():
        row = found[f"{module}.weight"]
        torch.testing.assert_close(torch.tensor(row.spectrum, dtype=torch.float64), sigma, rtol=1e-6, atol=1e-7)
        assert row.energy_rank_90 == next(rank for rank, error in enumerate(curve(sigma)) if error**2 <= 0.1)


@pytest.mark.slow
def test_ranks_by_function_are_closer_than_ranks_by_energy_at_equal_parameters(tuned_pair, tmp_path):
    """Logits of both adapters as PEFT loads them, against the tuned model's, on text that chose no rank.

    Norms, biases and embeddings are the tuned ones in base and adapter alike, as where these are saved whole.
    """
    text = Path(argparse.__file__).read_text(encoding="utf-8")
    generator = torch.Generator().manual_seed(5)
    chosen, judging = (windows(text, 64, generator) for _ in range(2))
    load = type(build("wide_gpt2")).from_pretrained
    base, tuned = (load(tuned_pair / side).eval() for side in ("base", "tuned"))
    found = choose_ranks(base, tuned, {"input_ids": chosen}, 0.05)
    assert found.distance <= 0.05
    energies = [extract_lora(tuned_pair / "base", tuned_pair / "tuned", energy=e / 50).advice for e in range(1, 50)]
    by_energy = max((a for a in energies if a.parameters <= found.parameters), key=lambda a: a.parameters)
    rules = {"function": {"ranks": found.ranks}, "energy": {"ranks": by_energy.ranks}}
    rules["budget"] = {"budget": found.parameters}
    distances = {}
    for rule, how in rules.items():
        extract_lora(tuned_pair / "base", tuned_pair / "tuned", out=tmp_path / rule, **how)
        model = load(tuned_pair / "base").eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if ".c_" not in name or not name.endswith(".weight"):
                    weight.copy_(tuned.get_parameter(name))
            at_zero = model(input_ids=judging).logits
            goal = tuned(input_ids=judging).logits
            adapted = peft.PeftModel.from_pretrained(model, str(tmp_path / rule)).eval()
            off = adapted(input_ids=judging).logits - goal
        distances[rule] = float((off.norm() / (at_zero - goal).norm()) ** 2)
    assert distances["function"] < 0.5 * min(distances["energy"], distances["budget"])
