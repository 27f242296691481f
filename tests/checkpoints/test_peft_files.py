"""Adapters as PEFT itself saves them: read as what it adds to the base, or refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoints import files
from tests.checkpoints.planted import build

from rankrise.checkpoints import diff, match_checkpoints, open_checkpoint, resize_lora

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT's, about Conv1D and tied weights


def adapted(tmp_path, name="gpt2", **options):
    """Save a base and an adapter with trained factors; the adapted model."""
    import peft

    model = build(name)
    model.save_pretrained(tmp_path / "base")
    adapter = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, **options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in adapter.named_parameters():
            if parameter.requires_grad and ("lora_" in parameter_name or "bias" in parameter_name):
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    adapter.save_pretrained(tmp_path / "adapter")
    return adapter


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora"])
def test_starts_that_change_the_base_are_refused(tmp_path, start):
    adapted(tmp_path, target_modules=["c_attn"], init_lora_weights=start)
    with pytest.raises(ValueError, match=f"init_lora_weights is '{start}', for which PEFT changes the base"):
        diff(tmp_path / "base", tmp_path / "adapter")
    with pytest.raises(ValueError, match="path_initial_model_for_weight_conversion"):
        resize_lora(tmp_path / "adapter", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("start", [True, "gaussian", "orthogonal", "mica"])
def test_starts_that_leave_the_base_alone_are_what_peft_merges(tmp_path, start):
    model = adapted(tmp_path, target_modules=["c_attn"], init_lora_weights=start)
    before = load_file(tmp_path / "base" / "model.safetensors")
    found = {row.name: row for row in diff(tmp_path / "base", tmp_path / "adapter").weights()}
    after = model.merge_and_unload().state_dict()
    assert len(found) == 2
    for name, row in found.items():
        change = (after[name] - before[name]).norm()
        assert row.norm == pytest.approx(float(change), rel=1e-4)


def test_a_pissa_adapter_converted_by_peft(tmp_path):
    """With twice the rank, and a config that says that the base is left alone."""
    import peft

    model = build("gpt2")
    model.save_pretrained(tmp_path / "base")
    options = {"target_modules": ["c_attn"], "init_lora_weights": "pissa"}
    adapter = peft.get_peft_model(model, peft.LoraConfig(r=2, lora_alpha=4, **options))
    adapter.peft_config["default"].init_lora_weights = True
    adapter.save_pretrained(tmp_path / "start")
    adapter.peft_config["default"].init_lora_weights = "pissa"
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if "lora_B" in name:
                parameter *= 1.1
    adapter.save_pretrained(tmp_path / "new", path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    before = load_file(tmp_path / "base" / "model.safetensors")
    after = adapter.merge_and_unload().state_dict()
    rows = diff(tmp_path / "base", tmp_path / "new").weights()
    assert len(rows) == 2
    for row in rows:
        assert row.norm == pytest.approx(float((after[row.name] - before[row.name]).norm()), rel=1e-3)


def test_stacked_experts_are_refused_without_their_setting(tmp_path):
    import peft
    import transformers as hf

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = hf.MixtralForCausalLM(hf.MixtralConfig(**sizes, num_key_value_heads=2, vocab_size=50, num_local_experts=4))
    config = peft.LoraConfig(r=2, lora_alpha=2, target_parameters=["mlp.experts.down_proj"])
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    assert open_checkpoint(tmp_path).kind == "peft"
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(written | {"target_parameters": None}))
    with pytest.raises(ValueError, match="has 8 and r is 2"):  # the ranks of four experts, stacked
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("option", ["use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"])
def test_other_variants_are_refused(tmp_path, option):
    files.save_peft(tmp_path, {"c": (6, 4)}, **{option: {"x": 1}})
    with pytest.raises(ValueError, match=f"its config has {option}"):
        open_checkpoint(tmp_path)
    files.save_peft(tmp_path, {"c": (6, 4)}, **{option: None})
    assert open_checkpoint(tmp_path).kind == "peft"


def test_ranks_of_the_config(tmp_path):
    files.save_peft(tmp_path, {"c": (6, 4)}, r=8, rank_pattern={"c": 2})
    assert open_checkpoint(tmp_path).deltas["base_model.model.c.weight"].rank == 2
    files.save_peft(tmp_path, {"c": (6, 4)}, r=8, rank_pattern={"c": 3})
    with pytest.raises(ValueError, match=r"'base_model\.model\.c' has 2 and r is 8"):
        open_checkpoint(tmp_path)


def test_embeddings_and_heads_that_peft_saves_by_itself(tmp_path):
    """GPT-2 ties its head to its embedding, and PEFT saves both weights beside the factors."""
    model = adapted(tmp_path, target_modules=["c_attn", "lm_head", "wte"])
    assert any(".base_layer." in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    found = diff(tmp_path / "base", tmp_path / "adapter")
    rows = {row.name: row for row in found.weights()}
    assert rows.keys() == {
        *(f"transformer.h.{n}.attn.c_attn.weight" for n in range(2)),
        "lm_head.weight",
        "transformer.wte.weight",
    }
    for name, row in rows.items():
        added = model.get_submodule(f"base_model.model.{name.removesuffix('.weight')}").get_delta_weight("default")
        assert row.norm == pytest.approx(float(added.norm()), rel=1e-4)
        assert row.relative == pytest.approx(row.norm / row.base_norm)
    assert found.preflights[0].tied == ("lm_head.weight",)


def test_an_embedding_that_was_trained_beside_its_factors_is_refused(tmp_path):
    adapted(tmp_path, target_modules=["c_attn", "lm_head"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    state = load_file(path)
    state["base_model.model.lm_head.base_layer.weight"][0, 0] += 1
    files.save(path.parent, state, None, path.name)
    with pytest.raises(ValueError, match=r"lm_head\.base_layer\.weight' differs from the base's"):
        diff(tmp_path / "base", path.parent)
    assert len(diff(path.parent).weights()) == 3


@pytest.mark.parametrize("bias", ["lora_only", "all"])
def test_biases_beside_the_factors(tmp_path, bias):
    model = adapted(tmp_path, target_modules=["c_attn"], bias=bias)
    before = load_file(tmp_path / "base" / "model.safetensors")
    found = diff(tmp_path / "base", tmp_path / "adapter")
    after = model.merge_and_unload().state_dict()
    changed = {n for n, tensor in before.items() if not torch.equal(after[n], tensor)}
    rows = {row.name: row for row in found.weights()}
    assert changed == rows.keys() >= {f"transformer.h.{n}.attn.c_attn.bias" for n in range(2)}
    for name, row in rows.items():
        assert row.norm == pytest.approx(float((after[name] - before[name]).norm()), rel=1e-4)


def test_a_wrapped_weight_without_a_config_is_refused(tmp_path):
    state = {"h.0.q.base_layer.weight": torch.ones(4, 4), "h.0.q.lora_A.weight": torch.ones(2, 4)}
    files.save(tmp_path, state, None)
    with pytest.raises(ValueError, match="it holds both"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("tied", "problem"), [(None, False), (True, False), (False, True)])
def test_a_head_that_the_base_has_not(tmp_path, tied, problem):
    state = {name: t for name, t in files.weights().items() if name != "lm_head.weight"}
    config = files.CONFIG | {"tie_word_embeddings": tied}
    base = open_checkpoint(files.save(tmp_path / "base", state, config))
    files.save_peft(tmp_path / "adapter", {"lm_head": (40, 16)})
    found = match_checkpoints(base, open_checkpoint(tmp_path / "adapter"))
    assert bool(found.problems) == problem
    assert [pair.base_name for pair in found.pairs] == ([] if problem else ["model.embed_tokens.weight"])
