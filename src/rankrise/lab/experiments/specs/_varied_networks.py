"""The networks with one thing changed that the paper did not vary, on CIFAR-10 and on digits."""

from collections.abc import Callable
from typing import Any

from rankrise.lab.data import DataConfig
from rankrise.lab.experiments._spec import Experiment
from rankrise.lab.experiments.kinds import TrainingSpec
from rankrise.lab.experiments.specs._paper_networks import (
    CIFAR10_PAPER,
    CIFAR_SMALL,
    CIFAR_SMOKE,
    DIGITS_PAPER,
    DIGITS_SMALL,
    DIGITS_SMOKE,
    varied,
)
from rankrise.lab.models import ViTConfig
from rankrise.lab.training import TrainingConfig

_BASES = {
    "vit-cifar10": (
        CIFAR_SMOKE,
        CIFAR_SMALL,
        varied(CIFAR10_PAPER, training={"epochs": 100, "track_every": 97, "evaluate_every": 2}),
    ),
    "vit-digits": (DIGITS_SMOKE, DIGITS_SMALL, DIGITS_PAPER),
}


def _relu(spec: TrainingSpec) -> TrainingSpec:
    return varied(spec, model={"activation": "relu"})


def _sgd(spec: TrainingSpec) -> TrainingSpec:
    """Use SGD with momentum, and a rate a thousand times that of Adam, at which it learns in as many epochs."""
    rate = 1000 * spec.training.learning_rate
    return varied(spec, training={"optimiser": "sgd", "learning_rate": min(rate, 0.1), "momentum": 0.9})


def _random_labels(spec: TrainingSpec) -> TrainingSpec:
    return varied(spec, data={"random_labels": True})


def _wide(spec: TrainingSpec) -> TrainingSpec:
    """Double the widths of head, embedding and MLP."""
    doubled = {name: 2 * getattr(spec.model, name) for name in ("head_dim", "width", "mlp_width")}
    return varied(spec, model=doubled)


_CHANGES: dict[str, tuple[Callable[[TrainingSpec], TrainingSpec], str]] = {
    "relu": (_relu, "with ReLU in place of GELU"),
    "sgd": (_sgd, "with SGD of momentum 0.9 in place of Adam"),
    "random-labels": (_random_labels, "with random labels"),
    "wide": (_wide, "twice as wide"),
}


def _variant(base: str, name: str) -> Experiment:
    change, words = _CHANGES[name]
    smoke, small, paper = (change(spec) for spec in _BASES[base])
    return Experiment(
        f"{base}-{name}",
        f"{base}-scale-1 {words}",
        f"whether low rank and its gradual rise need what was changed: compare with {base}-scale-1",
        smoke=smoke,
        small=small,
        paper=paper,
        variant_of=base,
    )


def _digits_scale(factor: float) -> Experiment:
    values: dict[str, Any] = {"init_scale": factor}
    return Experiment(
        f"vit-digits-scale-{factor:g}",
        f"vit-digits with initial weights times {factor:g}",
        "a smaller initial scale gives a change of lower stable rank: compare the family vit-digits-scale-*",
        smoke=varied(DIGITS_SMOKE, model=values),
        small=varied(DIGITS_SMALL, model=values),
        paper=varied(DIGITS_PAPER, model=values),
        family="vit-digits-scale",
        variant_of="vit-digits",
    )


_CENG501 = TrainingSpec(  # batches of 32 to 50,000 steps, a small network, images as they are (there: enlarged to 224)
    data=DataConfig("cifar10"),
    model=ViTConfig(num_layers=4, num_heads=4, head_dim=64, width=256, mlp_width=256),
    training=TrainingConfig(
        epochs=32,
        batch_size=32,
        optimiser="adam",
        learning_rate=1e-4,
        schedule="constant",
        precision="bf16",
        track_every=100,
        num_spectra=60,
        evaluate_every=2,
    ),
)

VARIANTS = {base: tuple(_variant(base, name) for name in _CHANGES) for base in _BASES}
VARIED = (
    *(_digits_scale(factor) for factor in (1.0, 0.3, 0.1, 0.03)),
    *(experiment for variants in VARIANTS.values() for experiment in variants),
    Experiment(
        "vit-cifar10-ceng501",
        "The recipe of the CENG501 reproduction, 50,000 steps",
        "its Fig. 5 and 6, measured per head and against true initial weights",
        smoke=varied(CIFAR_SMOKE, training={"schedule": "constant", "warmup_epochs": 0}),
        small=varied(CIFAR_SMALL, training={"schedule": "constant", "warmup_epochs": 0, "batch_size": 32}),
        paper=_CENG501,
        variant_of="vit-cifar10",
    ),
)
