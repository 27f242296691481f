"""Image files are decoded and refused one by one; folders are read alike in memory and by workers."""

import io
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.lab.data.writers import write_images

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.data._image_files import StreamedImages, decode
from rankrise.lab.data._memory import Images

GRADIENT = np.linspace(0, 255, 40 * 60, dtype=np.uint8).reshape(40, 60)


def save(path, mode, **options):
    Image.fromarray(GRADIENT).convert("RGB").convert(mode).save(path, **options)
    return path


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *((mode, "a.png") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")),
        *((mode, "a.jpg") for mode in ("L", "RGB", "CMYK")),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, mode, name):
    image = decode(save(tmp_path / name, mode), 20)
    assert (image.shape, image.dtype) == ((3, 20, 20), torch.uint8)
    if mode != "1":
        grey = decode(save(tmp_path / "grey.png", "L"), 20)
        assert float((image.float() - grey.float()).abs().mean()) < 12  # CMYK and palettes are coarse


def test_palette_with_transparency(tmp_path):
    image = Image.fromarray(GRADIENT).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert decode(tmp_path / "a.png", 10).shape == (3, 10, 10)


def test_middle_is_kept_and_nothing_resized_when_it_fits(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (20, 34, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    assert np.array_equal(decode(tmp_path / "a.png", 20).permute(1, 2, 0).numpy(), array[:, 7:27])


def test_large_jpeg_is_close_to_the_exact_resize(tmp_path):
    array = np.kron(np.random.default_rng(0).integers(0, 256, (8, 8, 3)), np.ones((64, 64, 1))).astype(np.uint8)
    Image.fromarray(array).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(array).save(tmp_path / "a.png")
    difference = decode(tmp_path / "a.jpg", 64).float() - decode(tmp_path / "a.png", 64).float()
    assert float(difference.abs().mean()) < 6


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_truncated_image_is_named(tmp_path, name, kept):
    path = save(tmp_path / name, "RGB")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=rf"{name} must be a JPEG or PNG image; it is broken \(.*Get it again"):
        decode(path, 16)


def test_other_formats_are_refused_whatever_their_name(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(GRADIENT).save(path, format="GIF")
    with pytest.raises(ValueError, match=r"a.png must be a JPEG or PNG image"):
        decode(path, 16)


def test_huge_image_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"a.png must be a JPEG or PNG image; it is broken \(Image size"):
        decode(save(tmp_path / "a.png", "RGB"), 16)


@given(st.integers(0, 400), st.integers(0, 255))
def test_flipped_bytes_give_an_image_or_its_name(tmp_path_factory, position, value):
    buffer = io.BytesIO()
    Image.fromarray(GRADIENT).convert("RGB").save(buffer, format="JPEG")
    content = bytearray(buffer.getvalue())
    content[position % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "flipped.jpg"
    path.write_bytes(content)
    try:
        assert decode(path, 16).shape == (3, 16, 16)
    except ValueError as error:
        message = str(error)
        assert "flipped.jpg must be" in message


def load_folder(root, **settings):
    return load_dataset(DataConfig("image_folder", **({"image_size": 16} | settings)), root=root)


def test_classes_are_sorted_by_name_and_files_read(tmp_path):
    write_images(tmp_path / "mine", classes=("bee", "Ant", "cat"))
    (tmp_path / "mine/train/bee/notes.txt").write_text("ignored")
    (tmp_path / "mine/train/bee/.hidden.png").write_text("ignored")
    (tmp_path / "mine/train/.DS_Store").write_text("ignored")
    dataset = load_folder(tmp_path, path="mine")
    assert (dataset.num_train, dataset.num_test, dataset.input_shape, dataset.num_classes) == (18, 9, (3, 16, 16), 3)
    assert next(dataset.test_batches(batch_size=9)).targets.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert load_folder(tmp_path / "mine").num_train == 18


def test_image_size_is_64_unless_given(tmp_path):
    write_images(tmp_path)
    assert load_dataset(DataConfig("image_folder"), root=tmp_path).input_shape == (3, 64, 64)


def test_subset_and_random_labels(tmp_path):
    write_images(tmp_path)
    dataset = load_folder(tmp_path, num_train=4, num_test=2, random_labels=True)
    assert (dataset.num_train, dataset.num_test) == (4, 2)
    right = next(load_folder(tmp_path).train_batches(batch_size=12, seed=0, epoch=0))
    wrong = next(load_folder(tmp_path, random_labels=True).train_batches(batch_size=12, seed=0, epoch=0))
    assert torch.equal(right.inputs, wrong.inputs)
    assert not torch.equal(right.targets, wrong.targets)


def test_classes_that_differ_are_named(tmp_path):
    write_images(tmp_path)
    (tmp_path / "val/ant").rename(tmp_path / "val/wasp")
    with pytest.raises(ValueError, match="must have the same classes; ant only in train and wasp only in val"):
        load_folder(tmp_path)


def test_missing_split_empty_class_and_no_class_are_named(tmp_path):
    write_images(tmp_path)
    for path in (tmp_path / "val/ant").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"val/ant must hold at least one image \(.jpg, .jpeg, .png\); it holds none"):
        load_folder(tmp_path)
    (tmp_path / "val").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"^val is missing in .*--data DIR"):
        load_folder(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match="val must hold a folder for each class; it holds none"):
        load_folder(tmp_path)


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
        load_folder(tmp_path, path="inside")


def test_links_inside_and_to_the_whole_are_fine(tmp_path):
    write_images(tmp_path / "disk")
    os.symlink("../bee/0.png", tmp_path / "disk/train/ant/9.png")
    os.symlink(tmp_path / "disk", tmp_path / "mine")
    assert load_folder(tmp_path, path="mine").num_train == 13


STREAM = DataConfig("image_folder", image_size=16, augment=("flip", "crop"))
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on, in the loader
EPOCH = {"batch_size": 4, "seed": 3, "epoch": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


def equal(a, b):
    return all(
        torch.equal(x, y) for first, second in zip(a, b, strict=True) for x, y in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_equals_in_memory_bit_for_bit(root, workers):
    memory = load_dataset(STREAM, root=root)
    stream = load_dataset(STREAM, root=root, memory=0, workers=workers)
    assert isinstance(memory, Images)
    assert isinstance(stream, StreamedImages)
    before = torch.random.get_rng_state()
    assert equal(memory.train_batches(**EPOCH), stream.train_batches(**EPOCH))
    assert equal(memory.test_batches(batch_size=5), stream.test_batches(batch_size=5))
    assert torch.equal(before, torch.random.get_rng_state())
    for name in ("task", "num_train", "num_test", "input_shape", "num_classes"):
        assert getattr(memory, name) == getattr(stream, name)


def test_start_and_ranks(root):
    stream = load_dataset(STREAM, root=root, memory=0, workers=0)
    whole = list(stream.train_batches(**EPOCH))
    assert equal(whole[2:], stream.train_batches(**EPOCH, start=2))
    parts = zip(*(stream.train_batches(**EPOCH, rank=rank, world_size=2) for rank in (0, 1)), strict=True)
    assert equal(whole, [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in parts])


def test_without_augmentation(root):
    config = DataConfig("image_folder", image_size=16)
    streams = [load_dataset(config, root=root, memory=memory, workers=0) for memory in (0, 2**30)]
    assert equal(*(dataset.train_batches(**EPOCH) for dataset in streams))


def test_size_decides(root):
    size = (12 + 6) * 3 * 16 * 16
    assert isinstance(load_dataset(STREAM, root=root, memory=size), Images)
    assert isinstance(load_dataset(STREAM, root=root, memory=size - 1), StreamedImages)


def test_broken_image_in_a_worker_is_one_sentence(tmp_path):
    write_images(tmp_path)
    (tmp_path / "val/bee/1.jpg").write_bytes(b"")
    stream = load_dataset(STREAM, root=tmp_path, memory=0, workers=1)
    with pytest.raises(ValueError, match=r"^[^\n]*val/bee/1\.jpg must be a JPEG or PNG image; it is broken [^\n]*$"):
        list(stream.test_batches(batch_size=6))


def test_workers_are_a_count(root):
    with pytest.raises(ValueError, match="`workers` must be at least 0"):
        load_dataset(STREAM, root=root, workers=-1)
