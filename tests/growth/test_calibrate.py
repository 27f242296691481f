"""Ranks before training."""

import copy

import peft
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.test_function import rankrise, text_of  # noqa: F401
from tests.growth.models import batch, byte_gpt

from rankrise.growth import calibrate_ranks


def test_ranks_go_where_the_gradient_agrees():
    """Two layers of four need a change; the gradients of the others are noise."""
    generator = torch.Generator().manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(4))
    model = torch.nn.Sequential(*layers)
    change = torch.randn(16, 3, generator=generator) @ torch.randn(3, 16, generator=generator)

    def loss(model, x):
        outputs = [layer(x) for layer in model]
        noise = [torch.randn(16, 16, generator=generator) for _ in range(2)]
        wanted = sum((outputs[i] * (x @ change.mT)).mean() for i in (1, 2))
        return wanted + sum((outputs[i] * (x @ n)).mean() for i, n in zip((0, 3), noise, strict=True))

    before = copy.deepcopy(model.state_dict())
    found = calibrate_ranks(model, [torch.randn(64, 16, generator=generator) for _ in range(16)], rank=2, loss=loss)
    assert found.ranks["1"] >= 3
    assert found.ranks["2"] >= 3
    assert found.signals["1"] > 5 * found.signals["0"]
    assert found.parameters <= 2 * 4 * 32
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_peft_takes_the_ranks_and_axolotl_the_lines():
    generator = torch.Generator().manual_seed(0)
    model = byte_gpt(20)
    batches = [{"input_ids": ids, "labels": ids} for ids in (batch(generator) for _ in range(6))]
    found = calibrate_ranks(model, batches, rank=2)
    assert "lm_head" not in found.signals
    adapted = peft.get_peft_model(model, peft.LoraConfig(**found.training_config()))
    ranks = {
        name.removeprefix("base_model.model."): len(module.lora_A["default"].weight)
        for name, module in adapted.named_modules()
        if hasattr(module, "lora_A")
    }
    assert ranks == found.ranks
    lines = found.axolotl().splitlines()
    assert f"lora_r: {max(ranks.values())}" in lines
    assert sum(line.startswith("  - ") for line in lines) == len(ranks)
    assert "lora_rank_pattern:" in lines


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern")
def test_peft_takes_the_ranks_of_dense_layers_among_experts():
    import transformers

    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "mlp_only_layers": [0]}
    config = transformers.AutoConfig.for_model("qwen3_moe", **sizes, **experts, vocab_size=32)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(32, (4, 8))
    found = calibrate_ranks(model, [{"input_ids": ids, "labels": ids}] * 4, rank=8)
    dense = {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"}
    assert dense <= found.ranks.keys()
    adapted = peft.get_peft_model(model, peft.LoraConfig(**found.training_config()))
    ranks = {
        name.removeprefix("base_model.model."): module.r["default"]
        for name, module in adapted.named_modules()
        if "default" in getattr(module, "lora_A", {})
    }
    assert ranks == found.ranks
    assert "lora_target_parameters:" in found.axolotl().splitlines()


def test_mistakes_are_said():
    with pytest.raises(ValueError, match="`batches` must be at least 2"):
        calibrate_ranks(byte_gpt(), [{}])
    with pytest.raises(ValueError, match="it has none"):
        calibrate_ranks(torch.nn.LayerNorm(4), [1, 2])


def test_the_command(rankrise, tmp_path):  # noqa: F811
    byte_gpt().save_pretrained(tmp_path / "base")
    save_file({"input_ids": batch(torch.Generator().manual_seed(0), size=12)}, tmp_path / "data.safetensors")
    done = rankrise("lora", tmp_path / "base", "--calibrate", tmp_path / "data.safetensors", "--rank", "2")
    assert done.returncode == 0, done.stderr
    assert "for axolotl:\nadapter: lora" in done.stdout
    assert "may be worse than one rank everywhere" in done.stderr
    wrong = rankrise("lora", tmp_path / "base", "--calibrate", tmp_path / "data.safetensors", "--budget", "9")
    assert wrong.returncode == 2
    assert "`--calibrate` takes a base alone" in text_of(wrong)
