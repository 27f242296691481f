"""Every layout that is understood opens, reads what was written, and holds nothing in memory."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints import files

from rankrise.checkpoints import open_checkpoint


def same(checkpoint, state):
    return checkpoint.tensors.keys() == state.keys() and all(
        torch.equal(checkpoint.read(k), t) for k, t in state.items()
    )


def test_a_file_and_its_folder(tmp_path):
    state = files.weights()
    files.save(tmp_path, state)
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        checkpoint = open_checkpoint(path)
        assert (checkpoint.kind, checkpoint.config["model_type"]) == ("safetensors", "llama")
        assert same(checkpoint, state)


def test_shards_with_their_index(tmp_path):
    state = files.weights()
    files.save_shards(tmp_path, state)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        checkpoint = open_checkpoint(path)
        assert (checkpoint.kind, checkpoint.notes) == ("sharded", ())
        assert same(checkpoint, state)


def test_one_safetensors_of_any_name_and_several_without_an_index(tmp_path):
    files.save(tmp_path, files.weights(), name="weights.safetensors")
    assert open_checkpoint(tmp_path).kind == "safetensors"
    files.save(tmp_path, files.weights(), name="other.safetensors")
    with pytest.raises(ValueError, match=r"2 safetensors files and no index; name one"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]
)
def test_rows_in_every_format(tmp_path, dtype):
    tensor = torch.arange(24).reshape(6, 2, 2).to(dtype)
    save_file({"w": tensor, "scalar": tensor[0, 0, 0].clone(), "none": tensor[:0]}, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    assert torch.equal(checkpoint.read("w").view(torch.uint8), tensor.view(torch.uint8))
    assert torch.equal(checkpoint.read_rows("w", 2, 5).view(torch.uint8), tensor[2:5].view(torch.uint8))
    assert (checkpoint.read("scalar").shape, checkpoint.read("none").shape) == ((), (0, 2, 2))
    assert checkpoint.tensors["w"].num_bytes == tensor.numel() * dtype.itemsize
    with pytest.raises(ValueError, match="must lie in its shape"):
        checkpoint.read_rows("w", 5, 7)
    with pytest.raises(ValueError, match="no tensor 'v'"):
        checkpoint.read("v")


def test_a_peft_adapter_and_its_scale(tmp_path):
    state = files.save_peft(
        tmp_path, {"h.0.q": (6, 4), "h.1.q": (6, 4)}, rank=2, alpha=4, alpha_pattern={"h\\.1\\.q": 1}
    )
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.kind == "peft"
    delta = checkpoint.deltas["base_model.model.h.0.q.weight"]
    left, right = delta.factors(checkpoint.read)
    expected = 2 * state["base_model.model.h.0.q.lora_B.weight"] @ state["base_model.model.h.0.q.lora_A.weight"]
    torch.testing.assert_close(left @ right.T, expected.double(), rtol=1e-6, atol=1e-6)
    assert (delta.shape, delta.rank, checkpoint.deltas["base_model.model.h.1.q.weight"].scale) == ((6, 4), 2, 0.5)


@pytest.mark.parametrize(("options", "scale"), [({"use_rslora": True}, 4 / 2**0.5), ({"fan_in_fan_out": True}, 2.0)])
def test_options_of_peft_that_change_the_delta(tmp_path, options, scale):
    files.save_peft(tmp_path, {"c": (6, 4)}, **options)
    delta = open_checkpoint(tmp_path).deltas["base_model.model.c.weight"]
    assert delta.scale == pytest.approx(scale)
    assert delta.shape == ((4, 6) if "fan_in_fan_out" in options else (6, 4))


def test_an_mlx_adapter(tmp_path):
    state = files.save_mlx(tmp_path, {"layers.0.q": (6, 4)})
    checkpoint = open_checkpoint(tmp_path)
    left, right = checkpoint.deltas["layers.0.q.weight"].factors(checkpoint.read)
    expected = 10 * (state["layers.0.q.lora_a"] @ state["layers.0.q.lora_b"]).T
    torch.testing.assert_close(left @ right.T, expected.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"peft_type": "IA3"}, "must be LoRA; its config says 'IA3'"),
        ({"use_dora": True}, "its config has use_dora"),
        ({"lora_alpha": None}, "no lora_alpha"),
        ({"lora_alpha": float("nan")}, "nan is no number for lora_alpha"),
        ({"alpha_pattern": {"(a+)+b": 3}}, "must be a plain name"),
    ],
)
def test_adapters_that_add_something_else(tmp_path, options, words):
    files.save_peft(tmp_path, {"c": (6, 4)}, **options)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(tmp_path)


def test_an_adapter_without_its_config_and_half_an_adapter(tmp_path):
    state = files.save_peft(tmp_path, {"c": (6, 4)})
    state.pop("base_model.model.c.lora_B.weight")
    files.save(tmp_path, state, None, "adapter_model.safetensors")
    with pytest.raises(ValueError, match="both lora_A and lora_B"):
        open_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"only an adapter_config\.json knows"):
        open_checkpoint(tmp_path)


def test_a_trainer_folder_is_read_without_its_pickles(tmp_path, monkeypatch):
    state = files.weights()
    files.save(tmp_path, state)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a pickle was opened"))
    assert same(open_checkpoint(tmp_path, allow_torch_load=True), state)
    with pytest.raises(ValueError, match="never opened"):
        open_checkpoint(tmp_path / "training_args.bin", allow_torch_load=True)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
def test_torch_files_only_where_allowed(tmp_path, wrap):
    state = files.weights()
    path = tmp_path / "pytorch_model.bin"
    torch.save(wrap(state), path)
    for place in (path, tmp_path):
        with pytest.raises(ValueError, match="is a pickle, which can run code"):
            open_checkpoint(place)
        checkpoint = open_checkpoint(place, allow_torch_load=True)
        assert checkpoint.kind == "torch"
        assert same(checkpoint, state)
    assert torch.equal(checkpoint.read_rows("lm_head.weight", 3, 5), state["lm_head.weight"][3:5])


class Payload:
    def __reduce__(self):
        return (print, ("ran",))


def test_a_pickle_with_code_is_refused_by_name(tmp_path, capsys):
    torch.save({"model": files.weights(), "config": Payload()}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="must hold tensors and plain values only"):
        open_checkpoint(tmp_path / "x.pt", allow_torch_load=True)
    assert capsys.readouterr().out == ""


def test_quantised_where_exact(tmp_path):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(6, 4, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 2, generator=generator)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}}
    files.save(tmp_path / "block", {"h.0.weight": q, "h.0.weight_scale_inv": scale}, config)
    checkpoint = open_checkpoint(tmp_path / "block")
    expected = q.float() * scale.repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(checkpoint.read_weight("h.0.weight"), expected)
    assert torch.equal(checkpoint.read_weight("h.0.weight", 3, 5), expected[3:5])
    files.save(tmp_path / "int8", {"h.0.weight": torch.ones(6, 4, dtype=torch.int8), "h.0.SCB": torch.arange(6.0)})
    expected = (torch.arange(6.0) / 127)[:, None].expand(6, 4)
    torch.testing.assert_close(open_checkpoint(tmp_path / "int8").read_weight("h.0.weight"), expected)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"h.0.qweight": torch.ones(2, 2, dtype=torch.int32)}, "'h.0.qweight' is packed"),
        ({"h.0.weight": torch.ones(8, 1, dtype=torch.uint8), "h.0.weight.absmax": torch.ones(1)}, "absmax' is packed"),
        ({"h.0.weight": torch.ones(2, 2, dtype=torch.uint32), "h.0.scales": torch.ones(2, 1)}, "is torch.uint32"),
        ({"h.0.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "h.0.weight_scale": torch.ones(2, 2)}, "Scales must"),
    ],
)
def test_quantised_where_not_exact(tmp_path, state, words):
    files.save(tmp_path, state)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(tmp_path)


def test_a_pointer_of_git_lfs_is_called_one(tmp_path):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / "model.safetensors").write_text(text)
    with pytest.raises(ValueError, match=r"it is a pointer of Git LFS, .* Fetch them with `git lfs pull`"):
        open_checkpoint(tmp_path)


def test_what_is_not_a_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="it is empty"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"must be a folder, a \.safetensors file"):
        open_checkpoint(tmp_path / "notes.txt")
    files.save(tmp_path / "checkpoint-10", files.weights())
    with pytest.raises(ValueError, match=r"it holds checkpoint-10\. Name one checkpoint"):
        open_checkpoint(tmp_path)


def test_a_file_replaced_while_it_is_read(tmp_path):
    files.save(tmp_path, files.weights())
    checkpoint = open_checkpoint(tmp_path)
    files.save(tmp_path, {"other": torch.ones(3)})
    with pytest.raises(ValueError, match="it was replaced"):
        checkpoint.read("lm_head.weight")


def test_an_index_with_a_wrong_total_or_too_few_tensors_is_noted(tmp_path):
    files.save_shards(tmp_path, files.weights())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files.write_index(tmp_path, {k: v for k, v in index["weight_map"].items() if k != "lm_head.weight"}, total=5)
    notes = " ".join(open_checkpoint(tmp_path).notes)
    assert "1 tensors of the shards are not in the index" in notes
    assert "states 5 bytes" in notes
