"""Vision transformers on image folders: Tiny-ImageNet and ImageNet."""

from dataclasses import replace

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.experiments.specs import _cifar
from rankrise.lab.experiments.specs._varied import varied
from rankrise.lab.models import VIT_B16, ViTConfig
from rankrise.lab.training import TrainingConfig

TINY_IMAGENET = TrainingSpec(  # the paper's network, patches twice as wide: 65 tokens as on CIFAR
    data=DataConfig("image_folder", path="tiny-imagenet-20", image_size=64),
    model=ViTConfig(image_size=64, patch_size=8, num_classes=20),
    training=replace(_cifar.CIFAR10.training, epochs=200, batch_size=128, track_every=15),
)
TINY_IMAGENET_SMALL = replace(
    varied(TINY_IMAGENET, model={"num_heads": 4, "head_dim": 32, "width": 128, "mlp_width": 128}),
    training=replace(_cifar.SMALL.training, epochs=40, track_every=31),
)

IMAGENET = TrainingSpec(  # the paper's recipe
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
IMAGENET_SMALL = TrainingSpec(
    data=replace(IMAGENET.data, image_size=64, num_train=5_000, num_test=1_000),
    model=varied(TINY_IMAGENET_SMALL, model={"num_classes": 1000}).model,
    training=_cifar.SMALL.training,
)

_SMOKE = TrainingSpec(
    data=DataConfig("synthetic_images", image_size=64, num_train=32, num_test=16),
    model=ViTConfig(image_size=64, patch_size=16, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=16),
    training=replace(_cifar.SMOKE.training, batch_size=8),
)

EXPERIMENTS = (
    Experiment(
        name="vit-tiny-imagenet",
        title="The paper's ViT on 20 classes of Tiny-ImageNet, 200 epochs",
        shows="the gradual rise on photographs of 64 × 64; 2,000 images, so not ImageNet",
        smoke=_SMOKE,
        small=TINY_IMAGENET_SMALL,
        paper=TINY_IMAGENET,
    ),
    Experiment(
        name="vit-imagenet",
        title="ViT-B/16 on ImageNet, the paper's 360 epochs; for torchrun",
        shows="the gradual rise, in the paper clearer here than on CIFAR-10",
        smoke=varied(_SMOKE, training={"accumulate": 2}),
        small=IMAGENET_SMALL,
        paper=IMAGENET,
    ),
)
