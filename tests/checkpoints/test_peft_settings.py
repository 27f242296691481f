"""Patterns of a PEFT config match as PEFT matches them, in a bounded time; settings of another type are refused."""

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints import files

from rankrise.checkpoints import open_checkpoint
from rankrise.checkpoints.files import PeftSettings

KEYS = st.lists(
    st.sampled_from(["a", "b", r"\.", ".", ".*", "|", "^", "$", "ab", "a1", r"\d", r"\w", "-"]), max_size=8
).map("".join)
NAMES = st.lists(st.sampled_from(["a", "b", ".", "ab", "1", "-", "a.b"]), min_size=1, max_size=8).map("".join)


@given(keys=st.lists(KEYS, min_size=1, max_size=3, unique=True), name=NAMES)
def test_a_key_matches_as_an_expression_does(keys, name):
    if any("**" in key or r"\.*" in key for key in keys):
        return
    wanted = next((n for n, key in enumerate(keys, 1) if re.match(rf"(.*\.)?({key})$", name)), 9)
    pattern = {key: n for n, key in enumerate(keys, 1)}
    assert PeftSettings({"r": 9, "rank_pattern": pattern}, "rank").of(name) == wanted


@pytest.mark.parametrize("key", ["(a+)+", "a*", r"a\.*", "[ab]", r"(a)\1", "a{9}", "a+?", "a b", r"\b", "a" * 1001])
def test_a_key_with_other_repetitions_is_refused(key):
    with pytest.raises(ValueError, match="A key of alpha_pattern must be a plain name"):
        PeftSettings({"lora_alpha": 1, "alpha_pattern": {key: 2}}, "alpha")


@pytest.mark.parametrize("kind", ["rank", "alpha"])
@pytest.mark.parametrize("keys", [30, 3000])
def test_many_long_patterns_take_little_time(tmp_path, kind, keys):
    """With two gaps and names of many dots a backtracking expression takes minutes; with many keys it is refused."""
    names = ["a." * 220 + f"b{n}" for n in range(30)]
    pattern = {".*a." * 2 + "a." * 200 + f"c{n}": 2 for n in range(keys)}
    files.save_peft(tmp_path, dict.fromkeys(names, (2, 2)), **{f"{kind}_pattern": pattern})
    began = time.process_time()
    if keys == 30:
        assert len(open_checkpoint(tmp_path).deltas) == 30
    elif kind == "alpha":
        with pytest.raises(ValueError, match="alpha_pattern must have fewer keys"):
            open_checkpoint(tmp_path)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"r": "2"}, "r and rank_pattern of an adapter must be whole numbers"),
        ({"r": 2.0}, "r and rank_pattern of an adapter must be whole numbers"),
        ({"r": True}, "r and rank_pattern of an adapter must be whole numbers"),
        ({"r": [2]}, "r and rank_pattern of an adapter must be whole numbers"),
        ({"rank_pattern": {"c": "2"}}, "r and rank_pattern of an adapter must be whole numbers"),
        ({"rank_pattern": ["c"]}, r"rank_pattern of an adapter must be an object; got \"\['c'\]\""),
        ({"rank_pattern": "c"}, "rank_pattern of an adapter must be an object; got 'c'"),
        ({"alpha_pattern": ["c"]}, "alpha_pattern of an adapter must be an object"),
        ({"alpha_pattern": 3}, "alpha_pattern of an adapter must be an object; got '3'"),
        ({"alpha_pattern": {"c": "x"}}, "is no number for lora_alpha"),
        ({"use_rslora": "false"}, "use_rslora of an adapter must be true or false; got 'false'"),
        ({"fan_in_fan_out": 1}, "fan_in_fan_out of an adapter must be true or false; got '1'"),
    ],
)
def test_settings_of_another_type_are_refused(tmp_path, options, words):
    files.save_peft(tmp_path, {"c": (6, 4)}, rank_pattern=None, alpha_pattern=None, use_rslora=None)
    assert open_checkpoint(tmp_path).deltas["base_model.model.c.weight"].scale == 2
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | options))
    with pytest.raises(ValueError, match=words) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).isprintable()
