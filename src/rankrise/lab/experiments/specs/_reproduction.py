"""Which experiments `rankrise reproduce` runs at each scale, in which order, with how many seeds.

Experiments that need no download come first; at `paper` the paper's networks come first. At `smoke` the digits are
trained with the network of scale `small` for 15 epochs, some ten seconds each, because two layers on 64 images would
show nothing. At `small` only the digits have variants, because those on CIFAR-10 would make the plan take over an hour
on two cores.
"""

from dataclasses import dataclass, replace

from rankrise.lab.experiments._spec import Scale
from rankrise.lab.experiments.specs import _networks, _toys


@dataclass(frozen=True)
class Part:
    """One experiment of a reproduction.

    Args:
        name: The name of the experiment.
        scale: The scale of its spec.
        seeds: The seeds of its runs; if there are none, the seed of the spec.
        epochs: Replaces the epochs of the spec.
        by_hand: Why the experiment is not run by `rankrise reproduce`, which uses it when it is done; empty if it is.
    """

    name: str
    scale: Scale
    seeds: tuple[int, ...] = ()
    epochs: int | None = None
    by_hand: str = ""


_THREE = (0, 1, 2)
_TWELVE = tuple(range(12))  # because coordinates leave the support in some tasks only
_TOY = tuple(experiment.name for experiment in _toys.THEORY)
_FACTORS = ("1", "0.3", "0.1", "0.03")
_CHANGES = tuple(_networks.VARIANTS)


def _toy(scale: Scale, seeds: tuple[int, ...] = (), more: dict[str, tuple[int, ...]] | None = None) -> tuple[Part, ...]:
    return tuple(Part(name, scale, (more or {}).get(name, seeds)) for name in _TOY)


def _with_scales(part: Part, factors: tuple[str, ...] = _FACTORS) -> tuple[Part, ...]:
    """A network and its family of initial scales."""
    return (part, *(replace(part, name=f"{part.name}-scale-{factor}") for factor in factors))


def _with_changes(part: Part) -> tuple[Part, ...]:
    """The variants of a network."""
    return tuple(replace(part, name=f"{part.name}-{change}") for change in _CHANGES)


_IMAGENET = (
    "ImageNet at 360 epochs takes 30 hours on one H200, so it is not run here: torchrun --nproc-per-node 8 -m rankrise "
    "run vit-imagenet --scale paper --data DIR, then reproduce again"
)

PARTS: dict[Scale, tuple[Part, ...]] = {
    "smoke": (
        *_toy("smoke", _THREE, {"toy-stages": _TWELVE, "toy-flow-1e-32": _TWELVE}),
        *_with_scales(Part("vit-digits", "small", seeds=_THREE, epochs=15), ("1", "0.3", "0.1")),
        *_with_changes(Part("vit-digits", "small", epochs=15)),
    ),
    "small": (
        *_toy("small"),
        *_with_scales(Part("vit-digits", "small", seeds=_THREE)),
        *_with_changes(Part("vit-digits", "small")),
        *_with_scales(Part("vit-cifar10", "small")),
        Part("vit-cifar100", "small"),
        Part("vit-tiny-imagenet", "small"),
        Part("vit-imagenet", "small"),
        Part("gpt2-wikitext2", "small"),
        Part("gpt2-wikitext103", "small"),
        Part("vit-cifar10-augmented", "small"),
        Part("vit-cifar10-ceng501", "small"),
    ),
    "paper": (
        Part("vit-cifar10", "paper"),
        *(Part(f"vit-cifar10-scale-{factor}", "paper", seeds=_THREE) for factor in _FACTORS),
        Part("vit-cifar100", "paper"),
        Part("vit-tiny-imagenet", "paper"),
        Part("gpt2-wikitext2", "paper"),
        *_toy("paper", _THREE),
        *_with_changes(Part("vit-cifar10", "paper")),
        Part("vit-cifar10-ceng501", "paper"),
        Part("vit-cifar10-augmented", "paper"),
        *_with_scales(Part("vit-digits", "paper")),
        *_with_changes(Part("vit-digits", "paper")),
        Part("gpt2-wikitext103", "paper"),
        Part("vit-imagenet", "paper", by_hand=_IMAGENET),
    ),
}
