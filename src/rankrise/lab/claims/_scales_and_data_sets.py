"""Claims that compare networks: initial scales (4), data sets (3, 5)."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rankrise.lab.claims._claim import Bound, Finding, Predicate, listed, predicate
from rankrise.lab.claims._single_networks import all_layers, final_ranks, parts, rank_curves
from rankrise.lab.experiments import family_members, scale_family
from rankrise.runs import RunData, rank_correlation
from rankrise.view import CIRCUITS

FAMILIES = {  # from the largest scale to the smallest
    base: tuple(member.name for member in family_members(scale_family(base))) for base in ("vit-cifar10", "vit-digits")
}
_FIGURE = "[v1] Fig. 4, [v2] Fig. 7"


def scale_of(run: RunData) -> float:
    """The factor that multiplied the initial weights of a run."""
    return float(run.part("model").get("init_scale", 1.0))


def all_but_scale(spec: Mapping[str, Any]) -> object:
    """What runs at several initial scales must have in common."""
    model = {key: value for key, value in spec.get("model", {}).items() if key != "init_scale"}
    return {**spec, "model": model, "seed": None}


def size_and_length(spec: Mapping[str, Any]) -> object:
    """What networks on two data sets must have in common: the epochs, and the model but for its number of classes."""
    model = {key: value for key, value in spec.get("model", {}).items() if key != "num_classes"}
    return model, spec.get("training", {}).get("epochs")


def ordered_pairs(*runs: RunData, circuit: str) -> Finding:
    """The share of layers and neighbouring scales where the smaller scale has the lower stable rank."""
    family = sorted(runs, key=scale_of, reverse=True)
    ranks = np.stack([final_ranks(run, circuit) for run in family])
    detail = "; ".join(f"scale {scale_of(run):g}: {listed(row)}" for run, row in zip(family, ranks, strict=True))
    return Finding(float((ranks[1:] < ranks[:-1]).mean()), f"{all_layers(ranks[0])}, {detail}.", parts(runs[0]))


def ends_apart(*runs: RunData, circuit: str) -> Finding:
    """The stable rank at the largest scale over that at the smallest, in the layer where this ratio is least."""
    family = sorted(runs, key=scale_of, reverse=True)
    large, small = final_ranks(family[0], circuit), final_ranks(family[-1], circuit)
    scales = [f"{scale_of(run):g}" for run in (family[0], family[-1])]
    detail = f"{all_layers(large)}: {listed(large)} at {scales[0]}, {listed(small)} at {scales[1]}."
    return Finding(float((large / small).min()), detail, parts(runs[0]))


def accuracy_lost(*runs: RunData) -> Finding:
    """The test accuracy at the largest scale minus that at the smallest."""
    family = sorted(runs, key=scale_of, reverse=True)
    found = np.array([run.scalar("test_accuracy")[-1] for run in family])
    scales = ", ".join(f"{scale_of(run):g}" for run in family)
    parts(family[0])  # refuses a run that is too short
    return Finding(float(found[0] - found[-1]), f"Accuracy {listed(found, '.3f')} at scales {scales}.")


def mean_rank_ratio(first: RunData, second: RunData, *, circuit: str) -> Finding:
    """The stable rank of one network, mean over layers and heads, divided by that of another network."""
    a, b = (final_ranks(run, circuit) for run in (first, second))
    return Finding(float(a.mean() / b.mean()), f"{listed(a)} against {listed(b)}, layer by layer.", parts(first))


def steadier(first: RunData, second: RunData) -> Finding:
    """How much steadier ranks rise in the first network: the difference of rank correlations with time.

    The correlation of each network is the median over its layers.
    """
    medians = []
    for run in (first, second):
        steps, ranks = rank_curves(run, "kq")
        medians.append(float(np.median([rank_correlation(steps, layer) for layer in ranks.mean(-1).T])))
    return Finding(medians[0] - medians[1], f"{medians[0]:.2f} against {medians[1]:.2f}.", parts(first))


_MOST: Bound = ("≥", 0.9)
_ABOVE_ONE: Bound = (">", 1)
_ONE_FAMILY = "one network and recipe, but for the initial scale"
PREDICATES: tuple[Predicate, ...] = (
    predicate(
        "3",
        "steadier",
        "the gradual rise is clearer on ImageNet than on CIFAR-10",
        of="vit-imagenet",
        reference="[v2] Fig. 1",
        circuit="kq",
        layers="median over layers",
        aggregate="difference of Spearman's correlation of stable rank, mean over heads, with the step",
        needs=("vit-imagenet", "vit-cifar10"),
        measure=steadier,
        must_be=(">", 0),
    ),
    *(
        predicate(
            "4",
            f"{name}-{circuit}",
            f"{statement} gives a {CIRCUITS[circuit].short} change of lower stable rank",
            of=scale_family(base),
            reference=_FIGURE if base == "vit-cifar10" else f"as {_FIGURE}, on digits",
            circuit=circuit,
            layers="every layer",
            aggregate=aggregate,
            needs=family,
            measure=functools.partial(measure, circuit=circuit),
            must_be=must_be,
            at_least=at_least,
            shared=all_but_scale,
            one_of=_ONE_FAMILY,
            in_words=in_words.replace("CHANGE", f"{CIRCUITS[circuit].short} change"),
        )
        for base, family in FAMILIES.items()
        for circuit in CIRCUITS
        for name, statement, measure, must_be, at_least, aggregate, in_words in (
            (
                "each-smaller-scale-is-lower",
                "each smaller initial scale",
                ordered_pairs,
                _MOST,
                3,
                "share of layers × neighbouring scales with a lower stable rank at the end, mean over heads",
                "each smaller initial scale lowered the stable rank of the CHANGE in {value:.0%} of the comparisons",
            ),
            (
                "smallest-scale-is-lower",
                "the smallest initial scale",
                ends_apart,
                _ABOVE_ONE,
                2,
                "min over layers of final stable rank, mean over heads, at the largest scale over that at the smallest",
                "",
            ),
        )
    ),
    *(
        predicate(
            "5",
            "small-scale-hurts",
            "too small an initial scale hurts accuracy",
            of=scale_family(base),
            reference="CENG501, on [v2] Fig. 7",
            circuit="accuracy",
            layers="",
            aggregate="test accuracy at the largest scale less that at the smallest, at the end",
            needs=(family[0], family[-1]),  # one that was not small enough tests nothing
            measure=accuracy_lost,
            must_be=("≥", 0.01),
            shared=all_but_scale,
            one_of=_ONE_FAMILY,
        )
        for base, family in FAMILIES.items()
    ),
    *(
        predicate(
            "5",
            f"more-classes-higher-{circuit}",
            f"the {CIRCUITS[circuit].short} change has higher stable rank on CIFAR-100 than on CIFAR-10",
            of="vit-cifar100",
            reference="CENG501, on [v2] Fig. 4",
            circuit=circuit,
            layers="mean over layers",
            aggregate="ratio of stable ranks at the end, mean over heads and layers",
            needs=("vit-cifar100", "vit-cifar10"),
            measure=functools.partial(mean_rank_ratio, circuit=circuit),
            must_be=(">", 1),
            shared=size_and_length,
            one_of="one size and number of epochs",
        )
        for circuit in CIRCUITS
    ),
)
