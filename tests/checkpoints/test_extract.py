"""Adapters through PEFT itself, on four architectures; what peers get wrong; what LoRA cannot carry."""

import json

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.planted import adapter_logits, build, model_inputs, plant, planted_pair

from rankrise.checkpoints import diff, extract_lora, open_checkpoint, resize_lora
from rankrise.checkpoints.lora._models import run_model

NAMES = ("llama", "gpt2", "vit", "bert")
pytestmark = pytest.mark.filterwarnings("ignore:.*fan_in_fan_out:UserWarning")


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return (request.param, *planted_pair(folder, request.param))


def test_round_trip_through_peft_equals_the_truncation(pair, tmp_path):
    name, base, tuned, _, _, planted = pair
    done = extract_lora(base, tuned, out=tmp_path / "a", energy=0.6)  # a real truncation
    assert sorted(done.advice.ranks) == sorted(n.removesuffix(".weight") for n in planted)
    assert done.error == pytest.approx(done.advice.error, abs=1e-4)
    assert 0.3 < done.error < 0.7
    truncated = build(name)
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    inputs = model_inputs(truncated)
    with torch.no_grad():
        for module in done.advice.ranks:
            a, b = (tensors[f"base_model.model.{module}.lora_{letter}.weight"] for letter in "AB")
            weight = truncated.get_parameter(f"{module}.weight")
            weight += (b @ a).mT if "Conv1D" in str(type(truncated.get_submodule(module))) else b @ a
    expected = run_model(truncated, inputs)
    assert (adapter_logits(build(name), tmp_path / "a") - expected).abs().max() < 1e-5
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["alpha_pattern"] == config["rank_pattern"]  # left out, mixed ranks are scaled wrongly in silence
    assert config["fan_in_fan_out"] is (name == "gpt2")


@pytest.mark.parametrize("rule", [{"energy": 0.6}, {"rank": 2}, {"error": 0.5}, {"budget": 3000}, {"floor": True}])
def test_advice_of_every_module_lies_on_its_exact_error_curve(pair, rule):
    _, base, tuned, before, after, planted = pair
    advice = extract_lora(base, tuned, **rule).advice
    assert {f"{module.name}.weight" for module in advice.modules} == set(planted)
    for module in advice.modules:
        one, other = (model.get_parameter(f"{module.name}.weight").detach().double() for model in (before, after))
        sigma = torch.linalg.svdvals(other - one)
        best = float(sigma[module.rank :].norm() / sigma.norm())
        assert best - 1e-6 <= module.error <= 1.01 * best + 1e-6
        if "energy" in rule:
            assert module.rank == next(r for r in range(9) if sigma[:r].square().sum() >= 0.6 * sigma.square().sum())
        if "floor" in rule:
            assert module.rank == int((sigma > 1e-4 * sigma[0]).sum())


def test_whole_change_gives_the_tuned_logits(pair, tmp_path):
    name, base, tuned, _, after, _ = pair
    done = extract_lora(base, tuned, out=tmp_path / "a", floor=True, verify=True)
    assert {m.rank for m in done.advice.modules if m.shape != (3, 96) and m.shape != (5, 96)} == {4}
    assert max(done.errors.values()) < 1e-4
    assert done.total_error < 1e-4
    assert done.logits.max_difference < 1e-4
    assert done.logits.relative_error < 1e-3
    inputs = model_inputs(after)
    assert (adapter_logits(build(name), tmp_path / "a") - run_model(after, inputs)).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [4, 8, 16, 32])
def test_planted_ranks_are_recovered_exactly(tmp_path, rank, dtype):
    generator = torch.Generator().manual_seed(rank)
    base = {f"layers.{i}.up.weight": 0.02 * torch.randn(768, 512, generator=generator) for i in range(2)}
    tuned = {name: plant(w, rank, 0.003, generator).to(dtype) for name, w in base.items()}
    save_file({name: w.to(dtype) for name, w in base.items()}, tmp_path / "base.safetensors")
    save_file(tuned, tmp_path / "tuned.safetensors")
    done = extract_lora(tmp_path / "base.safetensors", tmp_path / "tuned.safetensors", floor=True)
    assert set(done.advice.ranks.values()) == {rank}


def files(folder, base, tuned):
    folder.mkdir(exist_ok=True)
    for name, tensors in (("base", base), ("tuned", tuned)):
        save_file(tensors, folder / f"{name}.safetensors")
    return folder / "base.safetensors", folder / "tuned.safetensors"


def weights(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_unchanged_modules_are_skipped_and_rank_0_is_never_written(tmp_path):
    w = weights(40, 30)
    base = {"a.weight": w, "b.weight": w.clone(), "c.weight": w.clone()}
    tuned = base | {"b.weight": plant(w, 2, 0.1, torch.Generator().manual_seed(0))}
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", energy=1.0)
    assert set(done.unchanged) == {"a.weight", "c.weight"}
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert set(tensors) == {f"base_model.model.b.lora_{letter}.weight" for letter in "AB"}
    assert min(min(t.shape) for t in tensors.values()) >= 1
    assert done.advice.training_config()["target_modules"] == ["b"]


def test_equal_checkpoints_have_nothing_to_write(tmp_path):
    base = {"a.weight": weights(8, 8)}
    with pytest.raises(ValueError, match=r"none has a change to write\. The checkpoints may be equal"):
        extract_lora(*files(tmp_path, base, base), out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_noise_below_the_floor_is_left_alone(tmp_path):
    w = weights(64, 64)
    base = {"a.weight": w, "b.weight": w.clone()}
    noisy = w + 1e-8 * weights(64, 64, seed=1)
    tuned = {"a.weight": plant(w, 3, 0.1, torch.Generator().manual_seed(0)), "b.weight": noisy}
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", floor=True)
    assert done.advice.ranks == {"a": 3}
    assert done.total_error < 1e-3


def test_a_module_without_a_rank_counts_as_lost(tmp_path):
    w = weights(64, 64)
    base = {"a.weight": w, "b.weight": w.clone()}
    tuned = {
        n: plant(w, 1, size, torch.Generator().manual_seed(0)) for n, size in (("a.weight", 0.4), ("b.weight", 0.3))
    }
    for out in (None, tmp_path / "a"):
        done = extract_lora(*files(tmp_path, base, tuned), out=out, budget=128)
        assert done.advice.ranks == {"a": 1}
        assert done.error == pytest.approx(0.6, rel=1e-4)  # 3 : 4 : 5
        assert done.errors["a"] < 1e-4


def test_large_values_are_not_clamped(tmp_path):
    """A default clamp of another tool raises the error two to four times."""
    w = weights(64, 64)
    change = 30 * plant(torch.zeros(64, 64) + w, 2, 1.0, torch.Generator().manual_seed(0)) - 30 * w
    change[0] *= 100
    done = extract_lora(*files(tmp_path, {"a.weight": w}, {"a.weight": w + change}), out=tmp_path / "a", energy=0.99999)
    assert done.error < 4e-3


def test_what_lora_cannot_carry_is_listed_with_its_size_and_can_be_saved(tmp_path):
    base, _, _, after, _ = planted_pair(tmp_path, "llama")
    with torch.no_grad():
        after.model.embed_tokens.weight[3] += 0.1 * weights(96)
        after.model.norm.weight += 0.5
    after.save_pretrained(tmp_path / "more")
    done = extract_lora(base, tmp_path / "more", out=tmp_path / "a", floor=True)
    assert {item.kind: item.module for item in done.not_carried} == {
        "embedding": "model.embed_tokens",
        "norm": "model.norm",
    }
    assert {item.kind: item.relative_size for item in done.not_carried}["norm"] == pytest.approx(0.5)
    assert done.total_error > 0.1 > done.error
    saved = extract_lora(base, tmp_path / "more", out=tmp_path / "b", floor=True, save=["all"], verify=True)
    assert not saved.not_carried
    assert set(saved.saved) == {"model.embed_tokens", "model.norm"}  # "all" that changed
    assert saved.logits.max_difference < 1e-4
    assert done.logits is None
    with pytest.raises(ValueError, match=r"has no 'norms'\. Did you mean"):
        extract_lora(base, tmp_path / "more", save=["norms"])


def test_changed_bias_is_listed_and_saved_with_its_module(tmp_path):
    base, _, _, after, _ = planted_pair(tmp_path, "bert")
    with torch.no_grad():
        after.bert.pooler.dense.bias += 0.3
    after.save_pretrained(tmp_path / "more")
    done = extract_lora(base, tmp_path / "more")
    assert [(item.kind, item.module) for item in done.not_carried] == [("bias", "bert.pooler.dense")]
    saved = extract_lora(base, tmp_path / "more", out=tmp_path / "a", floor=True, save=["pooler.dense"], verify=True)
    assert "bert.pooler.dense" not in saved.advice.ranks
    assert saved.logits.max_difference < 1e-4


def test_grouped_conv1d_without_a_config_is_recognised_by_its_bias(tmp_path):
    base = {"h.0.c_fc.weight": weights(16, 64), "h.0.c_fc.bias": weights(64), "h.0.c_proj.weight": weights(64, 16),
            "h.0.c_proj.bias": weights(16), "h.0.attn.c_proj.weight": weights(16, 16),
            "h.0.attn.c_proj.bias": weights(16), "head.weight": weights(10, 16), "head.bias": weights(10)}  # fmt: skip
    tuned = {n: plant(w, 1, 0.1, torch.Generator().manual_seed(0)) if w.ndim == 2 else w for n, w in base.items()}
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", rank=1)
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert tensors["base_model.model.h.0.c_fc.lora_A.weight"].shape == (1, 16)
    assert tensors["base_model.model.h.0.c_fc.lora_B.weight"].shape == (64, 1)
    assert tensors["base_model.model.head.lora_A.weight"].shape == (1, 16)
    assert done.error < 1e-4  # also of the square one, which is stored as its namesakes are


def test_names_that_end_other_names_and_hostile_ones(tmp_path):
    w = weights(12, 12)
    hostile = {"x(a+)+$.weight", "../up.weight", "q\x1b[2J.weight", ".weight", "weight", "a..b.weight"}
    base = {name: w.clone() for name in {"up.weight", "deep.up.weight", *hostile}}
    tuned = {name: plant(w, 1, 0.1, torch.Generator().manual_seed(0)) for name in base} | {"deep.up.weight": w}
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", rank=1)
    assert set(done.advice.ranks) == {"up"}
    assert {item.name for item in done.not_carried} == hostile
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    model = torch.nn.ModuleDict(
        {"up": torch.nn.Linear(12, 12), "deep": torch.nn.ModuleDict({"up": torch.nn.Linear(12, 12)})}
    )
    lora = peft.get_peft_model(
        model, peft.LoraConfig(**{k: config[k] for k in ("r", "target_modules", "rank_pattern")})
    )
    assert {n for n, _ in lora.named_modules() if n.endswith("lora_A")} == {"base_model.model.up.lora_A"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "base.safetensors", "tuned.safetensors"]


def test_open_checkpoint_reads_the_adapter_back(pair, tmp_path):
    name, base, tuned, *_ = pair
    done = extract_lora(base, tuned, out=tmp_path / "a", rank=2, dtype=torch.bfloat16)
    adapter = open_checkpoint(tmp_path / "a")
    assert adapter.kind == "peft"
    assert {delta.scale for delta in adapter.deltas.values()} == {1.0}
    assert len(adapter.deltas) == len(done.advice.ranks)
    small = resize_lora(tmp_path / "a", out=tmp_path / "b", rank=1)
    assert set(small.advice.ranks.values()) == {1}
    assert adapter_logits(build(name), tmp_path / "b").isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"energy": 0.5, "rank": 3}, "One rule must decide the ranks; got `energy` and `rank`"),
        ({"energy": 1.5}, r"`energy` must be in \(0, 1\]; got 1.5"),
        ({"rank": 0}, "`rank` must be a positive whole number; got 0"),
        ({"dtype": torch.float64}, "`dtype` must be float32, float16 or bfloat16"),
        ({"verify": True}, "`verify` must have an adapter to check; give `out`"),
        ({"out": "."}, "`out` must be a new or an empty folder"),
    ],
)
def test_mistakes_are_said_before_any_work(options, message):
    with pytest.raises(ValueError, match=message):
        extract_lora("nowhere", "nowhere", **options)


def test_a_device_that_is_not_there(tmp_path):
    base = {"a.weight": weights(8, 8)}
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device was found"):
            extract_lora(*files(tmp_path, base, base), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [{"energy": 0.9}, {"rank": 8}, {"floor": True}, {"rank": 8, "exact": True}])
def test_cpu_and_gpu_agree(tmp_path, rule):
    generator = torch.Generator().manual_seed(0)
    base = {f"{m}.weight": torch.randn(m, n, generator=generator) for m, n in ((512, 300), (300, 512))}
    noise = {name: 1e-5 * torch.randn(w.shape, generator=generator) for name, w in base.items()}
    tuned = {name: plant(w, 6, 0.01, generator) + noise[name] for name, w in base.items()}
    pair = files(tmp_path, base, tuned)
    one, other = (extract_lora(*pair, out=tmp_path / device, device=device, **rule) for device in ("cpu", "cuda"))
    assert one.advice.ranks == other.advice.ranks
    assert other.errors == pytest.approx(one.errors, rel=1e-3, abs=1e-6)  # float32 factors leave some 1e-7


def test_linear_and_conv1d_in_one_model(tmp_path):
    base, tuned, *_ = planted_pair(tmp_path, "gpt2_classifier")
    done = extract_lora(base, tuned, out=tmp_path / "a", floor=True, verify=True)
    assert {"score", "transformer.h.0.mlp.c_fc"} <= set(done.advice.ranks)
    assert done.logits.max_difference < 1e-4


def test_names_without_the_body_as_on_the_hub(tmp_path):
    base, tuned, *_ = planted_pair(tmp_path, "gpt2")
    for folder in (base, tuned):
        tensors = load_file(folder / "model.safetensors")
        short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        save_file(short, folder / "model.safetensors", {"format": "pt"})
    done = extract_lora(base, tuned, out=tmp_path / "a", floor=True, verify=True)
    assert all(name.startswith("transformer.h.") for name in done.advice.ranks)
    assert done.logits.max_difference < 1e-4


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")  # PEFT's, about merging
def test_tied_embedding_is_saved_with_the_output_layer(tmp_path):
    base, _, _, after, _ = planted_pair(tmp_path, "gpt2")
    with torch.no_grad():
        after.transformer.wte.weight[3] += weights(96)
    after.save_pretrained(tmp_path / "more")
    done = extract_lora(base, tmp_path / "more", out=tmp_path / "a", floor=True, save=["wte"], verify=True)
    assert set(done.saved) == {"lm_head", "transformer.wte"}
    assert done.logits.max_difference < 1e-4
    assert done.total_error < 1e-4


def test_given_tokens_and_the_ones_out_of_range(pair, tmp_path):
    name, base, tuned, *_ = pair
    if name == "vit":  # has no tokens
        return
    done = extract_lora(base, tuned, out=tmp_path / "a", rank=4, verify=True, tokens=[1, 2, 3])
    assert done.logits.inputs == "3 given tokens"
    with pytest.raises(ValueError, match="must be ids from 0 to 63"):
        extract_lora(base, tuned, out=tmp_path / "b", rank=4, verify=True, tokens=[64])


@pytest.mark.parametrize("flag", [False, True])
def test_an_adapter_of_linear_and_conv1d_modules_is_read_as_peft_reads_it(tmp_path, flag):
    """One flag in the config is wrong for some modules whatever it says; merged by PEFT, it is the truth."""
    base, tuned, model, *_ = planted_pair(tmp_path, "gpt2_classifier")
    done = extract_lora(base, tuned, out=tmp_path / "a", rank=4)
    assert {m.shape for m in done.advice.modules} >= {(40, 96), (96, 96), (288, 96)}  # Linear, square, Conv1D
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config | {"fan_in_fan_out": flag}))
    merged = peft.PeftModel.from_pretrained(build("gpt2_classifier"), str(tmp_path / "a")).merge_and_unload()
    found = {row.name: row for row in diff(base, tmp_path / "a").weights()}
    for module in done.advice.ranks:
        name = f"{module}.weight"
        change = merged.get_parameter(name).detach().double() - model.get_parameter(name).detach().double()
        assert found[name].shape == tuple(change.shape)
        assert found[name].norm == pytest.approx(float(change.norm()), rel=1e-3)
    rows = diff(base, tmp_path / "a").circuits()
    whole = diff(base, tuned).circuits()
    for row, other in zip(rows, whole, strict=True):  # the heads see which way round the square output matrix is
        assert row.norm == pytest.approx(other.norm, rel=1e-3)
