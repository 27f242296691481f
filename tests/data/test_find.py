"""Whether data is at hand is known without reading it, and said as `load_dataset` would."""

import importlib.util

import pytest

from rankrise.data import DataConfig, find_dataset


@pytest.mark.parametrize("name", ["digits", "teacher", "synthetic_images", "synthetic_text"])
def test_made_data_needs_no_folder(name):
    assert find_dataset(DataConfig(name), root="nowhere") is None


@pytest.mark.parametrize(
    ("config", "file"),
    [
        (DataConfig("cifar10"), "cifar-10-batches-py/data_batch_1.xz"),
        (DataConfig("cifar100"), "cifar-100-python/train"),
        (DataConfig("image_folder", path="pictures"), "pictures/train/cat/1.png"),
        (DataConfig("text", tokenizer="bytes"), "wikitext-2/wiki.train.tokens"),
        (DataConfig("text", path="mine"), "mine/train.txt"),
    ],
)
def test_files_are_found_and_not_read(config, file, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"must be in .* which must hold"):
        find_dataset(config, root=tmp_path)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("not what it should be")
    assert find_dataset(config, root=tmp_path) == tmp_path / file.partition("/")[0]
    monkeypatch.setenv("RANKRISE_DATA", str(tmp_path))
    assert find_dataset(config) == tmp_path / file.partition("/")[0]


def test_gpt2_needs_its_encoding(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "wiki.train.tokens").write_text("words")
    config = DataConfig("text", tokenizer="gpt2")
    with pytest.raises(FileNotFoundError, match=r"vocab\.json and merges\.txt were looked for in"):
        find_dataset(config, root=tmp_path)
    (tmp_path / "gpt2-bpe").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "gpt2-bpe" / name).write_text("")
    assert find_dataset(config, root=tmp_path) == tmp_path / "wikitext-2"


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setattr("rankrise.data._find.find_spec", lambda name: None)
    assert importlib.util.find_spec("sklearn") is not None
    with pytest.raises(ModuleNotFoundError, match=r"pip install rankrise\[demo\]"):
        find_dataset(DataConfig("digits"))
