"""What an extraction must not do in silence: lose what only the tuned model has, miss its target, fill the memory."""

import json
import os

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.planted import plant, planted_pair

from rankrise.checkpoints import decompose_delta, diff, extract_lora, resize_lora
from rankrise.checkpoints.files._checkpoint import Checkpoint
from rankrise.checkpoints.files._safetensors import TensorInfo, stream_tensors
from rankrise.checkpoints.lora import _work as work_module
from rankrise.checkpoints.lora._verify import _check_outputs, check_verifiable, compare_logits
from rankrise.checkpoints.match._modules import find_modules


def files(folder, base, tuned):
    folder.mkdir(exist_ok=True)
    for name, tensors in (("base", base), ("tuned", tuned)):
        save_file(tensors, folder / f"{name}.safetensors")
    return folder / "base.safetensors", folder / "tuned.safetensors"


def weights(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def changed(weight, rank=2, size=0.1):
    return plant(weight, rank, size, torch.Generator().manual_seed(0))


def kinds(shapes):
    tensors = {name: TensorInfo(shape, torch.float32, 0) for name, shape in shapes.items()}
    return {m.name: m.kind for m in find_modules(Checkpoint("x", "safetensors", None, tensors, {})).values()
            if m.parameter == "weight"}  # fmt: skip


def test_what_only_the_tuned_model_has_is_listed(tmp_path):
    embedding, up = weights(30, 8), weights(8, 8, seed=1)
    base = {"model.embed_tokens.weight": embedding, "model.up.weight": up}
    tuned = {"model.embed_tokens.weight": torch.cat([embedding, weights(2, 8)]), "model.up.weight": changed(up),
             "score.weight": weights(3, 8)}  # fmt: skip
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", rank=2)
    found = {(item.name, item.kind, item.num_parameters, item.module) for item in done.not_carried}
    assert found == {
        ("score.weight", "only in the tuned", 24, "score"),
        ("model.embed_tokens.weight", "new rows", 16, ""),
    }
    report = json.loads((tmp_path / "a" / "rankrise.json").read_text())
    assert report["not_carried"] == [item.name for item in done.not_carried]
    json.dumps(done.to_json(), allow_nan=False)
    saved = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "b", rank=2, save=["score"])
    assert [item.kind for item in saved.not_carried] == ["new rows"]
    tensors = load_file(tmp_path / "b" / "adapter_model.safetensors")
    assert torch.equal(tensors["base_model.model.score.weight"], tuned["score.weight"])


@pytest.mark.parametrize(
    "name", ["emb", "tok_emb", "token_emb", "pos_emb", "token_embedding_table", "input_embeds_layer", "wte",
             "model.embed_tokens", "model.embed_tokens.0", "bert.embeddings.word_embeddings", "tok_embeddings"]
)  # fmt: skip
def test_embeddings_by_any_name(name):
    assert kinds({f"{name}.weight": (40, 16)}) == {name: "embedding"}


@pytest.mark.parametrize(
    ("name", "has_bias"),
    [("embed_out", False), ("unembed", False), ("time_emb_proj", False), ("time_embed.0", True), ("pos_emb", True),
     ("encoder.embedding_hidden_mapping_in", False), ("member", True), ("ensemble.0", False), ("remember", False)],
)  # fmt: skip
def test_layers_beside_embeddings_are_linear(name, has_bias):
    assert kinds({f"{name}.weight": (40, 16)} | ({f"{name}.bias": (40,)} if has_bias else {})) == {name: "linear"}


@pytest.mark.parametrize("conv1d", [False, True])
def test_a_block_tells_how_its_square_weights_are_stored(conv1d):
    """A square weight with a name of its own: the other layers of its block have the same class."""
    wide = (16, 48) if conv1d else (48, 16)
    shapes = {"h.0.attn.c_attn.weight": wide, "h.0.attn.c_attn.bias": (48,), "h.0.cross.q_attn.weight": (16, 16),
              "h.0.cross.q_attn.bias": (16,)}  # fmt: skip
    assert kinds(shapes)["h.0.cross.q_attn"] == ("conv1d" if conv1d else "linear")


def test_embedding_of_a_plain_model_is_not_written_as_linear(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_emb, self.fc = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 16)

        def forward(self, ids):
            return self.fc(self.tok_emb(ids))

    model = Model()
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tuned = {name: changed(t) if t.ndim == 2 else t for name, t in base.items()}
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", energy=0.9999, save=["tok_emb"])
    assert set(done.advice.ranks) == {"fc"}
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path / "a"))
    truth = Model()
    truth.load_state_dict(tuned)
    ids = torch.arange(40)
    assert (adapted(ids) - truth(ids)).abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(200, 160), (130, 400), (60, 50)])
@pytest.mark.parametrize("short", [0, 1, 5, 9])
def test_every_direction_can_be_reached(shape, short):
    delta, rank = weights(*shape), min(shape) - short
    found = decompose_delta(delta, max_rank=rank)
    assert found.max_rank == rank
    sigma = torch.linalg.svdvals(delta.double())
    assert found.error(rank) == pytest.approx(float(sigma[rank:].norm() / sigma.norm()), rel=1e-3, abs=1e-6)


def test_rank_and_budget_reach_the_whole_change(tmp_path):
    base = {"a.weight": weights(200, 160)}
    pair = files(tmp_path, base, {"a.weight": base["a.weight"] + 0.1 * weights(200, 160, seed=1)})
    for rule in ({"rank": 160}, {"budget": 10**9}):
        done = extract_lora(*pair, **rule)
        assert done.advice.ranks == {"a": 160}
        assert done.error < 1e-5


def test_empty_and_single_numbers_are_no_trouble(tmp_path):
    base = {"a.weight": weights(20, 16), "void.weight": torch.zeros(0, 4), "one.scale": torch.tensor(1.0)}
    tuned = base | {"a.weight": changed(base["a.weight"]), "one.scale": torch.tensor(2.0)}
    done = extract_lora(*files(tmp_path, base, tuned), out=tmp_path / "a", rank=2, save=["all"])
    assert done.saved == ("one",)
    assert done.unchanged == ("void.weight",)
    saved = load_file(tmp_path / "a" / "adapter_model.safetensors")["base_model.model.one.scale"]
    assert (saved.shape, float(saved)) == ((), 2.0)


def test_what_verify_cannot_do_is_said_before_any_work(tmp_path, monkeypatch):
    base, tuned, *_ = planted_pair(tmp_path, "gpt2")
    monkeypatch.setattr(work_module, "decompose_delta", lambda *_, **__: pytest.fail("work was done"))
    with pytest.raises(ValueError, match="must be ids from 0 to 63"):
        extract_lora(base, tuned, out=tmp_path / "a", verify=True, tokens=[64])
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"architectures": ["Nothing"]}))
    with pytest.raises(ValueError, match="an architecture that transformers knows"):
        extract_lora(base, tuned, out=tmp_path / "a", verify=True)
    (base / "config.json").unlink()
    with pytest.raises(ValueError, match=r"needs a config\.json beside the base"):
        extract_lora(base, tuned, out=tmp_path / "a", verify=True)
    assert not (tmp_path / "a").exists()


def test_verify_needs_tokens_or_images(tmp_path):
    config = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="of tokens or of images; WhisperForConditionalGeneration takes input_f"):
        check_verifiable(tmp_path, tmp_path)


TINY = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = TINY | {"vocab_size": 32, "max_position_embeddings": 24, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("model_type", "config", "words"),
    [
        ("clip", {"text_config": TEXT, "vision_config": TINY | {"image_size": 8, "patch_size": 4}, "projection_dim": 8},
         "2 × 12 random tokens and 2 random images"),
        ("roberta", TEXT | {"type_vocab_size": 1}, "2 × 12 random tokens"),
    ],
)  # fmt: skip
def test_verify_gives_a_model_what_it_needs(tmp_path, model_type, config, words):
    """CLIP needs tokens and images; RoBERTa's positions begin behind that of the padding, so it has fewer of them."""
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(model_type, **config))
    model.save_pretrained(tmp_path / "base")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and ("q_proj" in name or "query" in name):
                weight += weight[:, :1] @ weight[:1]
    model.save_pretrained(tmp_path / "tuned")
    done = extract_lora(tmp_path / "base", tmp_path / "tuned", out=tmp_path / "a", rank=1, verify=True)
    assert done.logits.inputs == words
    assert done.logits.relative_error < 1e-3


def test_a_model_that_does_not_run_on_tokens_alone_is_refused_in_a_sentence(tmp_path, monkeypatch):
    base, tuned, model, *_ = planted_pair(tmp_path, "gpt2")

    def forward(self, input_ids=None, more=None):
        return more.shape

    monkeypatch.setattr(type(model), "forward", forward)
    with pytest.raises(ValueError, match=r"tokens or images alone; GPT2LMHeadModel says .*no attribute 'shape'"):
        extract_lora(base, tuned, out=tmp_path / "a", rank=2, verify=True)
    assert not (tmp_path / "a").exists()


def test_a_verification_that_fails_leaves_nothing(tmp_path, monkeypatch):
    base, tuned, *_ = planted_pair(tmp_path, "gpt2")
    before = sorted(p.name for p in tmp_path.iterdir())

    def fail(*_):
        raise ValueError("no logits")

    monkeypatch.setattr("rankrise.checkpoints.lora._extract.compare_logits", fail)
    with pytest.raises(ValueError, match="no logits"):
        extract_lora(base, tuned, out=tmp_path / "a", rank=2, verify=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.filterwarnings("ignore:Found missing adapter keys", "ignore:The following (rank|alpha)_pattern")
@pytest.mark.parametrize("change", [{"lora_alpha": 5, "alpha_pattern": {}}, {"target_modules": ["c_proj"]}])
def test_an_adapter_that_peft_does_not_use_as_written_fails_verification(tmp_path, monkeypatch, change):
    base, tuned, *_ = planted_pair(tmp_path, "gpt2")
    before = sorted(p.name for p in tmp_path.iterdir())
    check = compare_logits

    def tampered(one, other, folder, *rest):
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | change))
        return check(one, other, folder, *rest)

    monkeypatch.setattr("rankrise.checkpoints.lora._extract.compare_logits", tampered)
    with pytest.raises(ValueError, match="PEFT must make of the adapter what its files say; 'transformer"):
        extract_lora(base, tuned, out=tmp_path / "a", rank=2, verify=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_outputs_that_contradict_the_merged_weights_are_refused():
    outputs = torch.ones(2, 3)
    _check_outputs(outputs, outputs * (1 + 1e-5), outputs)
    with pytest.raises(ValueError, match="outputs of base"):
        _check_outputs(outputs, outputs * 1.01, outputs)


def test_resize_refuses_a_config_before_it_writes(tmp_path):
    base = {"a.weight": weights(20, 16)}
    extract_lora(*files(tmp_path, base, {"a.weight": changed(base["a.weight"])}), out=tmp_path / "a", rank=2)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config | {"modules_to_save": 5}))
    with pytest.raises(ValueError, match="`modules_to_save` of the adapter's config must be a list of names; got 5"):
        resize_lora(tmp_path / "a", out=tmp_path / "b", rank=1)
    assert not (tmp_path / "b").exists()


def test_factors_that_were_not_held_are_found_again(tmp_path, monkeypatch):
    base = {f"h.{n}.up.weight": weights(96, 80, seed=n) for n in range(3)}
    pair = files(tmp_path, base, {name: w + 0.1 * weights(96, 80, seed=9) for name, w in base.items()})
    held = {rule: extract_lora(*pair, out=tmp_path / f"held-{rule}", **{rule: value})
            for rule, value in (("energy", 0.5), ("budget", 9000), ("error", 0.5))}  # fmt: skip
    monkeypatch.setattr(work_module, "_HELD_BYTES", 30_000)
    for rule, value in (("energy", 0.5), ("budget", 9000), ("error", 0.5)):
        done = extract_lora(*pair, out=tmp_path / f"again-{rule}", **{rule: value})
        assert done.advice.ranks == held[rule].advice.ranks
        assert done.errors == pytest.approx(held[rule].errors, rel=1e-5)
    advice = extract_lora(*pair, energy=0.5)
    assert advice.advice.ranks == held["energy"].advice.ranks


def test_memory_does_not_grow_with_the_number_of_modules(tmp_path, monkeypatch):
    """Counted and not measured: how many bytes of factors wait, and how many changes are held at once."""
    import gc

    from rankrise.checkpoints.delta._change import Delta

    base = {f"h.{n}.up.weight": weights(64, 64, seed=n) for n in range(6)}
    pair = files(tmp_path, base, {name: w + 0.1 * weights(64, 64, seed=9) for name, w in base.items()})
    monkeypatch.setattr(work_module, "_HELD_BYTES", 40_000)
    most, blocks = 0, Delta.blocks

    def counted(self):
        nonlocal most
        yield from blocks(self)
        held = [d for d in gc.get_objects() if type(d) is Delta and d._whole is not None]
        most = max(most, len(held))

    waiting, advise = [], work_module.Work.advise

    def counting(self, found):
        waiting.append(sum(f.decomposition.num_bytes for f in found.values()))
        return advise(self, found)

    monkeypatch.setattr(Delta, "blocks", counted)
    monkeypatch.setattr(work_module.Work, "advise", counting)
    extract_lora(*pair, out=tmp_path / "a", energy=0.9)
    assert 1 <= most <= 2  # one that is worked on, one that goes
    assert 0 < waiting[0] <= 40_000


def test_more_parameters_than_the_weight_are_said(tmp_path):
    base = {"a.weight": weights(64, 48), "b.weight": weights(64, 48, seed=2)}
    tuned = {"a.weight": base["a.weight"] + 0.1 * weights(64, 48, seed=1), "b.weight": changed(base["b.weight"])}
    done = extract_lora(*files(tmp_path, base, tuned), energy=0.95)
    a, b = done.advice.modules
    assert a.rank * (64 + 48) >= 64 * 48
    assert "more parameters than the weight: save it whole" in a.note
    assert b.note == ""
    only = extract_lora(*files(tmp_path, {"a.weight": base["a.weight"]}, {"a.weight": tuned["a.weight"]}), energy=0.95)
    assert "are no fewer than the 3,072 of the weights they change" in only.notes[0]


def test_missed_targets_are_said(tmp_path):
    base = {"a.weight": weights(160, 160)}
    pair = files(tmp_path, base, {"a.weight": base["a.weight"] + 0.1 * weights(160, 160, seed=1)})
    (capped,) = extract_lora(*pair, energy=0.99, snap=True).advice.modules
    assert capped.rank == 64
    assert f"capped at 64: keeps {100 * (1 - capped.error**2):.0f}%" in capped.note
    narrow = extract_lora(*pair, out=tmp_path / "a", error=1e-4, dtype=torch.bfloat16)
    assert narrow.error > 1e-3
    assert narrow.notes[0].endswith("and not 0.0001: bfloat16 rounds the factors")
    assert not extract_lora(*pair, out=tmp_path / "b", error=0.5).notes


def test_an_option_that_leaves_nothing_to_write_is_named(tmp_path):
    base = {"a.weight": weights(40, 30)}
    pair = files(tmp_path, base, {"a.weight": changed(base["a.weight"])})
    for rule, message in (
        ({"budget": 3}, r"`budget` must pay for 70 parameters, the cheapest rank; got 3\."),
        ({"budget": 100, "snap": True}, r"`budget` must pay for 560 parameters"),
        ({"error": 1.0}, r"`error` must ask for at least one direction; 1 asks for none\."),
    ):
        with pytest.raises(ValueError, match=message):
            extract_lora(*pair, out=tmp_path / "a", **rule)
    noisy = files(tmp_path / "n", base, {"a.weight": base["a.weight"] + 1e-8})
    with pytest.raises(ValueError, match="directions above the rounding floor; there are none"):
        extract_lora(*noisy, out=tmp_path / "a", floor=True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("device", ["foo", "meta", "cuda:97"])
def test_a_device_that_is_not_there(tmp_path, device):
    with pytest.raises(ValueError, match=f"`device` must be there; got '{device}' and no .* device was found"):
        extract_lora("nowhere", "nowhere", device=device)


def test_leftover_of_a_process_with_our_number_is_removed(tmp_path):
    base = {"a.weight": weights(20, 16)}
    pair = files(tmp_path / "pair", base, {"a.weight": changed(base["a.weight"])})
    leftover = tmp_path / f".tmp-a-{os.getpid()}"
    leftover.mkdir()
    (leftover / "half").write_text("")
    extract_lora(*pair, out=tmp_path / "a", rank=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "pair"]


def test_floor_of_a_large_weight_is_a_lower_bound(tmp_path, monkeypatch):
    base = {"a.weight": weights(256, 200)}
    pair = files(tmp_path, base, {"a.weight": changed(base["a.weight"], rank=70, size=0.3)})
    monkeypatch.setattr("rankrise.checkpoints.delta._spectra._SPECTRUM_WORK", {"cpu": 1000})
    (module,) = extract_lora(*pair, floor=True).advice.modules
    assert module.rank == 70  # more than the directions that are looked for first
    assert "a lower bound" in module.note


def test_no_floor_where_there_are_scales(tmp_path):
    stored = weights(64, 64).to(torch.float8_e4m3fn)
    base, tuned = ({"a.weight": stored, "a.weight_scale": torch.tensor([scale])} for scale in (1.0, 1.1))
    with pytest.raises(ValueError, match=r"`floor` must have weights on a known grid; 'a\.weight' is stored with"):
        extract_lora(*files(tmp_path, base, tuned), floor=True)


def test_streamed_file_is_what_safetensors_reads(tmp_path):
    tensors = {"b": weights(3, 5).bfloat16(), "a": torch.tensor(2.0, dtype=torch.float64), "c": weights(4, 2),
               "none": torch.zeros(0, 3), "é": torch.arange(3, dtype=torch.uint8)}  # fmt: skip
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    stream_tensors(tmp_path / "t.safetensors", layout, tensors.items(), "adapter_model")
    found = load_file(tmp_path / "t.safetensors")
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], t) for name, t in tensors.items())
    with pytest.raises(ValueError, match="Every tensor of the layout must be written; 'a' is not"):
        stream_tensors(tmp_path / "u.safetensors", layout, [], "adapter_model")
    with pytest.raises(ValueError, match="must be as the layout says; 'c' is"):
        stream_tensors(tmp_path / "u.safetensors", layout, [("c", weights(2, 4))], "adapter_model")
    assert not (tmp_path / "u.safetensors").exists()


def test_what_the_floor_leaves_is_said(tmp_path):
    weight, spikes = weights(256, 256), changed(weights(256, 256), rank=4, size=0.3) - weights(256, 256)
    strong = {"a.weight": weight + spikes, "b.weight": weight + spikes}
    dense = weight + spikes + 0.1 * weights(256, 256, seed=1)
    base = {"a.weight": weight, "b.weight": weight.clone()}
    (a, b) = extract_lora(*files(tmp_path, base, strong | {"b.weight": dense}), floor=True).advice.modules
    assert (a.rank, b.rank) == (4, 256)  # spikes over a dense change: all of it is there
    assert b.note.startswith("a dense change, or one rounded at every step")
    weak = {"a.weight": (weight + 0.01 * spikes).bfloat16(), "b.weight": (weight + spikes).bfloat16()}
    done = extract_lora(*files(tmp_path, base, weak), floor=True)
    assert done.advice.ranks == {"a": 4, "b": 4}
    assert done.errors["a"] > 0.3
    assert done.notes[0].startswith(
        "the directions above the floor leave an error above 0.1 in 1 of 2 modules, most in a (0."
    )


def test_unrelated_weights_are_asked_about(tmp_path):
    pair = files(tmp_path, {"a.weight": weights(64, 48)}, {"a.weight": weights(64, 48, seed=1)})
    done = extract_lora(*pair, rank=2)
    assert done.notes[0].startswith("the matrices changed by 14")
    assert done.notes[0].endswith("of their size: is this a fine-tune of this base?")
    assert done.notes[0] in diff(*pair).notes
    assert not extract_lora(*files(tmp_path, {"a.weight": weights(64, 48)}, {"a.weight": changed(weights(64, 48))}),
                            rank=2).notes  # fmt: skip


def test_logits_of_an_encoder_with_a_decoder(tmp_path):
    base, tuned, *_ = planted_pair(tmp_path, "t5", skip=("lm_head",))
    done = extract_lora(base, tuned, out=tmp_path / "a", floor=True, verify=True)
    assert done.logits.relative_error < 1e-3
    assert done.logits.inputs == "2 × 64 random tokens"


def test_a_change_beyond_float32_is_not_called_infinite(tmp_path):
    pair = files(tmp_path, {"a.weight": torch.full((8, 8), -3e38)}, {"a.weight": torch.full((8, 8), 3e38)})
    with pytest.raises(ValueError, match=r"'a\.weight' holds NaN or infinity, or changed by more than 3e38\. `rank"):
        extract_lora(*pair)


def test_a_place_that_is_no_disk_is_not_called_full(tmp_path):
    base, tuned = tmp_path / "base.safetensors", tmp_path / "tuned.safetensors"
    for path, size in ((base, 1.0), (tuned, 2.0)):
        save_file({"h.0.weight": size * torch.eye(4)}, path)
    with pytest.raises((OSError, ValueError), match="/proc") as caught:
        extract_lora(base, tuned, out="/proc/x", rank=1)
    assert "space" not in str(caught.value)
