"""Which of the settings belong to which data set, and what they are unless given."""

from types import MappingProxyType

# By name: the settings beyond `name` and `seed` that mean something there.
_IMAGES = ("augment", "num_train", "num_test", "random_labels", "image_size")
SETTINGS = MappingProxyType(
    {
        "cifar10": ("path", *_IMAGES),
        "cifar100": ("path", *_IMAGES),
        "image_folder": ("path", *_IMAGES),
        "digits": _IMAGES,
        "synthetic_images": (*_IMAGES, "num_classes"),
        "text": ("path", "num_train", "num_test", "context", "tokenizer"),
        "synthetic_text": ("num_train", "num_test", "context", "num_classes"),
        "teacher": ("num_test", "samples", "tokens", "dim"),
    }
)
FIXED_SIZE = MappingProxyType({"cifar10": 32, "cifar100": 32, "digits": 8})  # `image_size` may be this, or None
AUGMENTATIONS = ("flip", "crop")
TOKENIZERS = ("gpt2", "bytes")
