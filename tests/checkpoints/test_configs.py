"""Configs say whether two checkpoints are of one model, also where their shapes agree."""

import pytest
import torch
from tests.checkpoints import files

from rankrise.checkpoints import diff, match_checkpoints, open_checkpoint
from rankrise.checkpoints.match import _alignment
from rankrise.checkpoints.match._pairs import compare_configs

SEES = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_attention_heads": 4},
        "vision_config": {"model_type": "siglip", "num_attention_heads": 2}}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "tuned", "words"),
    [
        ({"model_type": "llama"}, {"model_type": "qwen2"}, "model_type is llama in the base and qwen2"),
        (SEES, SEES | {"text_config": {"num_attention_heads": 8}}, "num_attention_heads is 4 in the base and 8"),
        (SEES, SEES | {"vision_config": {"num_attention_heads": 1}}, r"vision_config\.num_attention_heads is 2"),
        (SEES, SEES | {"model_type": "llava"}, "model_type is gemma3 in the base and llava"),
        (SEES, {"model_type": "gemma3_text", "num_attention_heads": 8}, "num_attention_heads is 4 in the base and 8"),
    ],
)
def test_another_model(tmp_path, base, tuned, words):
    state = files.weights()
    one, other = (
        open_checkpoint(files.save(tmp_path / side, state, config))
        for side, config in (("base", base), ("tuned", tuned))
    )
    with pytest.raises(ValueError, match=words):
        match_checkpoints(one, other).check()


@pytest.mark.parametrize(
    ("base", "tuned"),
    [
        (SEES, SEES),
        (SEES, {"model_type": "gemma3_text", "num_attention_heads": 4}),
        ({"head_dim": None}, {"head_dim": 64}),
        ({"num_experts": float("nan")}, {"num_experts": float("nan")}),
        ({"transformers_version": "4", "torch_dtype": "float32"}, {"transformers_version": "5", "dtype": "bfloat16"}),
        ({"architectures": ["A"], "pad_token_id": 1}, {"architectures": ["B"], "pad_token_id": 2, "id2label": {}}),
        (None, {"model_type": "llama"}),
        ({"text_config": 3, "vision_config": []}, {"text_config": "x", "vision_config": {}}),
    ],
)
def test_the_same_model(base, tuned):
    assert compare_configs(base, tuned) == ([], [])
    assert compare_configs(tuned, base) == ([], [])


def test_what_changes_the_function_is_noted(tmp_path):
    state = files.weights()
    files.save(tmp_path / "base", state, files.CONFIG | {"rope_theta": 1e4, "hidden_act": "silu"})
    files.save(tmp_path / "tuned", state, files.CONFIG | {"rope_theta": 1e6, "hidden_act": "gelu"})
    notes = diff(tmp_path / "base", tmp_path / "tuned", heads=False).notes
    assert notes == (
        "the configs differ: rope_theta is 10000.0 in the base and 1000000.0 in the tuned, "
        "hidden_act is silu in the base and gelu in the tuned",
    )


@pytest.mark.parametrize(("size", "noted"), [(0.5, False), (None, True)])
def test_unrelated_weights_of_the_same_shapes_are_noted(tmp_path, size, noted):
    base = files.weights()
    other = files.weights(seed=5) if size is None else files.tuned(base, size=size)
    files.save(tmp_path / "base", base)
    files.save(tmp_path / "tuned", other)
    for summary in (False, True):
        notes = diff(tmp_path / "base", tmp_path / "tuned", heads=False, summary=summary).notes
        assert [("is this a fine-tune of this base?" in note) for note in notes] == [True] * noted


@pytest.mark.parametrize("sides", [("base", "tuned"), ("tuned", "base")])
def test_a_prefix_that_two_parts_could_have_is_not_guessed(tmp_path, sides):
    parts = {"encoder.a": torch.ones(2, 2), "decoder.a": torch.zeros(2, 2)}
    for side, state in zip(sides, (parts, {"a": torch.ones(2, 2)}), strict=True):
        files.save(tmp_path / side, state, None)
    found = match_checkpoints(open_checkpoint(tmp_path / "base"), open_checkpoint(tmp_path / "tuned"))
    with pytest.raises(ValueError, match=r"Names must tell which .*'(en|de)coder\.a'.*, or .*'(en|de)coder\.a'"):
        found.check()


def test_names_that_agree_as_they_are_need_no_prefix(tmp_path):
    base, tuned = {"m.a": torch.ones(2, 2)}, {"m.a": torch.ones(2, 2), "a": torch.ones(2, 2)}
    files.save(tmp_path / "base", base, None)
    files.save(tmp_path / "tuned", tuned, None)
    found = match_checkpoints(open_checkpoint(tmp_path / "base"), open_checkpoint(tmp_path / "tuned"))
    assert [(pair.base_name, pair.tuned_name) for pair in found.pairs] == [("m.a", "m.a")]
    assert found.problems == ()


def test_a_prefix_that_only_one_part_can_have(tmp_path):
    parts = {"encoder.a": torch.ones(2, 2), "encoder.b": torch.ones(2), "decoder.a": torch.zeros(2, 2)}
    files.save(tmp_path / "base", parts, None)
    files.save(tmp_path / "tuned", {"a": torch.ones(2, 2), "b": torch.ones(2)}, None)
    found = match_checkpoints(open_checkpoint(tmp_path / "base"), open_checkpoint(tmp_path / "tuned"))
    assert not found.problems
    assert [pair.base_name for pair in found.pairs] == ["encoder.a", "encoder.b"]


def test_schemes_that_rename_nothing_are_not_tried(monkeypatch):
    tried, best = [], _alignment._best

    def spy(*names):
        tried.append(names)
        return best(*names)

    monkeypatch.setattr(_alignment, "_best", spy)
    found = _alignment.align(["stack.0.x.w", "y"], ["other.0.z.v", "y"])
    assert (len(tried), set(found.base) & set(found.tuned)) == (1, {"y"})
    _alignment.align(["vit.encoder.layer.0.attention.query.weight"], ["y"])
    assert len(tried) > 2


def test_tensors_without_a_partner_are_not_searched_for(tmp_path):
    """A mixture of experts against a wrong base has tens of thousands of them."""
    one, other = (
        open_checkpoint(files.save(tmp_path / side, {f"{side}{n}.w": torch.ones(2) for n in range(200)} | shared, None))
        for side, shared in (("x", {"w": torch.ones(3)}), ("y", {"w": torch.ones(3)}))
    )
    passes = []

    class Counted(dict):
        def items(self):
            passes.append(1)
            return super().items()

    for checkpoint in (one, other):
        object.__setattr__(checkpoint, "tensors", Counted(checkpoint.tensors))
    found = match_checkpoints(one, other)
    assert len(found.missing) == len(found.extra) == 200
    assert "99% of the base's parameters have no partner" in found.problems[0]
    assert len(passes) < 5
