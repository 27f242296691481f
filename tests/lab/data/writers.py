"""Small data sets in the official layouts, written by tests."""

import lzma
import pickle

import numpy as np
from PIL import Image

CIFAR10_FILES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def cifar_record(num, *, num_classes=10, seed=0, labels="labels"):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (num, 3072), dtype=np.uint8)
    return {b"data": data, labels.encode(): [int(i) for i in rng.integers(0, num_classes, num)]}


def write_cifar10(root, *, num=8, xz=(), folder="cifar-10-batches-py"):
    place = root / folder
    place.mkdir(parents=True)
    for i, name in enumerate(CIFAR10_FILES):
        write_pickle(place / name, cifar_record(num, seed=i), xz=name in xz)
    return place


def write_pickle(path, record, *, xz=False):
    content = pickle.dumps(record, protocol=4)
    if xz:
        path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(content))
    else:
        path.write_bytes(content)


def write_images(root, *, classes=("ant", "bee"), num=(6, 3), size=(24, 20)):
    rng = np.random.default_rng(0)
    for split, count in zip(("train", "val"), num, strict=True):
        for name in classes:
            place = root / split / name
            place.mkdir(parents=True)
            for i in range(count):
                array = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(array).save(place / f"{i}.{('png', 'jpg', 'JPEG')[i % 3]}")
    return root
