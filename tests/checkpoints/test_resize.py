"""A resized adapter is the truncation of what it was, whatever its scales."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rankrise.checkpoints import resize_lora


def adapter(folder, *, alpha=16, rslora=False, pattern=None, saved=None, **more):
    generator = torch.Generator().manual_seed(0)
    factors = {
        f"h.{i}.up": (torch.randn(8, 30, generator=generator), torch.randn(20, 8, generator=generator)) for i in (0, 1)
    }
    tensors = {
        f"base_model.model.{n}.lora_{x}.weight": f for n, (a, b) in factors.items() for x, f in (("A", a), ("B", b))
    }
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": alpha, "target_modules": ["up"], "use_rslora": rslora,
              "alpha_pattern": pattern or {}, "task_type": "CAUSAL_LM",
              "base_model_name_or_path": "some/base", **more}  # fmt: skip
    if saved is not None:
        tensors["base_model.model.norm.weight"] = saved
        config["modules_to_save"] = ["norm"]
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return factors


def product(folder, name):
    tensors = load_file(folder / "adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.{name}.lora_{x}.weight"].double() for x in "AB")
    return b @ a


@pytest.mark.parametrize(
    ("options", "scales"),
    [({}, (2.0, 2.0)), ({"rslora": True}, (16 / 8**0.5,) * 2), ({"pattern": {r"h\.1\.up": 4}}, (2.0, 0.5))],
)
def test_resize_equals_truncation(tmp_path, options, scales):
    factors = adapter(tmp_path / "a", **options)
    done = resize_lora(tmp_path / "a", out=tmp_path / "b", rank=3)
    for (name, (a, b)), scale in zip(factors.items(), scales, strict=True):
        u, s, vh = torch.linalg.svd(scale * b.double() @ a.double(), full_matrices=False)
        expected = (u[:, :3] * s[:3]) @ vh[:3]
        torch.testing.assert_close(product(tmp_path / "b", name), expected, rtol=1e-5, atol=1e-5)
        assert done.errors[name] == pytest.approx(float(s[3:].norm() / s.norm()), rel=1e-4)
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert config["rank_pattern"] == config["alpha_pattern"] == {r"h\.0\.up": 3, r"h\.1\.up": 3}
    assert (config["use_rslora"], config["task_type"], config["base_model_name_or_path"]) == (
        False,
        "CAUSAL_LM",
        "some/base",
    )


def test_energy_one_changes_nothing_and_ranks_never_rise(tmp_path):
    factors = adapter(tmp_path / "a", saved=torch.ones(5))
    done = resize_lora(tmp_path / "a", out=tmp_path / "b", energy=1.0)
    assert set(done.advice.ranks.values()) == {8}
    assert done.error < 1e-6
    assert torch.equal(
        load_file(tmp_path / "b" / "adapter_model.safetensors")["base_model.model.norm.weight"], torch.ones(5)
    )
    wide = resize_lora(tmp_path / "a", out=tmp_path / "c", rank=50)
    assert set(wide.advice.ranks.values()) == {8}
    a, b = factors["h.0.up"]
    torch.testing.assert_close(product(tmp_path / "c", "h.0.up"), 2 * (b @ a).double(), rtol=1e-4, atol=1e-5)


def test_advice_only_and_snapped(tmp_path):
    adapter(tmp_path / "a")
    done = resize_lora(tmp_path / "a", energy=0.3, snap=True)
    assert done.out is None
    assert set(done.advice.ranks.values()) == {8}


@pytest.mark.parametrize(("option", "message"), [({"use_dora": True}, "use_dora"), ({"peft_type": "LOHA"}, "LOHA")])
def test_what_is_not_plain_lora_is_refused(tmp_path, option, message):
    adapter(tmp_path / "a", **option)
    with pytest.raises(ValueError, match=message):
        resize_lora(tmp_path / "a", out=tmp_path / "b")


def test_whole_model_is_refused(tmp_path):
    save_file({"w": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="must be a LoRA adapter; it is a whole model"):
        resize_lora(tmp_path / "model.safetensors", out=tmp_path / "b")


def test_an_embedding_is_refused_with_a_way_out(tmp_path):
    import peft
    from tests.checkpoints.planted import build

    model = peft.get_peft_model(build("llama"), peft.LoraConfig(r=2, target_modules=["embed_tokens"]))
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    with pytest.raises(ValueError, match=r"is an embedding\. Merge it into its base and use `rankrise lora`"):
        resize_lora(tmp_path, rank=1)
