"""Python's library as a text: split by file, the same text for the same files, nothing generated in it."""

import pytest
import torch
from tests.lab.data.test_text import write

from rankrise.lab.data import DataConfig, library_files, load_library, split_of

CONFIG = DataConfig("synthetic_text", context=8)


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
    text = load_library(CONFIG, (10_000, 10_000, 10_000), folder=folder)
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
    short, long = (load_library(CONFIG, (num, num, num), folder=folder) for num in (3, 6))
    for split, tokens in short.tokens.items():
        assert len(tokens) == 25
        assert torch.equal(tokens, long.tokens[split][:25])
    assert short.dataset("test").num_train == short.dataset("validation").num_test == 3


def test_checksum_is_of_what_was_read(folder):
    before = load_library(CONFIG, (10_000,) * 3, folder=folder)
    assert load_library(CONFIG, (10_000,) * 3, folder=folder).sha256 == before.sha256
    (folder / "m07.py").write_text("other\n")
    assert load_library(CONFIG, (10_000,) * 3, folder=folder).sha256 != before.sha256
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
        load_library(CONFIG, (3, 3, 3), folder=tmp_path)
