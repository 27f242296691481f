"""A `DataConfig` is a value of JSON's types; what it cannot mean is refused with what it could."""

import dataclasses
import json

import numpy as np
import pytest

from rankrise.lab.data import DataConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "cifar"}, r"`name` must be one of cifar10, .*, text; got 'cifar'\. Did you mean 'cifar10'\?"),
        ({"name": None}, r"`name` must be one of .*; got None\.$"),
        ({"name": ["cifar10"]}, "`name` must be one of"),
        ({"augment": ("flop",)}, r"`augment` must be one of crop, flip; got 'flop'\. Did you mean 'flip'\?"),
        ({"augment": "flip"}, r"`augment` must be a tuple of names such as \('flip', 'crop'\); got 'flip'"),
        ({"augment": ("flip", "flip")}, "`augment` must name each augmentation once"),
        ({"num_train": 0}, "`num_train` must be at least 1"),
        ({"num_train": 1.5}, r"`num_train` must be a whole number; got 1\.5"),
        ({"num_test": "10"}, "`num_test` must be a whole number; got '10'"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"seed": None}, "`seed` must be a whole number; got None"),
        ({"random_labels": 1}, "`random_labels` must be true or false; got 1"),
        ({"image_size": 64}, "`image_size` of 'cifar10' must be 32; got 64"),
        (
            {"context": 3},
            r"`context` must not be set for 'cifar10', where it means nothing; got 3\. Its settings are path",
        ),
        ({"tokenizer": "gpt"}, r"`tokenizer` must be one of bytes, gpt2; got 'gpt'\. Did you mean 'gpt2'\?"),
        ({"name": "text", "augment": ("flip",)}, "`augment` must not be set for 'text'"),
        ({"name": "text", "random_labels": True}, "`random_labels` must not be set for 'text'"),
        ({"name": "teacher", "num_train": 5}, "`num_train` must not be set for 'teacher'.*samples"),
        ({"name": "digits", "path": "x"}, "`path` must not be set for 'digits'"),
        ({"name": "image_folder", "image_size": 4}, "`image_size` must be at least 8"),
        ({"name": "synthetic_images", "num_classes": 1}, "`num_classes` must be at least 2"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**({"name": "cifar10"} | settings))


@pytest.mark.parametrize(
    "path", ["/etc", "..", "a/../../b", "a/..", "", "C:\\x", "C:x", "a\\b", "a\0b", 3, "//host/share"]
)
def test_path_outside_the_data_folder_is_refused(path):
    with pytest.raises(ValueError, match="`path` must be a folder below the data folder, relative and without"):
        DataConfig("image_folder", path=path)


def test_value_survives_json():
    config = DataConfig("image_folder", path="a/b", augment=("flip", "crop"), num_train=np.int64(5), seed=3)
    again = DataConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
    assert again == config
    assert hash(again) == hash(config)
    assert type(config.num_train) is int


def test_fixed_size_may_be_said():
    assert DataConfig("cifar10", image_size=32).image_size == 32
    assert DataConfig("digits", image_size=8).image_size == 8
