"""Readings that were once wrong without a word, through public names only, so that they also run on older commits."""

import warnings

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.families import FAMILIES
from tests.checkpoints.test_families import distance, loaded, saved

from rankrise.checkpoints import diff, extract_lora, find_steps, open_checkpoint

FEW = ("qwen2-CausalLM-bfloat16-sharded-tied", "qwen3_moe-CausalLM-float32", "t5-Seq2SeqLM-float32",
       "llava-ImageTextToText-float32", "beit-ImageClassification-float32")  # fmt: skip
MOE = next(family for family in FAMILIES if family.name == FEW[1])
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


@quiet
@pytest.mark.parametrize("family", [f for f in FAMILIES if f.name in FEW], ids=lambda family: family.name)
def test_what_peft_leaves_out_is_what_was_reported(tmp_path, family):
    import peft

    base, tuned, kind = saved(family, tmp_path)
    goal = loaded(kind, tuned)
    done = extract_lora(base, tuned, out=tmp_path / "adapter", rank=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = peft.PeftModel.from_pretrained(loaded(kind, base), tmp_path / "adapter").merge_and_unload()
    assert distance(merged, goal) / distance(loaded(kind, base), goal) == pytest.approx(done.total_error, abs=1e-5)


@quiet
def test_verify_of_a_dense_layer_among_experts(tmp_path):
    """Only modules that LoRA carries are changed, so the adapter's logits are the tuned model's, or it is refused."""
    model = MOE.build()
    model.save_pretrained(tmp_path / "base")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "layers.0.mlp.gate_proj.weight", "layers.0.mlp.down_proj.weight")):
                left, right = (torch.randn(n, 2, generator=generator) for n in weight.shape)
                weight += 0.05 * left @ right.T
    model.save_pretrained(tmp_path / "tuned")
    done = extract_lora(tmp_path / "base", tmp_path / "tuned", out=tmp_path / "adapter", rank=2, verify=True)
    assert done.total_error < 1e-4
    assert done.logits.relative_error < 1e-3


@quiet
def test_saving_everything_that_is_not_linear_stores_no_experts(tmp_path):
    base, tuned, _ = saved(MOE, tmp_path)
    done = extract_lora(base, tuned, out=tmp_path / "adapter", rank=2, save=["all"])
    assert not any("expert" in name for name in done.saved)
    stored = sum(file.stat().st_size for file in (tmp_path / "adapter").iterdir())
    assert stored < sum(file.stat().st_size for file in tuned.iterdir())


@pytest.mark.filterwarnings("ignore:the series jumps")
@pytest.mark.parametrize("cut", [3, 5])
def test_two_fine_tunes_in_one_folder(tmp_path, cut):
    """Two runs from one base that share half of what they learn: the cosine at the seam is about 0.5."""
    generator = torch.Generator().manual_seed(0)
    base, common, *own = (torch.randn(40, 40, generator=generator) for _ in range(4))
    save_file({"w.weight": base}, tmp_path / "base.safetensors")
    for name in ("one", "spliced"):
        for step in range(1, 9):
            goal = common + own[1 if name == "spliced" and step > cut else 0]
            noise = torch.randn(40, 40, generator=generator)
            folder = tmp_path / name / f"checkpoint-{step * 100}"
            folder.mkdir(parents=True)
            weight = base + 0.01 * (step**0.5 * goal + 0.2 * noise)
            save_file({"w.weight": weight}, folder / "model.safetensors")
    notes = {
        name: diff(tmp_path / "base.safetensors", tmp_path / name, heads=False).notes for name in ("one", "spliced")
    }
    assert not [note for note in notes["one"] if "jumps" in note]
    assert [note.partition(": ")[0] for note in notes["spliced"] if "jumps" in note] == [
        f"the series jumps between {cut * 100} and {cut * 100 + 100}"
    ]


def test_files_of_any_name_are_told_apart_by_their_content(tmp_path):
    for n in (1, 2):
        torch.save({"w": torch.ones(2, n)}, tmp_path / f"step-{n}.th")
        (tmp_path / f"notes-{n}.txt").write_text("not weights")
    (tmp_path / "notes-3.txt").write_text("not weights")
    assert [step.path.name for step in find_steps(tmp_path)] == ["step-1.th", "step-2.th"]
    assert open_checkpoint(tmp_path / "step-2.th", allow_torch_load=True).tensors["w"].shape == (2, 2)


@quiet
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")  # and PEFT uses them
def test_the_config_for_a_training_adapts_what_was_advised(tmp_path):
    """PEFT takes the dense layer's `down_proj` for the experts of the next layer, unless it is told the parameter."""
    import peft

    base, tuned, kind = saved(MOE, tmp_path)
    advice = extract_lora(base, tuned, rank=2).advice
    assert "model.layers.0.mlp.down_proj" in advice.ranks
    adapted = peft.get_peft_model(loaded(kind, base), peft.LoraConfig(**advice.training_config()))
    ranks = {
        name.removeprefix("base_model.model."): module.r["default"]
        for name, module in adapted.named_modules()
        if "default" in getattr(module, "lora_A", {})
    }
    assert ranks == dict(advice.ranks)
