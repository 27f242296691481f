"""Which experiments `rankrise reproduce` runs at each scale, in which order, with how many seeds.

Experiments that need no download come first; at `paper` the paper's networks come first. At `smoke` the digits are
trained with the network of scale `small` for 15 epochs, some ten seconds each, because two layers on 64 images would
show nothing. At `small` only the digits have variants, because those on CIFAR-10 would make the plan take over an hour
on two cores.
"""

from dataclasses import dataclass, replace

from rankrise.lab.experiments._spec import Scale
from rankrise.lab.experiments.specs import (
    _full_heads,
    _gauged,
    _paper_networks,
    _questions,
    _toys,
    _varied_networks,
)


@dataclass(frozen=True)
class Entry:
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
_JUDGES = (3, 4, 5)  # bounds of claims on full heads, readers' questions and gauges were set on seeds 0, 1 and 2
_TOY = tuple(experiment.name for experiment in _toys.THEORY)
_BESIDE = tuple(experiment.name for experiment in (*_full_heads.FULL_HEADS, *_questions.QUESTIONS))


def _toy(scale: Scale, seeds: tuple[int, ...] = (), **more: tuple[int, ...]) -> tuple[Entry, ...]:
    """The runs of theory; `more` has the seeds of those that do not have `seeds`."""
    return tuple(Entry(name, scale, more.get(name, seeds)) for name in _TOY)


def _beside(scale: Scale, seeds: tuple[int, ...]) -> tuple[Entry, ...]:
    """Heads with full matrices, and readers' questions."""
    return tuple(Entry(name, scale, seeds) for name in _BESIDE)


def _scales(network: Entry, num: int = 4) -> tuple[Entry, ...]:
    """The members of the family of a network's initial scales, from the largest scale; at most `num` of them."""
    known = (*_paper_networks.CIFAR, *_varied_networks.VARIED)
    members = [experiment for experiment in known if experiment.family and experiment.variant_of == network.name]
    return tuple(replace(network, name=member.name) for member in members[:num])


def _with_scales(network: Entry, num: int = 4) -> tuple[Entry, ...]:
    """A network and the members of its family of initial scales."""
    return (network, *_scales(network, num))


def _variants(network: Entry) -> tuple[Entry, ...]:
    """The variants of a network that have one thing changed."""
    return tuple(replace(network, name=variant.name) for variant in _varied_networks.VARIANTS[network.name])


_SHORT_GAUGES = (  # less than a minute in all
    "modular-adam",
    "modular-zero-sum",
    "vit-digits-hot",
    "vit-digits-hot-sigma-qkv",
)
_GAUGES_ONLY_SMALL = (
    "Claims of the gauges are judged at scale small, for which their bounds were set: rankrise run NAME --scale small "
    "--seed 3-5, with --epochs 10 for digits that are not hot"
)


def _gauges(scale: Scale) -> tuple[Entry, ...]:
    """The experiments of the gauges, which are judged where they were run by hand."""
    length = dict.fromkeys((experiment.name for experiment in _gauged.OTHER_DIGITS), 10 if scale == "small" else None)
    return tuple(
        Entry(e.name, scale, _JUDGES, epochs=length.get(e.name), by_hand=_GAUGES_ONLY_SMALL) for e in _gauged.GAUGED
    )


_IMAGENET = (
    "ImageNet at 360 epochs takes 30 hours on one H200, so it is not run here: torchrun --nproc-per-node 8 -m rankrise "
    "run vit-imagenet --scale paper --data DIR, then reproduce again"
)

ENTRIES: dict[Scale, tuple[Entry, ...]] = {
    "smoke": (
        *_toy("smoke", _THREE, **{"toy-stages": _TWELVE, "toy-flow-1e-32": _TWELVE}),
        *_beside("smoke", _JUDGES),
        *_with_scales(Entry("vit-digits", "small", seeds=_THREE, epochs=15), num=3),
        *_variants(Entry("vit-digits", "small", epochs=15)),
        Entry("lazy-tight", "smoke", _JUDGES[:1]),
        *(Entry(name, "small", _JUDGES[:1]) for name in _SHORT_GAUGES),
    ),
    "small": (
        *_toy("small"),
        *_beside("small", _JUDGES[:1]),
        *_with_scales(Entry("vit-digits", "small", seeds=_THREE)),
        *_variants(Entry("vit-digits", "small")),
        *_with_scales(Entry("vit-cifar10", "small")),
        Entry("vit-cifar100", "small"),
        Entry("vit-tiny-imagenet", "small"),
        Entry("vit-imagenet", "small"),
        Entry("gpt2-wikitext2", "small"),
        Entry("gpt2-wikitext103", "small"),
        Entry("vit-cifar10-augmented", "small"),
        Entry("vit-cifar10-ceng501", "small"),
        *_gauges("small"),
    ),
    "paper": (
        Entry("vit-cifar10", "paper"),
        *_scales(Entry("vit-cifar10", "paper", seeds=_THREE)),
        Entry("vit-cifar100", "paper"),
        Entry("vit-tiny-imagenet", "paper"),
        Entry("gpt2-wikitext2", "paper"),
        *_toy("paper", _THREE),
        *_beside("paper", _JUDGES),
        *_variants(Entry("vit-cifar10", "paper")),
        Entry("vit-cifar10-ceng501", "paper"),
        Entry("vit-cifar10-augmented", "paper"),
        *_with_scales(Entry("vit-digits", "paper")),
        *_variants(Entry("vit-digits", "paper")),
        Entry("gpt2-wikitext103", "paper"),
        Entry("vit-imagenet", "paper", by_hand=_IMAGENET),
        *_gauges("paper"),
    ),
}
