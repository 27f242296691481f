"""Values only: what every experiment is made of. A variant is `replace(BASE, ...)`."""

from rankrise.lab.experiments.specs import _cifar, _digits, _images, _text, _theory, _toy, _variants

ALL = (
    *_digits.EXPERIMENTS,
    *_theory.EXPERIMENTS,
    *_toy.EXPERIMENTS,
    *_cifar.EXPERIMENTS,
    *_images.EXPERIMENTS,
    *_text.EXPERIMENTS,
    *_variants.EXPERIMENTS,
)
