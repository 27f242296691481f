"""The paper's vision transformer on CIFAR-10 and CIFAR-100, its init scales, and with augmentation."""

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._experiment import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.experiments.specs._varied import varied
from rankrise.lab.models import ViTConfig
from rankrise.lab.training import TrainingConfig

CIFAR10 = TrainingSpec(  # the paper's recipe
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
SMALL = TrainingSpec(  # a tenth of the images, a network 25 times smaller: three minutes on two cores
    data=DataConfig("cifar10", num_train=5_000, num_test=1_000),
    model=ViTConfig(num_heads=4, head_dim=32, width=128, mlp_width=128),
    training=TrainingConfig(
        epochs=15, batch_size=64, learning_rate=5e-4, warmup_epochs=2, track_every=39, num_spectra=20, evaluate_every=2
    ),
)
SMOKE = TrainingSpec(  # no download: images of the same shape with something to learn in them
    data=DataConfig("synthetic_images", num_train=64, num_test=32),
    model=ViTConfig(patch_size=8, num_layers=2, num_heads=2, head_dim=8, width=16, mlp_width=16),
    training=TrainingConfig(
        epochs=2, batch_size=16, learning_rate=1e-3, warmup_epochs=0.5, track_every=2, num_spectra=4
    ),
)

_BASE = Experiment(
    name="vit-cifar10",
    title="The paper's ViT on CIFAR-10, 500 epochs",
    shows="the change of both circuits gains rank gradually and stays far below the rank at the start",
    smoke=SMOKE,
    small=SMALL,
    paper=CIFAR10,
)


def _at_scale(factor: float) -> Experiment:
    """All of one length, so that only the factor differs: 100 epochs, by when the ranks have settled."""
    return Experiment(
        name=f"vit-cifar10-scale-{factor:g}",
        title=f"The paper's ViT on CIFAR-10 from weights × {factor:g}, 100 epochs",
        shows="a smaller initial scale gives a change of lower stable rank: compare the family vit-cifar10-scale-*",
        smoke=varied(SMOKE, model={"init_scale": factor}),
        small=varied(SMALL, model={"init_scale": factor}),
        paper=varied(
            CIFAR10,
            model={"init_scale": factor},
            training={"epochs": 100, "track_every": 97, "evaluate_every": 2},
        ),
        family="vit-cifar10-scale",
        variant_of="vit-cifar10",
    )


_FLIP_AND_CROP = {"augment": ("flip", "crop")}
_AUGMENTED = Experiment(
    name="vit-cifar10-augmented",
    title="The paper's ViT on CIFAR-10 with flips and crops, 500 epochs",
    shows="whether the rank of the change depends on fitting the training images exactly",
    smoke=varied(SMOKE, data=_FLIP_AND_CROP),
    small=varied(SMALL, data=_FLIP_AND_CROP),
    paper=varied(CIFAR10, data=_FLIP_AND_CROP),
    variant_of="vit-cifar10",
)
_CIFAR100 = Experiment(
    name="vit-cifar100",
    title="The paper's ViT on CIFAR-100, 500 epochs",
    shows="more classes need more rank: compare with vit-cifar10",
    smoke=varied(SMOKE, data={"num_classes": 20}, model={"num_classes": 20}),
    small=varied(SMALL, data={"name": "cifar100"}, model={"num_classes": 100}),
    paper=varied(CIFAR10, data={"name": "cifar100"}, model={"num_classes": 100}),
)

EXPERIMENTS = (_BASE, *(_at_scale(factor) for factor in (1.0, 0.3, 0.1, 0.03)), _AUGMENTED, _CIFAR100)
