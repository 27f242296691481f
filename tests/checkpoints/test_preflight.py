"""What can be compared is found from names and shapes; what would give a wrong answer is a problem."""

import pytest
import torch
from tests.checkpoints import files

from rankrise.checkpoints import match_checkpoints, open_checkpoint


def match(tmp_path, base, tuned, base_config=files.CONFIG, config=files.CONFIG):
    files.save(tmp_path / "base", base, base_config)
    files.save(tmp_path / "tuned", tuned, config)
    return match_checkpoints(open_checkpoint(tmp_path / "base"), open_checkpoint(tmp_path / "tuned"))


def test_same_names(tmp_path):
    state = files.weights()
    found = match(tmp_path, state, state)
    assert len(found.pairs) == len(state)
    assert found.problems == found.renamed == found.missing == found.extra == ()
    assert "matched    17 tensors" in found.text()
    found.check()


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "base_model.model.", "transformer.", "a.b."])
@pytest.mark.parametrize("side", ["base", "tuned"])
def test_prefixes_are_stripped_and_shown(tmp_path, prefix, side):
    """WeightWatcher reports raw W as the delta when a prefix differs, with no error."""
    state = {name.removeprefix("model."): t for name, t in files.weights().items()}
    other = {prefix + name: t for name, t in state.items()}
    found = match(tmp_path, *((other, state) if side == "base" else (state, other)))
    assert len(found.pairs) == len(state)
    assert not found.problems
    (line,) = found.renamed
    assert line == f"{side}: {prefix!r} stripped from {len(state)} names"


def test_a_prefix_that_the_head_does_not_have(tmp_path):
    state = files.weights()
    bare = {name.removeprefix("model."): t for name, t in state.items() if name != "lm_head.weight"}
    found = match(tmp_path, state, bare)
    assert len(found.pairs) == len(bare)
    assert found.missing == ("lm_head.weight",)
    assert not found.problems


def test_a_classifier_in_place_of_the_language_head(tmp_path):
    state = files.weights()
    other = {k: t for k, t in state.items() if k != "lm_head.weight"} | {"score.weight": torch.ones(2, 16)}
    found = match(tmp_path, state, other)
    assert (found.missing, found.extra, found.problems) == (("lm_head.weight",), ("score.weight",), ())


@pytest.mark.parametrize("has_it", ["base", "tuned"])
def test_a_tied_output_is_compared_with_the_embedding(tmp_path, has_it):
    state = files.weights()
    tied = {k: t for k, t in state.items() if k != "lm_head.weight"}
    config = files.CONFIG | {"tie_word_embeddings": True}
    pair = (state, tied) if has_it == "base" else (tied, state)
    found = match(tmp_path, *pair, config, config)
    assert found.tied == ("lm_head.weight",)
    (last,) = [pair for pair in found.pairs if pair.name == "lm_head.weight"]
    names = ("lm_head.weight", "model.embed_tokens.weight")
    assert (last.base_name, last.tuned_name) == (names if has_it == "base" else names[::-1])


def test_resized_embeddings_are_compared_in_the_rows_both_have(tmp_path):
    state = files.weights()
    other = state | {"model.embed_tokens.weight": torch.randn(48, 16), "lm_head.weight": torch.randn(48, 16)}
    found = match(tmp_path, state, other)
    assert not found.problems
    assert len(found.reshaped) == 2
    assert {p.shape for p in found.pairs if p.name in ("model.embed_tokens.weight", "lm_head.weight")} == {(40, 16)}


def test_a_shape_that_differs_is_an_error_before_any_work(tmp_path):
    """mergekit finds it after hours (mergekit#328)."""
    state = files.weights()
    found = match(tmp_path, state, state | {"model.layers.0.mlp.up_proj.weight": torch.ones(20, 16)})
    with pytest.raises(ValueError, match=r"up_proj\.weight' is \(24, 16\) in the base and \(20, 16\) in the tuned"):
        found.check()


def test_another_depth_is_another_architecture(tmp_path):
    state = files.weights()
    shorter = {k: t for k, t in state.items() if "layers.1." not in k}
    for pair in ((state, shorter), (shorter, state)):
        with pytest.raises(ValueError, match=r"7 tensors of layers are only in the"):
            match(tmp_path, *pair).check()


def test_another_architecture(tmp_path):
    found = match(tmp_path, files.weights(), {"conv.kernel": torch.ones(3, 3)}, config={"model_type": "resnet"})
    with pytest.raises(ValueError, match=r"no tensor of the base \(llama, .*\) is in the tuned \(resnet, .*\)"):
        found.check()


def test_another_number_of_heads(tmp_path):
    state = files.weights()
    with pytest.raises(ValueError, match="num_attention_heads is 4 in the base and 2"):
        match(tmp_path, state, state, config=files.CONFIG | {"num_attention_heads": 2}).check()


def test_integers_and_buffers_are_listed(tmp_path):
    state = files.weights() | {"model.step": torch.ones(3, dtype=torch.int64)}
    other = state | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    found = match(tmp_path, state, other)
    assert found.non_float == ("model.step",)
    assert found.buffers == ("model.layers.0.self_attn.rotary_emb.inv_freq",)
    assert not found.problems


def test_the_same_file(tmp_path):
    files.save(tmp_path, files.weights())
    one, other = open_checkpoint(tmp_path), open_checkpoint(tmp_path / "model.safetensors")
    assert match_checkpoints(one, other).same_file
    assert "both are the same file" in match_checkpoints(one, other).text()


def adapter(folder, *names, **options):
    files.save_peft(folder, {name: files.MODEL[f"{name}.weight"] for name in names}, **options)
    return open_checkpoint(folder)


Q, V = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"


def test_an_adapter_on_its_base_alone_and_against_another(tmp_path):
    base = open_checkpoint(files.save(tmp_path / "base", files.weights()))
    one, other = adapter(tmp_path / "one", Q, V), adapter(tmp_path / "other", Q, seed=1)
    on_base = match_checkpoints(base, one)
    assert [(p.name, p.base_name, p.tuned_name) for p in on_base.pairs] == [
        (f"{name}.weight", f"{name}.weight", None) for name in (Q, V)
    ]
    assert on_base.notes == ("15 tensors of the base are not touched by the adapter",)
    alone = match_checkpoints(None, one)
    assert [(p.name, p.base_name, p.delta.rank) for p in alone.pairs] == [(f"{n}.weight", None, 2) for n in (Q, V)]
    against = match_checkpoints(one, other)
    assert [(p.base_delta is None, p.delta is None) for p in against.pairs] == [(False, False), (False, True)]
    assert against.missing == (f"{V}.weight",)
    with pytest.raises(ValueError, match="The base must come first"):
        match_checkpoints(one, base).check()


def test_an_adapter_of_another_base(tmp_path):
    base = open_checkpoint(files.save(tmp_path / "base", files.weights()))
    files.save_peft(tmp_path / "a", {"model.layers.7.self_attn.q_proj": (16, 16)})
    with pytest.raises(ValueError, match=r"it has no 'model.layers.7"):
        match_checkpoints(base, open_checkpoint(tmp_path / "a")).check()
    files.save_peft(tmp_path / "b", {Q: (16, 12)})
    with pytest.raises(ValueError, match=r"is \(16, 16\) in the base and \(16, 12\) in the adapter"):
        match_checkpoints(base, open_checkpoint(tmp_path / "b")).check()


def test_a_base_is_needed_for_a_model(tmp_path):
    files.save(tmp_path, files.weights())
    with pytest.raises(ValueError, match="A base is needed"):
        match_checkpoints(None, open_checkpoint(tmp_path))


def test_modules_to_save_are_compared_as_they_are(tmp_path):
    base = open_checkpoint(files.save(tmp_path / "base", files.weights()))
    state = files.save_peft(tmp_path / "a", {Q: (16, 16)})
    state |= {"base_model.model.lm_head.weight": torch.ones(40, 16), "base_model.model.score.weight": torch.ones(2, 16)}
    files.save(tmp_path / "a", state, None, "adapter_model.safetensors")
    found = match_checkpoints(base, open_checkpoint(tmp_path / "a"))
    assert {(p.name, p.tuned_name, p.delta is None) for p in found.pairs} == {
        (f"{Q}.weight", None, False),
        ("lm_head.weight", "base_model.model.lm_head.weight", True),
    }
    assert (found.extra, found.problems) == (("score.weight",), ())


def test_adapters_of_two_models(tmp_path):
    one = adapter(tmp_path / "one", Q)
    files.save_peft(tmp_path / "other", {"bert.encoder.layer.0.query": (16, 16)})
    with pytest.raises(ValueError, match="Both must be adapters of one model"):
        match_checkpoints(one, open_checkpoint(tmp_path / "other")).check()
