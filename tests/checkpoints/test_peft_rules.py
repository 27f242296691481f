"""A config is read back as PEFT reads it: the modules it adapts, their ranks and scales, whatever their names."""

import json

import pytest
import torch
from tests.checkpoints import files

from rankrise.checkpoints import diff, extract_lora, resize_lora
from rankrise.checkpoints.lora._peft_rules import read_config
from rankrise.checkpoints.lora._peft_writer import lora_arguments

NAMES = ["up", "b.up", "a.b.up", "cup", "a.down", "b.down.up", "mlp.gate_proj", "x.mlp.gate_proj", "x-y.up"]
MOE = {"model_type": "qwen3_moe", "num_experts": 4, "num_attention_heads": 4}


def nested(names):
    """A model whose modules have these names."""
    model = torch.nn.Module()
    for name in names:
        place = model
        *path, last = name.split(".")
        for part in path:
            if not hasattr(place, part):
                setattr(place, part, torch.nn.Module())
            place = getattr(place, part)
        if not hasattr(place, last):
            setattr(place, last, torch.nn.Linear(4, 4, bias=False))
    return model


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern:RuntimeWarning")
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["up"]},
        {"target_modules": ["b.up", "a.down"], "rank_pattern": {"a.b.up": 3, "b.up": 2}},
        {"target_modules": ["b.up"], "rank_pattern": {r"a\.b\.up": 3, "b.up": 2}, "alpha_pattern": {"up": 5}},
        {"target_modules": r"(?:up|a\.b\.up)", "rank_pattern": {"up": 2}},
        {"target_modules": ["up"], "exclude_modules": ["b.up"]},
        {"target_modules": ["up"], "exclude_modules": r".*\.up"},
        {"target_modules": ["up", "a.down"], "modules_to_save": ["a"]},
        {"target_modules": ["a.down"], "target_parameters": ["mlp.gate_proj.weight"]},
        {"target_modules": [], "target_parameters": ["x.mlp.gate_proj.weight"]},
        lora_arguments({"up": 2, "b.up": 3}, NAMES),
        lora_arguments({"up": 2, "x.mlp.gate_proj.weight": 3}, NAMES, ["x.mlp.gate_proj.weight"]),
    ],
)
def test_the_rules_are_those_of_peft(config):
    peft = pytest.importorskip("peft")
    config = {"r": 4, "lora_alpha": 4} | config
    model = peft.get_peft_model(nested(NAMES), peft.LoraConfig(**config))
    layers = {n.removeprefix("base_model.model."): m for n, m in model.named_modules() if hasattr(m, "lora_A")}
    expected = {name: (layer.r["default"], layer.lora_alpha["default"]) for name, layer in layers.items()}
    names = [name for name, module in nested(NAMES).named_modules() if isinstance(module, torch.nn.Linear)]
    found = read_config(config, names, has_experts=False)
    assert {name: (setting.rank, setting.alpha) for name, setting in found.items()} == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"target_modules": ["up"], "rank_pattern": {"down": 2}}, "Every key of rank_pattern must match an adapted"),
        (
            {"target_modules": ["up"], "rank_pattern": {"up": 2}, "alpha_pattern": {"b.up": 1, "cup": 2}},
            "alpha_pattern",
        ),
        ({"target_modules": ["a.down"], "target_parameters": ["a.down.weight"]}, "is told as both"),
    ],
)
def test_a_config_that_peft_would_not_follow_is_refused(config, words):
    with pytest.raises(ValueError, match=words):
        read_config({"r": 4, "lora_alpha": 4} | config, NAMES, has_experts=False)


def test_targets_that_peft_takes_for_experts_are_refused():
    for targets in (["x.mlp.gate_proj"], r"(?:x\.mlp\.gate_proj)"):
        with pytest.raises(ValueError, match="takes targets named 'gate_proj' for the experts"):
            read_config({"r": 4, "lora_alpha": 4, "target_modules": targets}, NAMES, has_experts=True)


def experts():
    """Two layers: a dense one, and one of experts with a shared one, as DeepSeek and Qwen name them."""
    shapes = {"model.layers.0.mlp.gate_proj": (24, 16), "model.layers.1.self_attn.q_proj": (16, 16),
              "model.layers.1.mlp.shared_experts.gate_proj": (24, 16), "model.layers.1.mlp.gate": (4, 16),
              **{f"model.layers.1.mlp.experts.{n}.gate_proj": (24, 16) for n in range(4)}}  # fmt: skip
    return files.weights(0, {f"{name}.weight": shape for name, shape in shapes.items()})


def test_dense_layers_among_experts_are_named_by_their_parameter(tmp_path):
    base = experts()
    folders = [files.save(tmp_path / "base", base, MOE), files.save(tmp_path / "tuned", files.tuned(base), MOE)]
    done = extract_lora(*folders, out=tmp_path / "adapter", rank=2)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    dense = ["model.layers.0.mlp.gate_proj", "model.layers.1.mlp.shared_experts.gate_proj"]
    assert config["target_parameters"] == [f"{name}.weight" for name in dense]
    assert config["target_modules"] == ["model.layers.1.self_attn.q_proj"]
    assert done.errors.keys() == {*dense, "model.layers.1.self_attn.q_proj"}
    assert {item.kind for item in done.not_carried} == {"expert", "router"}
    changes = {row.name: row.norm for row in diff(tmp_path / "adapter").weights()}
    rows = {row.name: row.norm for row in diff(*folders, heads=False).weights()}
    assert changes == pytest.approx({name: rows[name] for name in changes}, rel=1e-5)
    assert len(changes) == 3
    smaller = resize_lora(tmp_path / "adapter", out=tmp_path / "smaller", rank=1)
    assert (
        json.loads((smaller.out / "adapter_config.json").read_text())["target_parameters"]
        == config["target_parameters"]
    )


def test_experts_are_not_saved_whole_where_peft_would_ignore_them(tmp_path):
    base = experts()
    folders = [files.save(tmp_path / "base", base, MOE), files.save(tmp_path / "tuned", files.tuned(base), MOE)]
    done = extract_lora(*folders, out=tmp_path / "adapter", rank=2, save=["all"])
    assert done.saved == ("model.layers.1.mlp.gate",)
    with pytest.raises(ValueError, match="is one of the experts that transformers keeps in one tensor"):
        extract_lora(*folders, out=tmp_path / "other", rank=2, save=["model.layers.1.mlp.experts.0.gate_proj"])
