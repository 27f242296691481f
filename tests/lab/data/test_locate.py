"""Where data is looked for, which files are found, and the message when they are not there."""

import importlib.util
from pathlib import Path

import pytest

from rankrise.lab.data import DataConfig, find_dataset, load_dataset
from rankrise.lab.data._locate import data_root


def test_argument_then_variable_then_here(monkeypatch):
    monkeypatch.setenv("RANKRISE_DATA", "elsewhere")
    assert data_root("mine") == Path("mine")
    assert data_root(None) == Path("elsewhere")
    monkeypatch.delenv("RANKRISE_DATA")
    assert data_root(None) == Path("data")


@pytest.mark.parametrize(
    ("name", "layout", "source"),
    [
        ("cifar10", "data_batch_1 … data_batch_5 and test_batch, plain or each as .xz", "cs.toronto.edu/~kriz"),
        ("cifar100", "train and test, plain or each as .xz", "cifar-100-python.tar.gz"),
        ("image_folder", "train/<class>/*.jpg and val/<class>/*.jpg", "image-net.org"),
        ("text", "wiki.train.tokens", "Salesforce/wikitext"),
    ],
)
def test_missing_data_is_explained(tmp_path, name, layout, source):
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(DataConfig(name), root=tmp_path)
    message = str(caught.value)
    for part in (str(tmp_path), layout, source, "--data DIR", "RANKRISE_DATA=DIR"):
        assert part in message


@pytest.mark.parametrize(
    ("config", "end"),
    [
        (DataConfig("text"), "the folder that holds 'wikitext-2'"),
        (DataConfig("text", path="wikitext-103"), "the folder that holds 'wikitext-103'"),
        (DataConfig("image_folder", path="imagenet"), "the folder that holds 'imagenet'"),
        (DataConfig("image_folder"), "the folder with train and val"),
    ],
)
def test_what_the_data_folder_must_hold_is_what_was_asked_for(tmp_path, config, end):
    with pytest.raises(FileNotFoundError, match=rf"RANKRISE_DATA=DIR, {end}\.$"):
        load_dataset(config, root=tmp_path)


def test_with_a_path_only_that_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"must be in {tmp_path}/mine, which must hold"):
        load_dataset(DataConfig("cifar10", path="mine"), root=tmp_path)


@pytest.mark.parametrize("name", ["digits", "teacher", "synthetic_images", "synthetic_text"])
def test_made_data_needs_no_folder(name):
    assert find_dataset(DataConfig(name), root="nowhere") is None


@pytest.mark.parametrize(
    ("config", "folder", "files"),
    [
        (
            DataConfig("cifar10"),
            "cifar-10-batches-py",
            ["data_batch_1.xz", "data_batch_2", "data_batch_3", "data_batch_4.xz", "data_batch_5", "test_batch"],
        ),
        (DataConfig("cifar100"), "cifar-100-python", ["train", "test.xz"]),
        (DataConfig("image_folder", path="pictures"), "pictures", ["train/cat/1.png", "val/cat/1.png"]),
        (DataConfig("text", tokenizer="bytes"), "wikitext-2", ["wiki.train.tokens", "wiki.test.tokens"]),
        (DataConfig("text", path="a/mine"), "a/mine", ["train.txt", "valid.txt"]),
    ],
)
def test_files_are_found_all_of_them_and_not_read(config, folder, files, tmp_path, monkeypatch):
    place = tmp_path / folder
    for file in files:
        with pytest.raises(FileNotFoundError, match=r"must be in .* which must hold"):
            find_dataset(config, root=tmp_path)
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text("not what it should be")
    assert find_dataset(config, root=tmp_path) == place
    assert find_dataset(config, root=place) == place  # the folder itself
    monkeypatch.setenv("RANKRISE_DATA", str(tmp_path))
    assert find_dataset(config) == place


def test_another_folder_is_not_taken_for_the_one_named(tmp_path):
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"the folder that holds 'tiny-imagenet'\.$"):
        find_dataset(DataConfig("image_folder", path="tiny-imagenet"), root=tmp_path / "imagenet")


def test_gpt2_needs_its_encoding(tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    for split in ("train", "test"):
        (tmp_path / "wikitext-2" / f"wiki.{split}.tokens").write_text("words")
    config = DataConfig("text", tokenizer="gpt2")
    with pytest.raises(FileNotFoundError, match=r"vocab\.json and merges\.txt were looked for in"):
        find_dataset(config, root=tmp_path)
    (tmp_path / "gpt2-bpe").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "gpt2-bpe" / name).write_text("")
    assert find_dataset(config, root=tmp_path) == tmp_path / "wikitext-2"


def test_digits_without_scikit_learn(monkeypatch):
    assert importlib.util.find_spec("sklearn") is not None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rankrise\[demo\]'"):
        find_dataset(DataConfig("digits"))
