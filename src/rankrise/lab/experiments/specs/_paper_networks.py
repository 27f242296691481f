"""The networks of the paper and their variants: vision transformers on digits, CIFAR and ImageNet, and GPT-2 on text.

Everything here is a value. A variant is `varied(BASE, ...)`, and an experiment is a name for three specs.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._spec import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.models import VIT_B16, GPTConfig, ViTConfig
from rankrise.lab.training import TrainingConfig

_AS_IT_IS: Mapping[str, Any] = MappingProxyType({})


def varied(
    spec: TrainingSpec,
    *,
    data: Mapping[str, Any] = _AS_IT_IS,
    model: Mapping[str, Any] = _AS_IT_IS,
    training: Mapping[str, Any] = _AS_IT_IS,
) -> TrainingSpec:
    """Return the spec with other values in its parts: `replace`, one level down."""
    return replace(
        spec,
        data=replace(spec.data, **data),
        model=replace(spec.model, **model),
        training=replace(spec.training, **training),
    )


# Digits of scikit-learn: embedded data, two cores

_DIGITS_VIT = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, num_layers=4, num_heads=4, head_dim=32, width=64, mlp_width=64
)

DIGITS_SMALL = TrainingSpec(
    data=DataConfig("digits"),
    model=_DIGITS_VIT,
    training=TrainingConfig(
        epochs=25, batch_size=64, learning_rate=1e-3, warmup_epochs=2, track_every=20, num_spectra=20, evaluate_every=5
    ),
)
DIGITS_SMOKE = varied(
    DIGITS_SMALL,
    data={"num_train": 64, "num_test": 32},
    model={"num_layers": 2, "num_heads": 2, "head_dim": 8, "width": 16, "mlp_width": 16},
    training={"epochs": 2, "batch_size": 16, "warmup_epochs": 0.5, "track_every": 2, "num_spectra": 4},
)
DIGITS_PAPER = TrainingSpec(  # the paper's network and recipe on this data
    data=DIGITS_SMALL.data,
    model=ViTConfig(image_size=8, patch_size=2, num_channels=1),
    training=TrainingConfig(
        epochs=500, batch_size=512, learning_rate=1e-4, warmup_epochs=15, precision="bf16", track_every=10
    ),
)

DIGITS = (
    Experiment(
        name="vit-digits",
        title="A small ViT on scikit-learn's digits: no download, no GPU",
        shows="the stable rank of the change of both circuits, far below that of the weights at the start",
        smoke=DIGITS_SMOKE,
        small=DIGITS_SMALL,
        paper=DIGITS_PAPER,
    ),
)


# CIFAR-10 and CIFAR-100, with several initial scales and with augmentation

CIFAR10_PAPER = TrainingSpec(  # the paper's recipe
    data=DataConfig("cifar10"),
    model=ViTConfig(),  # 6 layers, 8 heads of 128, width 512, MLP 512, patch 4
    training=TrainingConfig(
        epochs=500,
        batch_size=512,
        optimiser="adam",
        learning_rate=1e-4,
        warmup_epochs=15,
        schedule="cosine",
        precision="bf16",
        track_every=200,
        num_spectra=40,
        evaluate_every=5,
    ),
)
CIFAR_SMALL = TrainingSpec(  # a tenth of the images, a network 25 times smaller: three minutes on two cores
    data=DataConfig("cifar10", num_train=5_000, num_test=1_000),
    model=ViTConfig(num_heads=4, head_dim=32, width=128, mlp_width=128),
    training=TrainingConfig(
        epochs=15, batch_size=64, learning_rate=5e-4, warmup_epochs=2, track_every=39, num_spectra=20, evaluate_every=2
    ),
)
CIFAR_SMOKE = TrainingSpec(  # no download: images of the same shape with something to learn in them
    data=DataConfig("synthetic_images", num_train=64, num_test=32),
    model=ViTConfig(patch_size=8, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=16),
    training=TrainingConfig(
        epochs=2, batch_size=16, learning_rate=1e-3, warmup_epochs=0.5, track_every=2, num_spectra=4
    ),
)

_CIFAR_BASE = Experiment(
    name="vit-cifar10",
    title="The paper's ViT on CIFAR-10, 500 epochs",
    shows="the change of both circuits gains rank gradually and stays far below the rank at the start",
    smoke=CIFAR_SMOKE,
    small=CIFAR_SMALL,
    paper=CIFAR10_PAPER,
)


def _cifar_scale(factor: float) -> Experiment:
    """All scales train for 100 epochs, by when the ranks have settled, so that only the factor differs."""
    return Experiment(
        name=f"vit-cifar10-scale-{factor:g}",
        title=f"The paper's ViT on CIFAR-10 from weights × {factor:g}, 100 epochs",
        shows="a smaller initial scale gives a change of lower stable rank: compare the family vit-cifar10-scale-*",
        smoke=varied(CIFAR_SMOKE, model={"init_scale": factor}),
        small=varied(CIFAR_SMALL, model={"init_scale": factor}),
        paper=varied(
            CIFAR10_PAPER,
            model={"init_scale": factor},
            training={"epochs": 100, "track_every": 97, "evaluate_every": 2},
        ),
        family="vit-cifar10-scale",
        variant_of="vit-cifar10",
    )


_FLIP_AND_CROP = {"augment": ("flip", "crop")}
_CIFAR_AUGMENTED = Experiment(
    name="vit-cifar10-augmented",
    title="The paper's ViT on CIFAR-10 with flips and crops, 500 epochs",
    shows="whether the rank of the change depends on fitting the training images exactly",
    smoke=varied(CIFAR_SMOKE, data=_FLIP_AND_CROP),
    small=varied(CIFAR_SMALL, data=_FLIP_AND_CROP),
    paper=varied(CIFAR10_PAPER, data=_FLIP_AND_CROP),
    variant_of="vit-cifar10",
)
_CIFAR100 = Experiment(
    name="vit-cifar100",
    title="The paper's ViT on CIFAR-100, 500 epochs",
    shows="more classes need more rank: compare with vit-cifar10",
    smoke=varied(CIFAR_SMOKE, data={"num_classes": 20}, model={"num_classes": 20}),
    small=varied(CIFAR_SMALL, data={"name": "cifar100"}, model={"num_classes": 100}),
    paper=varied(CIFAR10_PAPER, data={"name": "cifar100"}, model={"num_classes": 100}),
)

CIFAR = (_CIFAR_BASE, *(_cifar_scale(factor) for factor in (1.0, 0.3, 0.1, 0.03)), _CIFAR_AUGMENTED, _CIFAR100)


# Folders of images: Tiny-ImageNet and ImageNet

_TINY_IMAGENET = TrainingSpec(  # the paper's network, patches twice as wide: 65 tokens as on CIFAR
    data=DataConfig("image_folder", path="tiny-imagenet-20", image_size=64),
    model=ViTConfig(image_size=64, patch_size=8, num_classes=20),
    training=replace(CIFAR10_PAPER.training, epochs=200, batch_size=128, track_every=15),
)
_TINY_IMAGENET_SMALL = replace(
    varied(_TINY_IMAGENET, model={"num_heads": 4, "head_dim": 32, "width": 128, "mlp_width": 128}),
    training=replace(CIFAR_SMALL.training, epochs=40, track_every=31),
)

_IMAGENET = TrainingSpec(  # the paper's recipe
    data=DataConfig("image_folder", path="imagenet", image_size=224),
    model=VIT_B16,
    training=TrainingConfig(
        epochs=360,
        batch_size=4096,
        optimiser="adam",
        learning_rate=3e-3,
        warmup_epochs=15,
        schedule="cosine",
        precision="bf16",
        accumulate=8,
        track_every=312,
        num_spectra=40,
        evaluate_every=5,
    ),
)
_IMAGENET_SMALL = TrainingSpec(
    data=replace(_IMAGENET.data, image_size=64, num_train=5_000, num_test=1_000),
    model=varied(_TINY_IMAGENET_SMALL, model={"num_classes": 1000}).model,
    training=CIFAR_SMALL.training,
)

_IMAGES_SMOKE = TrainingSpec(
    data=DataConfig("synthetic_images", image_size=64, num_train=32, num_test=16),
    model=ViTConfig(image_size=64, patch_size=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=16),
    training=replace(CIFAR_SMOKE.training, batch_size=8),
)

IMAGES = (
    Experiment(
        name="vit-tiny-imagenet",
        title="The paper's ViT on 20 classes of Tiny-ImageNet, 200 epochs",
        shows="the gradual rise on photographs of 64 × 64; 2,000 images, so not ImageNet",
        smoke=_IMAGES_SMOKE,
        small=_TINY_IMAGENET_SMALL,
        paper=_TINY_IMAGENET,
    ),
    Experiment(
        name="vit-imagenet",
        title="ViT-B/16 on ImageNet, the paper's 360 epochs; for torchrun",
        shows="the gradual rise, in the paper clearer here than on CIFAR-10",
        smoke=varied(_IMAGES_SMOKE, training={"accumulate": 2}),
        small=_IMAGENET_SMALL,
        paper=_IMAGENET,
    ),
)


# Text: GPT-2 on WikiText

_WIKITEXT2 = TrainingSpec(
    data=DataConfig("text", path="wikitext-2", context=1024, tokenizer="gpt2"),
    model=GPTConfig(),  # GPT-2 small: 12 layers, 12 heads of 64, width 768
    training=TrainingConfig(
        epochs=20,
        batch_size=32,
        optimiser="adam",
        learning_rate=3e-4,
        betas=(0.9, 0.95),
        warmup_epochs=1,
        precision="bf16",
        clip_norm=1.0,
        track_every=25,
        num_spectra=30,
    ),
)
_WIKITEXT103 = replace(
    _WIKITEXT2,
    data=replace(_WIKITEXT2.data, path="wikitext-103"),
    training=replace(
        _WIKITEXT2.training,
        epochs=10,
        batch_size=512,
        accumulate=16,
        learning_rate=6e-4,
        warmup_epochs=0.5,
        track_every=20,
    ),
)
_TEXT_SMALL = TrainingSpec(  # bytes in place of tokens, a network 150 times smaller
    data=DataConfig("text", path="wikitext-2", context=128, tokenizer="bytes", num_train=4_000, num_test=200),
    model=GPTConfig(vocab_size=257, context=128, num_layers=4, num_heads=4, head_dim=32, width=128, mlp_width=512),
    training=TrainingConfig(
        epochs=6,
        batch_size=32,
        learning_rate=1e-3,
        betas=(0.9, 0.95),
        warmup_epochs=0.2,
        clip_norm=1.0,
        track_every=25,
        num_spectra=20,
    ),
)
_TEXT_SMOKE = TrainingSpec(
    data=DataConfig("synthetic_text", context=16, num_classes=32, num_train=64, num_test=16),
    model=GPTConfig(vocab_size=32, context=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=32),
    training=replace(_TEXT_SMALL.training, epochs=2, batch_size=16, track_every=2, num_spectra=4),
)

TEXT = (
    Experiment(
        name="gpt2-wikitext2",
        title="GPT-2 small on WikiText-2, 20 epochs",
        shows="the gradual rise in a language model; 2 million tokens, so it overfits",
        smoke=_TEXT_SMOKE,
        small=_TEXT_SMALL,
        paper=_WIKITEXT2,
    ),
    Experiment(
        name="gpt2-wikitext103",
        title="GPT-2 small on WikiText-103, 10 epochs",
        shows="the gradual rise in a language model that does not run out of text",
        smoke=replace(_TEXT_SMOKE, training=replace(_TEXT_SMOKE.training, accumulate=2)),
        small=replace(_TEXT_SMALL, data=replace(_TEXT_SMALL.data, path="wikitext-103")),
        paper=_WIKITEXT103,
    ),
)
