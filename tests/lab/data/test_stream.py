"""Streamed batches are those from memory, whatever the workers, the start and the rank."""

import pytest
import torch
from tests.lab.data.writers import write_images

from rankrise.lab.data import DataConfig, load_dataset
from rankrise.lab.data._memory import Images
from rankrise.lab.data._stream import StreamedImages

CONFIG = DataConfig("image_folder", image_size=16, augment=("flip", "crop"))
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
    memory = load_dataset(CONFIG, root=root)
    stream = load_dataset(CONFIG, root=root, memory=0, workers=workers)
    assert isinstance(memory, Images)
    assert isinstance(stream, StreamedImages)
    before = torch.random.get_rng_state()
    assert equal(memory.train_batches(**EPOCH), stream.train_batches(**EPOCH))
    assert equal(memory.test_batches(batch_size=5), stream.test_batches(batch_size=5))
    assert torch.equal(before, torch.random.get_rng_state())
    for name in ("task", "num_train", "num_test", "input_shape", "num_classes"):
        assert getattr(memory, name) == getattr(stream, name)


def test_start_and_ranks(root):
    stream = load_dataset(CONFIG, root=root, memory=0, workers=0)
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
    assert isinstance(load_dataset(CONFIG, root=root, memory=size), Images)
    assert isinstance(load_dataset(CONFIG, root=root, memory=size - 1), StreamedImages)


def test_broken_image_in_a_worker_is_one_sentence(tmp_path):
    write_images(tmp_path)
    (tmp_path / "val/bee/1.jpg").write_bytes(b"")
    stream = load_dataset(CONFIG, root=tmp_path, memory=0, workers=1)
    with pytest.raises(ValueError, match=r"^[^\n]*val/bee/1\.jpg must be a JPEG or PNG image; it is broken [^\n]*$"):
        list(stream.test_batches(batch_size=6))


def test_workers_are_a_count(root):
    with pytest.raises(ValueError, match="`workers` must be at least 0"):
        load_dataset(CONFIG, root=root, workers=-1)
