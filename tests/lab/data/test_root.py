"""Where data is looked for, and the message when it is not there."""

from pathlib import Path

import pytest

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.data._root import data_root


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
