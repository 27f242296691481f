"""Texts and their encodings, and the source text of Python's library, whose files are split by name."""

import importlib.util
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rankrise.lab.data import DataConfig, DataWarning, _text_files, library_files, load_dataset, load_library, split_of
from rankrise.lab.data._text_files import BPETokenizer, ByteTokenizer


def write_bpe(folder):
    """An encoding in GPT-2's format: all bytes, and a few merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    folder.mkdir(parents=True, exist_ok=True)
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ"), ("Ġ", "Ċ"), ("Ċ", "Ċ"), ("i", "n")]
    vocab = [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return folder


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    return BPETokenizer(write_bpe(tmp_path_factory.mktemp("bpe")))


@given(st.text(alphabet="aé漢😀\n\0 "))
def test_bytes_are_those_of_utf8(text):
    tokens = ByteTokenizer().encode(text)
    assert bytes(tokens[:-1].tolist()) == text.encode()
    assert tokens[-1] == 256


spaced = st.text(alphabet="the in'\n\t  é1=", max_size=80)


@given(spaced)
@example("the \n the \n \n = the in =  \n\n  the")
@example("   the   ")
def test_pieces_are_encoded_as_the_whole(bpe, text):
    whole = bpe._tokenizer.encode(text).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_text_files, "_CHUNK", 3)
        patch.setattr(_text_files, "_GROUP", 2)
        assert bpe.encode(text).tolist() == whole


def test_vocabulary_is_counted_and_text_comes_back(bpe):
    assert bpe.vocab_size == 263
    tokens = bpe.encode("the thin\n\nthe")
    assert len(tokens) < 12
    assert bpe.encode("").tolist() == []


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ("{", r"vocab.json must map tokens to integers;"),
        ("[1]", r"vocab.json must map tokens to integers;"),
        ('{"a": "b", "c": 1}', r"vocab.json must map tokens to integers;"),
        ('{"a": 0, "b": 2}', r"vocab.json must number its tokens 0, 1, … without a gap"),
        ("{}", "must number its tokens"),
        ('{"a": 0, "b": 1}', r"merges.txt must be the merges that go with .*vocab.json"),
    ],
)
def test_damaged_files_are_named(tmp_path, vocab, message):
    write_bpe(tmp_path)
    (tmp_path / "vocab.json").write_text(vocab)
    with pytest.raises(ValueError, match=message):
        BPETokenizer(tmp_path)


def test_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rankrise\[hf\]'; or ask for tokenizer='bytes'"):
        BPETokenizer(tmp_path)


TRAIN, TEST = " = Title = \n \n the cat in the hat \n" * 30, " \n the end \n" * 20


def write(folder, train=TRAIN, test=TEST, pattern="wiki.{}.tokens", held_out="test"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("train", train), (held_out, test)):
        (folder / pattern.format(name)).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_parquet(path, lines, column="text", kind=None):
    pq.write_table(pa.table({column: pa.array(lines, type=kind or pa.string())}), path)


def load(root, **settings):
    return load_dataset(DataConfig("text", **({"context": 16, "tokenizer": "bytes"} | settings)), root=root)


def content(dataset):
    """Bytes of the test blocks, in order."""
    return bytes(torch.cat([batch.inputs for batch in dataset.test_batches(batch_size=7)]).flatten().tolist())


@pytest.mark.parametrize(
    ("pattern", "held_out"),
    [
        ("wiki.{}.tokens", "test"),
        ("wiki.{}.tokens", "valid"),
        ("wiki.{}.raw", "test"),
        ("{}.txt", "test"),
        ("{}.txt", "validation"),
    ],
)
def test_plain_layouts(tmp_path, pattern, held_out):
    write(tmp_path / "wikitext-2", pattern=pattern, held_out=held_out)
    dataset = load(tmp_path)
    assert (dataset.task, dataset.input_shape, dataset.num_classes) == ("next_token", (16,), 257)
    assert dataset.num_train == len(TRAIN) // 16  # one more token ends the text
    assert content(dataset) == TEST.encode()[: dataset.num_test * 16]


@pytest.mark.parametrize("held_out", ["test", "validation", "valid"])
def test_parquet_shards_are_the_plain_text(tmp_path, held_out):
    tmp_path.joinpath("a").mkdir()
    lines = TRAIN.splitlines(keepends=True)
    write_parquet(tmp_path / "a/train-00000-of-00002.parquet", lines[:50])
    write_parquet(tmp_path / "a/train-00001-of-00002.parquet", lines[50:], kind=pa.large_string())
    write_parquet(tmp_path / f"a/{held_out}-00000-of-00001.parquet", TEST.splitlines())  # without their line breaks
    write(tmp_path / "b")
    batches = [next(load(tmp_path, path=name).train_batches(batch_size=9, seed=0, epoch=0)) for name in "ab"]
    assert torch.equal(batches[0].inputs, batches[1].inputs)
    assert content(load(tmp_path, path="a")) == content(load(tmp_path, path="b"))


def test_test_is_held_out_before_valid(tmp_path):
    write(tmp_path, held_out="valid", test="v" * 99)
    write(tmp_path, held_out="test", test="t" * 99)
    assert set(content(load(tmp_path))) == {ord("t")}


def test_first_blocks_are_kept(tmp_path):
    write(tmp_path)
    dataset = load(tmp_path, num_train=3, num_test=2)
    assert (dataset.num_train, dataset.num_test) == (3, 2)
    assert content(dataset) == TEST.encode()[:32]
    with pytest.raises(ValueError, match="`num_test` must be at most the 15 blocks of 16 tokens there are; got 16"):
        load(tmp_path, num_test=16)


@pytest.mark.parametrize("place", ["gpt2-bpe", "wikitext-2"])
def test_gpt2_encoding_is_found(tmp_path, place):
    write(tmp_path / "wikitext-2")
    write_bpe(tmp_path / place)
    for tokenizer in (None, "gpt2"):
        assert load(tmp_path, tokenizer=tokenizer).num_classes == 263
    assert load(tmp_path, tokenizer="bytes").num_classes == 257
    if place == "gpt2-bpe":
        assert load(tmp_path / "wikitext-2", tokenizer="gpt2").num_classes == 263  # beside the folder


def test_without_gpt2_bytes_are_used_and_said(tmp_path):
    write(tmp_path)
    with pytest.warns(DataWarning, match=r"vocab.json and merges.txt were looked for in .*gpt2-bpe.*Bytes are used"):
        assert load(tmp_path, tokenizer=None).num_classes == 257
    with pytest.raises(FileNotFoundError, match=r"GPT-2's encoding is not there: .*or ask for 'bytes'"):
        load(tmp_path, tokenizer="gpt2")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (b"abc\xff" * 20, TEST, r"wiki.train.tokens must be UTF-8; byte 3 is not"),
        ("", TEST, r"wiki.train.tokens must hold text; it is empty"),
        (TRAIN, " \n", r"wiki.test.tokens must hold text; it is empty"),
        ("x" * 15, TEST, r"wiki.train.tokens must have at least 17 tokens .* `context` 16; it has 16"),
    ],
)
def test_wrong_text_is_named(tmp_path, train, test, message):
    write(tmp_path, train, test)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_no_held_out_text_is_said(tmp_path):
    (write(tmp_path) / "wiki.test.tokens").unlink()
    with pytest.raises(FileNotFoundError, match=r"There is no held-out text in .*wiki.valid.tokens"):
        load(tmp_path)


def test_pipes_are_refused(tmp_path):
    write_parquet(tmp_path / "test-0.parquet", ["a"])
    os.mkfifo(tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match=r"train-0.parquet must be a regular file; it is not"):
        load(tmp_path)


def test_wrong_parquet_is_named(tmp_path):
    write_parquet(tmp_path / "test-0.parquet", ["a"])
    train = tmp_path / "train-0.parquet"
    write_parquet(train, ["a"], column="txt")
    with pytest.raises(ValueError, match=r"train-0.parquet must have a column `text` of strings; its columns are txt"):
        load(tmp_path)
    write_parquet(train, [1], kind=pa.int64())
    with pytest.raises(ValueError, match="must have a column `text` of strings"):
        load(tmp_path)
    write_parquet(train, ["some text"] * 100)
    whole = train.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"PAR1" + b"\0" * 40 + b"PAR1"):
        train.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"train-0.parquet must be a Parquet file; it is truncated or damaged"):
            load(tmp_path)


LIBRARY = DataConfig("synthetic_text", context=8)


@pytest.fixture
def folder(tmp_path):
    for n in range(60):
        (tmp_path / f"m{n:02d}.py").write_text(f"x = {n:02d} * 11\n" * 4)
    for name in ("test/t.py", "json/tests/t.py", "site-packages/p.py", "encodings/cp1.py", "_sysconfigdata_linux.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("left out\n" * 9)
    return tmp_path


def numbers(tokens):
    """Which files a split holds, from their contents."""
    lines = bytes(t for t in tokens.tolist() if t < 256).decode().splitlines()
    return {int(line[4:6]) for line in lines if len(line) == 11}


def test_splits_share_no_file_and_hold_all_of_them(folder):
    text = load_library(LIBRARY, (10_000, 10_000, 10_000), folder=folder)
    found = {split: numbers(tokens) for split, tokens in text.tokens.items()}
    assert {split: len(files) for split, files in found.items()} == text.num_files
    for split, files in found.items():
        assert files == {n for n in range(60) if split_of(f"m{n:02d}.py") == split}
        assert files
    assert sum(map(len, found.values())) == 60


def test_what_is_left_out(folder):
    assert sorted(library_files(folder)) == [f"m{n:02d}.py" for n in range(60)]


def test_real_library_is_split_about_eight_to_one_to_one():
    names = list(library_files())
    shares = [sum(split_of(name) == split for name in names) / len(names) for split in ("train", "validation", "test")]
    assert len(names) > 200
    assert 0.7 < shares[0] < 0.9
    assert min(shares[1:]) > 0.05
    assert not [name for name in names if "/test/" in f"/{name}" or "site-packages" in name]


def test_the_first_blocks_are_the_start_of_all_of_them(folder):
    short, long = (load_library(LIBRARY, (num, num, num), folder=folder) for num in (3, 6))
    for split, tokens in short.tokens.items():
        assert len(tokens) == 25
        assert torch.equal(tokens, long.tokens[split][:25])
    assert short.dataset("test").num_train == short.dataset("validation").num_test == 3


def test_checksum_is_of_what_was_read(folder):
    before = load_library(LIBRARY, (10_000,) * 3, folder=folder)
    assert load_library(LIBRARY, (10_000,) * 3, folder=folder).sha256 == before.sha256
    (folder / "m07.py").write_text("other\n")
    assert load_library(LIBRARY, (10_000,) * 3, folder=folder).sha256 != before.sha256
    assert before.to_json()["num_files"] == before.num_files


def test_a_text_lends_its_encoding(tmp_path, folder):
    write(tmp_path / "data" / "wikitext-2")
    config = DataConfig("text", context=8, tokenizer="bytes")
    text = load_library(config, (3, 3, 3), root=tmp_path / "data", folder=folder)
    assert text.vocab_size == 257
    with pytest.raises(FileNotFoundError, match="must be in"):
        load_library(config, (3, 3, 3), root=tmp_path / "nowhere", folder=folder)


def test_too_little_text_is_said(tmp_path):
    (tmp_path / "a.py").write_text("x\n" * 50)
    with pytest.raises(ValueError, match=r"more than 8 tokens of every split; .* has not\. Use a Python with"):
        load_library(LIBRARY, (3, 3, 3), folder=tmp_path)
