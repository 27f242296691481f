"""LoRA files of kohya and diffusers: read with their alphas, resized in their own format."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rankrise.checkpoints import diff, open_checkpoint, resize_lora

DOWN, ATTENTION = "down_blocks.0.attentions.0.transformer_blocks.0", "attn1.to_q"
FORMS = {  # of the module DOWN.attn1.to_q of a unet: names of A, B and alpha
    "kohya": ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
              ("lora_down.weight", "lora_up.weight", "alpha")),
    "peft": (f"unet.{DOWN}.{ATTENTION}", ("lora_A.weight", "lora_B.weight", "alpha")),
    "lora": (f"unet.{DOWN}.{ATTENTION}", ("lora.down.weight", "lora.up.weight", "alpha")),
    "text": ("text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
             ("lora_linear_layer.down.weight", "lora_linear_layer.up.weight", "alpha")),
}  # fmt: skip


def pair(rank=8, out=20, inside=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rank, inside, generator=generator), torch.randn(out, rank, generator=generator)


def written(path, form, alpha=None, **more):
    stem, (down, up, named) = FORMS[form]
    a, b = pair()
    tensors = {f"{stem}.{down}": a, f"{stem}.{up}": b}
    if alpha is not None:
        tensors[f"{stem}.{named}"] = torch.tensor(float(alpha))
    save_file(tensors | more, path)
    return b.double() @ a.double()


def changed(path):
    """Each weight of an adapter to its whole change."""
    checkpoint = open_checkpoint(path)
    products = {name: delta.factors(checkpoint.read) for name, delta in checkpoint.deltas.items()}
    return {name: left @ right.mT for name, (left, right) in products.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("alpha", "scale"), [(4, 0.5), (16, 2.0), (None, 1.0)])
def test_a_file_is_read_with_its_alpha(tmp_path, form, alpha, scale):
    product = written(tmp_path / "a.safetensors", form, alpha)
    ((name, change),) = changed(tmp_path / "a.safetensors").items()
    assert name == f"{FORMS[form][0]}.weight"
    torch.testing.assert_close(change, scale * product)
    found = diff(tmp_path / "a.safetensors")
    (row,) = found.rows
    assert row.norm == pytest.approx(float(scale * product.norm()), rel=1e-6)
    assert ("state no alpha" in " ".join(found.notes)) == (alpha is None)


def test_names_of_old_attention_processors(tmp_path):
    a, b = pair()
    stem = f"unet.{DOWN}.attn1.processor."
    save_file({f"{stem}{n}_lora.{kind}.weight": t.clone() for n in ("to_q", "to_out") for kind, t in
               (("down", a), ("up", b))}, tmp_path / "a.safetensors")  # fmt: skip
    assert changed(tmp_path / "a.safetensors").keys() == {
        f"unet.{DOWN}.attn1.to_q.weight",
        f"unet.{DOWN}.attn1.to_out.0.weight",
    }


def test_alpha_in_the_metadata_of_diffusers(tmp_path):
    a, b = pair()
    names = [f"unet.{DOWN}.attn1.{n}" for n in ("to_q", "to_k")]
    config = {"unet.r": 8, "unet.lora_alpha": 4, "unet.alpha_pattern": {r"attn1\.to_k": 16}}
    tensors = {f"{n}.lora_{x}.weight": t.clone() for n in names for x, t in (("A", a), ("B", b))}
    save_file(tensors, tmp_path / "a.safetensors", {"lora_adapter_metadata": json.dumps(config)})
    found = changed(tmp_path / "a.safetensors")
    product = b.double() @ a.double()
    torch.testing.assert_close(found[f"{names[0]}.weight"], 0.5 * product)
    torch.testing.assert_close(found[f"{names[1]}.weight"], 2.0 * product)
    done = resize_lora(tmp_path / "a.safetensors", out=tmp_path / "b", rank=3)
    assert set(done.advice.ranks.values()) == {3}
    with safe_open(tmp_path / "b" / "a.safetensors", "pt") as file:
        config = json.loads(file.metadata()["lora_adapter_metadata"])
    assert (config["unet.r"], config["unet.lora_alpha"]) == (3, 3)


def truncated(matrix, rank):
    u, s, vh = torch.linalg.svd(matrix)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", [4, None])
def test_a_resized_file_keeps_its_format(tmp_path, form, alpha):
    product = written(tmp_path / "a.safetensors", form, alpha)
    before = changed(tmp_path / "a.safetensors")
    done = resize_lora(tmp_path / "a.safetensors", out=tmp_path / "b", rank=3)
    file = tmp_path / "b" / "a.safetensors"
    old, new = load_file(tmp_path / "a.safetensors"), load_file(file)
    assert old.keys() == new.keys()
    assert {t.shape[0] for n, t in new.items() if n.endswith(("down.weight", "lora_A.weight"))} == {3}
    assert [float(t) for n, t in new.items() if n.endswith("alpha")] == ([3.0] if alpha else [])
    ((name, change),) = changed(file).items()
    expected = truncated(before[name], 3)
    torch.testing.assert_close(change, expected, rtol=1e-5, atol=1e-4)
    error = float((expected - before[name]).norm() / before[name].norm())
    assert done.error == pytest.approx(error, rel=1e-5)
    assert product.norm() > 0


def test_metadata_of_kohya_follow_the_ranks(tmp_path):
    a, b = pair()
    tensors = {f"lora_unet_x_{i}.{n}": t.clone() for i in (0, 1) for n, t in
               (("lora_down.weight", a), ("lora_up.weight", b), ("alpha", torch.tensor(8.0)))}  # fmt: skip
    tensors["lora_unet_x_1.lora_up.weight"][:, 2:] = 0  # of rank 2
    kept = {"ss_network_dim": "8", "ss_network_alpha": "8.0", "ss_tag": "x", "sshs_model_hash": "0"}
    save_file(tensors, tmp_path / "a.safetensors", kept)
    resize_lora(tmp_path / "a.safetensors", out=tmp_path / "b", energy=0.999)
    with safe_open(tmp_path / "b" / "a.safetensors", "pt") as file:
        metadata = file.metadata()
        alphas = [float(file.get_tensor(f"lora_unet_x_{i}.alpha")) for i in (0, 1)]
    assert metadata == {
        "format": "pt", "ss_network_dim": "Dynamic", "ss_network_alpha": "Dynamic", "ss_tag": "x",
    }  # fmt: skip
    assert alphas == [8.0, 2.0]


def test_ranks_that_differ_are_stated_for_diffusers(tmp_path):
    a, b = pair()
    tensors = {f"unet.x.{i}.lora_{x}.weight": t.clone() for i in (0, 1) for x, t in (("A", a), ("B", b))}
    tensors["unet.x.1.lora_B.weight"][:, 2:] = 0
    save_file(tensors, tmp_path / "a.safetensors")
    before = changed(tmp_path / "a.safetensors")
    resize_lora(tmp_path / "a.safetensors", out=tmp_path / "b", energy=0.99999)
    after = changed(tmp_path / "b" / "a.safetensors")
    for name, change in before.items():
        torch.testing.assert_close(after[name], change, rtol=1e-4, atol=1e-4)
    with safe_open(tmp_path / "b" / "a.safetensors", "pt") as file:
        config = json.loads(file.metadata()["lora_adapter_metadata"])
    assert config["unet.rank_pattern"] == config["unet.alpha_pattern"] == {r"x\.0": 8, r"x\.1": 2}


def test_convolutions_are_read_and_resized(tmp_path):
    generator = torch.Generator().manual_seed(0)
    down, up = torch.randn(8, 5, 3, 3, generator=generator), torch.randn(12, 8, 1, 1, generator=generator)
    stem = "lora_unet_down_blocks_0_resnets_0_conv1"
    save_file({f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up, f"{stem}.alpha": torch.tensor(4.0)},
              tmp_path / "a.safetensors")  # fmt: skip
    whole = torch.nn.functional.conv2d(down.permute(1, 0, 2, 3), up).permute(1, 0, 2, 3) * 0.5  # as kohya merges it
    (change,) = changed(tmp_path / "a.safetensors").values()
    torch.testing.assert_close(change.reshape(whole.shape), whole.double(), rtol=1e-5, atol=1e-5)
    resize_lora(tmp_path / "a.safetensors", out=tmp_path / "b", rank=2)
    new = load_file(tmp_path / "b" / "a.safetensors")
    assert new[f"{stem}.lora_down.weight"].shape == (2, 5, 3, 3)
    assert new[f"{stem}.lora_up.weight"].shape == (12, 2, 1, 1)
    (small,) = changed(tmp_path / "b" / "a.safetensors").values()
    torch.testing.assert_close(small, truncated(change, 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prefix", ["", "unet."])
@pytest.mark.parametrize("form", ["kohya", "peft"])
def test_on_the_base(tmp_path, form, prefix):
    product = written(tmp_path / "a.safetensors", form, 4)
    base = {f"{prefix}{DOWN}.{ATTENTION}.weight": torch.eye(20, 30), f"{prefix}{DOWN}.{ATTENTION}.bias": torch.ones(20)}
    save_file(base, tmp_path / "base.safetensors")
    found = diff(tmp_path / "base.safetensors", tmp_path / "a.safetensors")
    (row,) = found.weights()
    assert row.relative == pytest.approx(float(0.5 * product.norm()) / 20**0.5, rel=1e-6)


@pytest.mark.parametrize(
    "name", ["dora_scale", "lora_mid.weight", "hada_w1_a", "lokr_w1", "diff", "lora_magnitude_vector"]
)
def test_more_than_plain_lora_is_refused(tmp_path, name):
    written(tmp_path / "a.safetensors", "kohya", 4, **{f"lora_unet_x.{name}": torch.ones(2, 2)})
    with pytest.raises(ValueError, match=rf"must be plain LoRA, .* it has 'lora_unet_x\.{name}'. Merge it"):
        open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize("names", [("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), ("lokr_w1", "lokr_w2_a"),
                                   ("oft_blocks",)])  # fmt: skip
def test_files_of_other_methods_are_not_taken_for_whole_models(tmp_path, names):
    """A LoHa file has no pair of LoRA at all."""
    tensors = {f"lora_unet_x.{name}": torch.ones(2, 2) for name in names} | {"lora_unet_x.alpha": torch.tensor(1.0)}
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=rf"must be plain LoRA, .* it has 'lora_unet_x\.{names[0]}'. Merge it"):
        open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"lora_unet_x.lora_down.weight": torch.ones(2, 3)}, "must have both factors; 'lora_unet_x' has only"),
        ({"lora_unet_x.lora_down.weight": torch.ones(2, 3), "lora_unet_x.lora_up.weight": torch.ones(3, 4)}, "a rank"),
        ({"lora_unet_x.lora_down.weight": torch.ones(2, 3), "lora_unet_x.lora_up.weight": torch.ones(3, 2),
          "lora_unet_x.alpha": torch.tensor(float("nan"))}, "one finite number"),
        ({"lora_unet_x.lora_down.weight": torch.ones(2, 3), "lora_unet_x.lora_up.weight": torch.ones(3, 2),
          "lora_unet_x.alpha": torch.ones(2)}, "one finite number"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path, tensors, message):
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=message):
        open_checkpoint(tmp_path / "a.safetensors")


def test_a_file_of_peft_without_its_config_is_still_refused(tmp_path):
    a, b = pair()
    save_file(
        {"base_model.model.up.lora_A.weight": a, "base_model.model.up.lora_B.weight": b}, tmp_path / "a.safetensors"
    )
    with pytest.raises(ValueError, match="whose scale only an adapter_config"):
        open_checkpoint(tmp_path / "a.safetensors")
