"""Experts that are stored as one tensor: read expert by expert, and adapted by `target_parameters` as PEFT does it."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints import files
from tests.checkpoints.families import EXPERTS, HEADED, Family
from tests.checkpoints.test_families import distance, loaded, saved, tune

from rankrise.checkpoints import diff, extract_lora, resize_lora

GPT_OSS = Family("gpt_oss", HEADED | {"num_local_experts": 4, "num_experts_per_tok": 2})
QWEN = Family("qwen3_moe", EXPERTS | {"mlp_only_layers": [0]})
STACK = "model.layers.1.mlp.experts"
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def stored(family, folder):
    """Both models on disk with the fused weights that they have in memory."""
    model = family.build()
    model.config.architectures = [type(model).__name__]
    for side in ("base", "tuned"):
        if side == "tuned":
            tune(model)
        state = {name: weight.clone() for name, weight in model.state_dict().items()}
        model.config.save_pretrained(files.save(folder / side, state))
    return folder / "base", folder / "tuned", type(model)


def merged(kind, base, adapter):
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(loaded(kind, base), adapter).merge_and_unload()


@quiet
@pytest.mark.parametrize(("family", "save"), [(GPT_OSS, saved), (QWEN, stored)], ids=["transposed", "as a state dict"])
def test_peft_merges_what_was_written(tmp_path, family, save):
    base, tuned, kind = save(family, tmp_path)
    done = extract_lora(base, tuned, out=tmp_path / "a", energy=1.0)
    assert done.advice.ranks[f"{STACK}.gate_up_proj"] == done.advice.ranks[f"{STACK}.down_proj"] == 2
    assert done.error < 1e-5
    model, goal = merged(kind, base, tmp_path / "a"), loaded(kind, tuned)
    assert distance(model, goal) / distance(loaded(kind, base), goal) == pytest.approx(done.total_error, abs=1e-5)
    for name in ("gate_up_proj", "down_proj"):
        torch.testing.assert_close(model.get_parameter(f"{STACK}.{name}"), goal.get_parameter(f"{STACK}.{name}"))
    rows = {row.name: row for row in diff(base, tuned, heads=False).weights()}
    read = {row.name: row for row in diff(tmp_path / "a").weights()}
    experts = [f"{STACK}.{name}[{e}]" for name in ("gate_up_proj", "down_proj") for e in range(4)]
    assert set(experts) <= read.keys()
    for name in experts:
        assert read[name].norm == pytest.approx(rows[name].norm, rel=1e-4)
        assert read[name].stable_rank == pytest.approx(rows[name].stable_rank, rel=1e-4)


@quiet
def test_an_adapter_of_one_parameter_that_peft_wrote_is_read(tmp_path):
    import peft

    model = QWEN.build()
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=[], target_parameters=["mlp.experts.gate_up_proj"])
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=generator)
    adapted.save_pretrained(tmp_path / "a")
    goal = adapted.merge_and_unload().get_parameter(f"{STACK}.gate_up_proj") - before[f"{STACK}.gate_up_proj"]
    read = {row.name: row.norm for row in diff(tmp_path / "a").weights()}
    assert read == pytest.approx({f"{STACK}.gate_up_proj[{e}]": float(goal[e].norm()) for e in range(4)}, rel=1e-4)
    with pytest.raises(ValueError, match=r"is one of a stack of experts\. Merge it"):
        resize_lora(tmp_path / "a", rank=1)


def test_one_rank_for_all_experts_is_what_the_energy_needs(tmp_path):
    """Experts of ranks 1 and 3: two directions keep what the worse one's two keep, and the error says so."""
    generator = torch.Generator().manual_seed(0)
    base = {f"{STACK}.up_proj": torch.randn(2, 40, 30, generator=generator)}
    change = torch.stack(
        [torch.randn(40, r, generator=generator) @ torch.randn(r, 30, generator=generator) for r in (1, 3)]
    )
    tuned = {name: weight + 0.01 * change for name, weight in base.items()}
    for side, state in (("base", base), ("tuned", tuned)):
        save_file(state, tmp_path / f"{side}.safetensors")
    done = extract_lora(tmp_path / "base.safetensors", tmp_path / "tuned.safetensors", out=tmp_path / "a", rank=2)
    tail = torch.linalg.svdvals(change.double())[:, 2:].norm()
    assert done.error == pytest.approx(float(tail / change.double().norm()), rel=1e-3)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert (config["target_modules"], config["target_parameters"]) == ([], [f"{STACK}.up_proj"])
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert {name.rpartition("experts.")[2]: tuple(t.shape) for name, t in tensors.items()} == {
        "lora_A.weight": (4, 30), "lora_B.weight": (40, 4),
    }  # fmt: skip
    assert done.advice.training_config()["target_parameters"] == [f"{STACK}.up_proj"]
    with pytest.raises(ValueError, match="is a stack of experts, whose floor is not known"):
        extract_lora(tmp_path / "base.safetensors", tmp_path / "tuned.safetensors", floor=True)
