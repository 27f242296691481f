"""Image folders: classes by name, the same in both splits, nothing from outside."""

import os

import pytest
import torch
from tests.lab.data.writers import write_images

from rankrise.lab.data import DataConfig, load_dataset


def load(root, **settings):
    return load_dataset(DataConfig("image_folder", **({"image_size": 16} | settings)), root=root)


def test_classes_are_sorted_by_name_and_files_read(tmp_path):
    write_images(tmp_path / "mine", classes=("bee", "Ant", "cat"))
    (tmp_path / "mine/train/bee/notes.txt").write_text("ignored")
    (tmp_path / "mine/train/bee/.hidden.png").write_text("ignored")
    (tmp_path / "mine/train/.DS_Store").write_text("ignored")
    dataset = load(tmp_path, path="mine")
    assert (dataset.num_train, dataset.num_test, dataset.input_shape, dataset.num_classes) == (18, 9, (3, 16, 16), 3)
    assert next(dataset.test_batches(batch_size=9)).targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert load(tmp_path / "mine").num_train == 18


def test_image_size_is_64_unless_given(tmp_path):
    write_images(tmp_path)
    assert load_dataset(DataConfig("image_folder"), root=tmp_path).input_shape == (3, 64, 64)


def test_subset_and_random_labels(tmp_path):
    write_images(tmp_path)
    dataset = load(tmp_path, num_train=4, num_test=2, random_labels=True)
    assert (dataset.num_train, dataset.num_test) == (4, 2)
    right = next(load(tmp_path).train_batches(batch_size=12, seed=0, epoch=0))
    wrong = next(load(tmp_path, random_labels=True).train_batches(batch_size=12, seed=0, epoch=0))
    assert torch.equal(right.inputs, wrong.inputs)
    assert not torch.equal(right.targets, wrong.targets)


def test_classes_that_differ_are_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "val/ant").rename(tmp_path / "val/wasp")
    with pytest.raises(ValueError, match="must have the same classes; ant only in train and wasp only in val"):
        load(tmp_path)


def test_missing_split_empty_class_and_no_class_are_named(tmp_path):
    write_images(tmp_path)
    for path in (tmp_path / "val/ant").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"val/ant must hold at least one image \(.jpg, .jpeg, .png\); it holds none"):
        load(tmp_path)
    (tmp_path / "val").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"^val is missing in .*--data DIR"):
        load(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="val must hold a folder for each class; it holds none"):
        load(tmp_path)


@pytest.mark.parametrize("memory", [0, 2**30])
def test_broken_image_is_named(tmp_path, memory):
    write_images(tmp_path)
    (tmp_path / "train/bee/1.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    with pytest.raises(ValueError, match=r"train/bee/1\.jpg must be a JPEG or PNG image; it is broken"):
        list(
            load_dataset(DataConfig("image_folder"), root=tmp_path, memory=memory, workers=0).train_batches(
                batch_size=12, seed=0, epoch=0
            )
        )


@pytest.mark.parametrize("what", ["file", "class"])
def test_link_that_leads_out_is_refused(tmp_path, what):
    write_images(tmp_path / "inside")
    write_images(tmp_path / "outside")
    link = tmp_path / ("inside/train/ant/9.png" if what == "file" else "inside/train/crow")
    os.symlink(tmp_path / ("outside/train/ant/0.png" if what == "file" else "outside/train/ant"), link)
    with pytest.raises(ValueError, match=rf"{link} must not be a link that leads out of"):
        load(tmp_path, path="inside")


def test_links_inside_and_to_the_whole_are_fine(tmp_path):
    write_images(tmp_path / "disk")
    os.symlink("../bee/0.png", tmp_path / "disk/train/ant/9.png")
    os.symlink(tmp_path / "disk", tmp_path / "mine")
    assert load(tmp_path, path="mine").num_train == 13
