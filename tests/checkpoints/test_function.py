"""Ranks by function: cuts of the changes, their distance to the tuned model, and LoRA ranks chosen by it."""

import copy
import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.planted import build, planted_pair

import rankrise as rr
from rankrise.checkpoints import choose_ranks, extract_lora
from rankrise.checkpoints.function import read_inputs
from rankrise.checkpoints.lora import load_model


@pytest.fixture(scope="module")
def pair():
    """A Llama and a copy with changes of falling spectra in every linear weight, in float64, and token ids."""
    base = build("llama").double()
    tuned = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                m, n = weight.shape
                u, v = (torch.linalg.qr(torch.randn(k, 8, generator=generator).double()).Q for k in (m, n))
                weight += 0.5 * weight.norm() * (u * 0.5 ** torch.arange(8)) @ v.mT
    return base, tuned, torch.randint(64, (12, 16), generator=generator)


def brute_distance(base, tuned, ids, rank, only=""):
    """D(r) from dense truncations, one weight at a time, in a copy of the tuned model."""
    before, goal = dict(base.named_parameters()), tuned(input_ids=ids).logits

    def distance(r):
        model = copy.deepcopy(tuned)
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embed" not in name and only in name:
                u, s, vh = torch.linalg.svd(weight - before[name], full_matrices=False)
                weight.copy_(before[name] + (u[:, :r] * s[:r]) @ vh[:r])
        return (model(input_ids=ids).logits - goal).square().sum()

    with torch.no_grad():
        return float(distance(rank) / distance(0))


def test_distance_is_that_of_dense_truncations(pair):
    base, tuned, ids = pair
    found = rr.function_rank(base, tuned, {"input_ids": ids}, ranks=(1, 3), batch_size=5)
    by_rank = {point.rank: point for point in found.whole.points}
    assert list(by_rank) == [0, 1, 3, 8]
    assert by_rank[0].distance == 1
    for rank in (1, 3):
        assert by_rank[rank].distance == pytest.approx(brute_distance(base, tuned, ids, rank), rel=1e-9)
        assert by_rank[rank].energy_left == pytest.approx(
            sum(0.25**i for i in range(rank, 8)) / sum(0.25**i for i in range(8))
        )
    layer = next(part for part in found.parts if part.layer == 1)
    assert layer.points[1].distance == pytest.approx(brute_distance(base, tuned, ids, 1, only="layers.1."), rel=1e-9)
    assert {part.circuit for part in found.parts if part.circuit} == {"kq", "vo", "linear"}


def test_the_largest_rank_is_the_tuned_model_to_1e_8(pair):
    base, tuned, ids = pair
    before = copy.deepcopy(tuned.state_dict())
    network = rr.checkpoints.function._cuts.CutNetwork(base, tuned, split=True)
    network.cut({change.name: change.max_rank for change in network.changes})
    with torch.no_grad():
        assert (network.model(input_ids=ids).logits - tuned(input_ids=ids).logits).abs().max() < 1e-8
    assert all(torch.equal(before[name], tensor) for name, tensor in tuned.state_dict().items())


def test_parts_of_a_fused_weight_are_cut_apart():
    """GPT-2 keeps queries, keys and values in one parameter: cutting keys and queries leaves the values tuned."""
    base = build("gpt2").double()
    tuned = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = tuned.transformer.h[0].attn.c_attn.weight
        weight += 0.1 * torch.randn(weight.shape, generator=generator).double()
    network = rr.checkpoints.function._cuts.CutNetwork(base, tuned, split=True)
    assert sorted(change.circuit for change in network.changes) == ["kq", "kq", "vo"]
    network.cut({change.name: 0 for change in network.changes if change.circuit == "kq"})
    found, old = (m.transformer.h[0].attn.c_attn.weight for m in (network.model, base))
    torch.testing.assert_close(found[:, :192], old[:, :192], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[:, 192:], weight[:, 192:], rtol=0, atol=1e-12)


def test_random_directions_do_not_bring_the_function_back(pair):
    base, tuned, ids = pair
    found = rr.function_rank(base, tuned, {"input_ids": ids})
    assert all(point.control >= 0.8 for point in found.whole.points)
    assert found.whole.rank(0.05) <= found.whole.energy_rank(0.05)
    assert json.loads(json.dumps(found.to_json()))["parts"][0]["points"][0]["distance"] == 1


def test_loss_and_mask(pair):
    base, tuned, ids = pair
    mask = torch.ones_like(ids)
    mask[:, 10:] = 0
    labels = ids.roll(-1, dims=1)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    found = rr.function_rank(base, tuned, inputs, ranks=())
    with torch.no_grad():
        logits = tuned(input_ids=ids).logits[:, :10]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, :10].flatten())
    assert found.tuned_loss == pytest.approx(float(expected), rel=1e-9)


def test_ranks_go_where_the_function_needs_them(pair):
    """Within the distance, on other inputs too; closer than ranks by energy with as many parameters."""
    base, tuned, ids = pair
    found = choose_ranks(base, tuned, {"input_ids": ids}, 0.05)
    assert found.distance <= 0.05
    assert found.held_out < 0.1
    cost = {name: sum(weight.shape) for name, weight in tuned.named_parameters() if weight.ndim == 2}
    assert found.parameters == sum(rank * cost[f"{name}.weight"] for name, rank in found.ranks.items())
    network = rr.checkpoints.function._cuts.CutNetwork(base, tuned, split=False)
    squares = [change.sigma.square().tolist() for change in network.changes]
    by_energy = rr.checkpoints.allocate_ranks(squares, [c.cost for c in network.changes], found.parameters)
    distances = []
    for ranks in (
        found.ranks,
        dict(zip((c.name.removesuffix(".weight") for c in network.changes), by_energy.ranks, strict=True)),
    ):
        network.cut({c.name: ranks.get(c.name.removesuffix(".weight"), 0) for c in network.changes})
        with torch.no_grad():
            distances.append(float((network.model(input_ids=ids).logits - tuned(input_ids=ids).logits).norm()))
    assert distances[0] < distances[1]


def test_given_ranks_are_written(tmp_path):
    base, tuned, *_ = planted_pair(tmp_path, "llama", rank=4)
    name = "model.layers.0.mlp.up_proj"
    done = extract_lora(base, tuned, out=tmp_path / "a", ranks={name: 3})
    assert done.advice.ranks == {name: 3}
    with pytest.raises(ValueError, match=r"'model.layers.0.mlp.up' is none. Did you mean 'model.layers.0.mlp.up_proj'"):
        extract_lora(base, tuned, ranks={"model.layers.0.mlp.up": 3})
    with pytest.raises(ValueError, match="`ranks` must be positive whole numbers"):
        extract_lora(base, tuned, ranks={name: 0})


def test_mistakes_are_said(pair):
    base, tuned, ids = pair
    with pytest.raises(ValueError, match="they are one object"):
        rr.function_rank(tuned, tuned, ids)
    with pytest.raises(ValueError, match="none does"):
        rr.function_rank(base, copy.deepcopy(base), ids)
    with pytest.raises(ValueError, match="must have the same parameters"):
        rr.function_rank(build("gpt2"), tuned, ids)
    with pytest.raises(ValueError, match="one number of rows"):
        rr.function_rank(base, tuned, {"input_ids": ids, "labels": ids[:3]})
    with pytest.raises(ValueError, match="`error` must be between 0 and 1; got 2"):
        choose_ranks(base, tuned, ids, 2)
    with pytest.raises(ValueError, match="`ranks` must be whole numbers"):
        rr.function_rank(base, tuned, ids, ranks=(-1,))


def test_inputs_from_files(tmp_path):
    ids = torch.arange(12).reshape(3, 4)
    np.savez(tmp_path / "a.npz", input_ids=ids.numpy())
    save_file({"pixel_values": torch.zeros(3, 2)}, tmp_path / "a.safetensors")
    found = read_inputs(tmp_path / "a.npz", tmp_path, most=2)
    assert found["labels"].tolist() == [[1, 2, 3, -100], [5, 6, 7, -100]]
    assert set(read_inputs(tmp_path / "a.safetensors", tmp_path)) == {"pixel_values"}
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(ValueError, match="Text needs the model's tokenizer"):
        read_inputs(tmp_path / "a.txt", tmp_path)
    np.savez(tmp_path / "b.npz", a=np.zeros(2), b=np.zeros(3))
    with pytest.raises(ValueError, match="one number of inputs"):
        read_inputs(tmp_path / "b.npz", tmp_path)


def test_inputs_that_are_none_are_refused_in_a_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "latin.txt").write_bytes(b"gr\xfc\xdfe")
    np.savez(tmp_path / "words.npz", input_ids=np.array(["a"]))
    for name in ("pipe.npz", "pipe.txt"):
        with pytest.raises(ValueError, match="must be a regular file"):
            read_inputs(tmp_path / name, tmp_path)
    with pytest.raises(ValueError, match=r"text in UTF-8 of at most 10000000 bytes; latin\.txt is not"):
        read_inputs(tmp_path / "latin.txt", tmp_path)
    with pytest.raises(ValueError, match=r"`--data` must be an \.npz with numeric arrays input_ids; words\.npz"):
        read_inputs(tmp_path / "words.npz", tmp_path)
    (tmp_path / "some.txt").write_text("some text")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="has none that transformers can load"):
        read_inputs(tmp_path / "some.txt", tmp_path)


def test_code_of_a_tokenizer_is_not_run(tmp_path):
    custom = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(custom))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')")
    (tmp_path / "some.txt").write_text("some text")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="has none that transformers can load"):
        read_inputs(tmp_path / "some.txt", tmp_path)
    with pytest.raises(ValueError, match=r"needs a config\.json that transformers can read"):
        load_model(tmp_path, tmp_path)
    assert not (tmp_path / "was_run").exists()


def test_models_that_are_run_are_whole_and_stored_as_safetensors(tmp_path):
    config = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 10}
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")

    def loaded(*architectures):
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": architectures}))
        return load_model(tmp_path, tmp_path)

    with pytest.raises(ValueError, match="must be stored as safetensors"):
        loaded("GPT2LMHeadModel")
    (tmp_path / "model.safetensors").symlink_to("/etc/hosts")
    with pytest.raises(ValueError, match="must not lead out of its folder"):
        loaded("GPT2LMHeadModel")
    for name in ("GPT2Config", "pipeline", "__name__", 3):
        with pytest.raises(ValueError, match="needs an architecture that transformers knows"):
            loaded(name)
