"""Files made to mislead: one sentence each, nothing read outside the folder, nothing left behind."""

import json
import os
import struct
import zipfile

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoints import files

from rankrise.checkpoints import diff, diff_text, open_checkpoint

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def attempt(call, *args):
    """What it returns; None, and one line that can be shown, where it refuses."""
    try:
        return call(*args)
    except ValueError as error:
        message = str(error)
    assert message.isprintable()
    return None


def entry(begin, end, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12), "'b' overlaps"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12), "leaves a hole"),
        ({"a": entry(0, 16)}, bytes(8), "tensors end at byte 16 of 8"),
        ({"a": entry(0, 4)}, bytes(8), "tensors end at byte 4 of 8"),
        ({"a": entry(0, 4, [2**40, 2**40])}, bytes(4), "needs 4835703278458516698824704 bytes and has 4"),
        ({"a": entry(0, 4, [-1])}, bytes(4), r"has the shape \[-1\]"),
        ({"a": entry(0, 4, [True])}, bytes(4), r"has the shape \[True\]"),
        ({"a": entry(0, 4, [1] * 50)}, bytes(4), "has the shape"),
        ({"a": entry(4, 0, [1])}, bytes(4), "has the offsets"),
        ({"a": entry(0, 4, [1], "F4")}, bytes(4), "is stored as 'F4'"),
        ({"a": entry(0, 4, [1], ["F32"])}, bytes(4), "is stored as"),
        ({"a": {"dtype": "F32"}}, b"", "is not dtype, shape and data_offsets"),
        ({"a": 3}, b"", "is not dtype, shape and data_offsets"),
        ({"__metadata__": [1]}, b"", "its __metadata__ is not an object"),
        (b'{"a": {}, "a": {}}', b"", "the key 'a' occurs twice"),
        (b"[1, 2]", b"", "must hold a JSON object"),
        (b"{" * 5000, b"", "must hold sound JSON"),
        (b'{"a":' + b"[" * 100_000, b"", "must hold sound JSON"),
        (b"\xff\xfe", b"", "must hold sound JSON"),
    ],
)
def test_headers(tmp_path, header, data, words):
    path = files.raw(tmp_path / "x.safetensors", header, data)
    with pytest.raises(ValueError, match=words) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9, 3])
def test_a_header_of_another_length(tmp_path, length):
    path = files.raw(tmp_path / "x.safetensors", {"a": entry(0, 4)}, bytes(4), length=length)
    with pytest.raises(ValueError, match=r"claims|sound JSON"):
        open_checkpoint(path)


def test_a_file_cut_anywhere(tmp_path):
    files.save(tmp_path, {"w": torch.ones(3, 4), "v": torch.ones(2)}, None)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"must be a sound safetensors file|must hold sound JSON"):
            open_checkpoint(path)


@QUICK
@given(junk=st.binary(max_size=200), length=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
def test_bytes_that_are_no_checkpoint(tmp_path, junk, length):
    data = junk if length is None else struct.pack("<Q", length) + junk
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    checkpoint = attempt(open_checkpoint, path)
    assert checkpoint is None or not checkpoint.tensors


@QUICK
@given(at=st.integers(0, 400), value=st.integers(0, 255))
def test_one_byte_changed(tmp_path, at, value):
    state = {"h.0.weight": torch.eye(4), "h.1.weight": torch.ones(2, 3)}
    files.save(tmp_path / "base", state, None)
    path = files.save(tmp_path / "tuned", state, None) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[at % len(data)] = value
    path.write_bytes(data)
    found = attempt(diff, tmp_path / "base", path)
    if found is not None:
        assert {row.status.split(":")[0] for row in found.rows} <= {"identical", "unchanged", "changed", "not finite"}


names = st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__")


@QUICK
@given(name=names, shape=st.lists(st.integers(0, 3), max_size=4), fill=st.sampled_from([0.0, 1.0, float("nan"), -1e38]))
def test_any_name_shape_and_value_is_a_row_or_a_sentence(tmp_path, name, shape, fill):
    for folder, value in (("base", 0.5), ("tuned", fill)):
        count = 1
        for size in shape:
            count *= size
        files.raw(
            tmp_path / folder / "model.safetensors",
            {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * count]}},
            struct.pack("<f", value) * count,
        )
    found = attempt(diff, tmp_path / "base", tmp_path / "tuned")
    if found is None:
        return
    json.dumps(found.to_json(), allow_nan=False)
    assert all(c.isprintable() or c in "\n\t" for c in diff_text(found, everything=True))
    found.write_html(tmp_path / "x.html")


KEYS = ["num_attention_heads", "num_key_value_heads", "head_dim", "text_config", "quantization_config"]
BAD_SHARDS = [
    "../secret.safetensors",
    "/etc/passwd",
    "/abs/model.safetensors",
    "sub/model.safetensors",
    "..\\secret.safetensors",
    "..",
    "",
    "a\0.safetensors",
    "x.txt",
    3,
    None,
    ["a.safetensors"],
]


@pytest.mark.parametrize("shard", BAD_SHARDS)
def test_a_shard_index_that_leads_elsewhere(tmp_path, shard, monkeypatch):
    files.save(tmp_path, {"w": torch.ones(2, 2)}, None, "secret.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    files.write_index(folder, {"w": shard})
    opened = watch(monkeypatch)
    with pytest.raises(ValueError, match="must name files of its own folder") as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert opened == [str(folder / "model.safetensors.index.json")]


@QUICK
@given(shard=st.text(max_size=30))
def test_any_shard_name(tmp_path, shard):
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    files.write_index(folder, {"w": shard})
    with pytest.raises((ValueError, FileNotFoundError)):
        open_checkpoint(folder)


def watch(monkeypatch):
    """The paths that are opened from now on, by descriptor."""
    opened, real = [], os.open

    def spy(path, *args, **kwargs):
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", spy)
    return opened


def test_links_out_of_the_folder_are_not_followed(tmp_path, monkeypatch):
    files.save(tmp_path / "elsewhere", {"w": torch.ones(2, 2)})
    for name in ("model.safetensors", "config.json"):
        folder = tmp_path / f"has-{name}"
        files.save(folder, {"w": torch.ones(2, 2)})
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "elsewhere" / name)
        opened = watch(monkeypatch)
        with pytest.raises(ValueError, match="must not lead out of its folder"):
            open_checkpoint(folder)
        assert not any("elsewhere" in path for path in opened)


def test_links_of_the_hubs_cache_are(tmp_path):
    repo = tmp_path / "models--org--name"
    files.save(repo / "blobs", {"w": torch.ones(2, 2)}, name="abc123.safetensors")
    snapshot = repo / "snapshots" / "0f0f"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc123.safetensors")
    assert open_checkpoint(snapshot).tensors["w"].shape == (2, 2)
    below = snapshot / "checkpoint-100"  # what the cache has of a Trainer's repository
    below.mkdir()
    (below / "model.safetensors").symlink_to("../../../blobs/abc123.safetensors")
    assert open_checkpoint(below).tensors["w"].shape == (2, 2)
    (below / "config.json").symlink_to("../../../../secret.json")
    (snapshot / "config.json").symlink_to("../../../secret.json")
    (tmp_path / "secret.json").write_text("{}")
    for folder in (snapshot, below):
        with pytest.raises(ValueError, match="must not lead out"):
            open_checkpoint(folder)


def test_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="must be a regular file"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match="must be a regular file"):
        open_checkpoint(tmp_path)
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    with pytest.raises(ValueError, match="cannot be read"):
        open_checkpoint(tmp_path / "loop.safetensors")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "must have a weight_map"),
        ('{"weight_map": {}}', "must have a weight_map"),
        ('{"weight_map": {"w": "m.safetensors", "w": "n.safetensors"}}', "the key 'w' occurs twice"),
        ("not json", "must hold sound JSON"),
        ('{"weight_map": {"gone": "m.safetensors"}}', r"'gone' is not in m\.safetensors"),
    ],
)
def test_indices(tmp_path, text, words):
    files.save(tmp_path, {"w": torch.ones(2, 2)}, None, "m.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(tmp_path)


def test_a_missing_shard(tmp_path):
    files.save_shards(tmp_path, files.weights())
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00003\.safetensors does not exist"):
        open_checkpoint(tmp_path)


def test_archives_that_claim_more_than_they_hold(tmp_path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"0" * 10**7)
    with pytest.raises(ValueError, match="must not be compressed"):
        open_checkpoint(path, allow_torch_load=True)
    torch.save({"w": torch.ones(1).expand(1000, 1000)}, path)
    with pytest.raises(ValueError, match="'w' repeats some"):
        open_checkpoint(path, allow_torch_load=True)
    torch.save([1, 2, 3], path)
    with pytest.raises(ValueError, match="must hold a state dict"):
        open_checkpoint(path, allow_torch_load=True)


@QUICK
@given(junk=st.binary(max_size=300))
def test_torch_files_of_junk(tmp_path, junk):
    path = tmp_path / "x.bin"
    path.write_bytes(junk)
    with pytest.raises(ValueError, match=r"must hold|damaged") as caught:
        open_checkpoint(path, allow_torch_load=True)
    assert str(caught.value).isprintable()


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@QUICK
@given(
    config=st.dictionaries(
        st.sampled_from(["peft_type", "lora_alpha", "alpha_pattern", "use_rslora", "r", "fan_in_fan_out", "use_dora"]),
        st.one_of(values, st.just("LORA"), st.just(4)),
    )
)
def test_any_adapter_config(tmp_path, config):
    files.save_peft(tmp_path, {"h.0.q": (6, 4)})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 4} | config))
    found = attempt(diff, tmp_path)
    assert found is None or len(found.rows) == 1


@settings(QUICK, max_examples=20)
@given(config=st.dictionaries(st.sampled_from(KEYS), values))
def test_any_config(tmp_path, config):
    base = files.weights()
    files.save(tmp_path / "base", base, files.CONFIG | config)
    files.save(tmp_path / "tuned", files.tuned(base), files.CONFIG | config)
    found = diff(tmp_path / "base", tmp_path / "tuned", summary=False)
    assert len(found.weights()) == len(base)
