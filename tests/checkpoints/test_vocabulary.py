"""Models that were given more tokens: what is read of them, what is refused, and adapters that still load."""

import copy

import peft
import pytest
import torch
from tests.checkpoints.planted import build, plant

from rankrise.checkpoints import diff, extract_lora
from rankrise.checkpoints.lora import _work as work_module


@pytest.fixture
def pair(tmp_path):
    """A Llama, and a fine-tune of it with eight more tokens; 96 wide, 64 tokens."""
    base = build("llama")
    base.save_pretrained(tmp_path / "base")
    tuned = copy.deepcopy(base)
    tuned.resize_token_embeddings(72)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if name.endswith(("q_proj.weight", "embed_tokens.weight", "lm_head.weight")):
                parameter.copy_(plant(parameter, 2, 0.1, generator))
    tuned.save_pretrained(tmp_path / "tuned")
    return tmp_path / "base", tmp_path / "tuned", base


@pytest.mark.parametrize("save", [[], ["all"]])
@pytest.mark.parametrize("rows", [64, 72])
def test_the_adapter_loads_on_the_base_and_on_one_with_as_many_rows(pair, tmp_path, save, rows):
    before, after, base = pair
    done = extract_lora(before, after, out=tmp_path / "a", rank=2, save=save)
    assert set(done.advice.ranks) == {f"model.layers.{n}.self_attn.q_proj" for n in range(2)}
    left = {(item.name, item.kind) for item in done.not_carried}
    assert left == {(f"{n}.weight", k) for n in ("lm_head", "model.embed_tokens") for k in ("resized", "new rows")}
    base.resize_token_embeddings(rows)
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "a"))
    assert adapted(torch.arange(8)[None]).logits.shape == (1, 8, rows)


@pytest.mark.parametrize("name", ["embed_tokens", "lm_head", "model"])
def test_a_module_with_more_rows_is_not_saved(pair, tmp_path, name):
    with pytest.raises(ValueError, match=r"must name modules of the base's size; '(model\.embed_tokens|lm_head)' has"):
        extract_lora(*pair[:2], out=tmp_path / "a", save=[name])
    assert not (tmp_path / "a").exists()


def test_verify_is_refused_before_any_work(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(work_module, "decompose_delta", lambda *_, **__: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=r"needs models of one size; got .*\(64, 96\) and \(72, 96\)\. Leave"):
        extract_lora(*pair[:2], out=tmp_path / "a", verify=True)


def test_an_adapter_with_more_rows_is_read_on_its_base(pair, tmp_path):
    before, _, base = pair
    first = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    base.resize_token_embeddings(72)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    adapter = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter += 0.01
    adapter.save_pretrained(tmp_path / "adapter")
    found = diff(before, tmp_path / "adapter")
    assert len(found.preflights[0].reshaped) == 2
    merged = {name: tensor.detach() for name, tensor in adapter.merge_and_unload().state_dict().items()}
    rows = [row for row in found.weights() if row.status == "changed"]
    assert {row.name for row in rows} >= {"lm_head.weight", "model.embed_tokens.weight"}
    assert len(rows) == 4
    for row in rows:
        true = merged[row.name][: len(first[row.name])] - first[row.name]
        assert row.norm == pytest.approx(float(true.norm()), rel=1e-4)
