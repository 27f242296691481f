"""WikiText in every layout it comes in; what is wrong with a file is said with its name."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.lab.data.test_tokenizer import write_bpe

from rankrise.lab.data import DataConfig, DataWarning, load_dataset

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
