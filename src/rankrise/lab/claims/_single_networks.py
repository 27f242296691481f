"""Claims 2, 3 and 5 on one network: the change has low rank, its rank grows, and circuits and layers differ."""

import functools

import numpy as np

from rankrise.lab.claims._claim import Finding, Predicate, listed, predicate
from rankrise.linalg import gaussian_spectra, stable_rank
from rankrise.runs import Array, NotMeasurable, RunData, early_mean, rank_correlation
from rankrise.view import CIRCUITS

NETWORKS = {  # each network, and where the paper shows it
    "vit-cifar10": "[v1] Fig. 1, 5, 12; [v2] Fig. 1, 4, 5",
    "vit-cifar10-scale-1": "as [v2] Fig. 1, 4, 5, at 100 of 500 epochs",
    "vit-cifar100": "[v1] Fig. 14, [v2] Fig. 4",
    "vit-imagenet": "[v1] Fig. 16, [v2] Fig. 1, 4",
    "gpt2-wikitext103": "[v2] Fig. 4",
    "gpt2-wikitext2": "as [v2] Fig. 4, on less text",
    "vit-tiny-imagenet": "as [v2] Fig. 4, on 20 classes",
    "vit-digits": "as [v2] Fig. 4, on digits",
}
_OTHER_PARTS = (0.02, 0.1)  # of the steps; they show how much depends on the choice of 5%
_FEWEST = 10  # measurements; a run with fewer only tries out the programs


def rank_curves(run: RunData, circuit: str) -> tuple[Array, Array]:
    """Steps (S,) after the start, and stable ranks of the change, (S, layers, heads)."""
    steps, values = run.path("stable_rank", circuit)
    later = steps > 0
    if later.sum() < _FEWEST:
        raise NotMeasurable(
            f"{run.source} has {later.sum()} measurements after its start; a trained network has at least {_FEWEST}."
        )
    return steps[later], values[later][..., 0]


def final_ranks(run: RunData, circuit: str) -> Array:
    """Mean over heads at the last measurement, (layers,)."""
    means: Array = rank_curves(run, circuit)[1][-1].mean(-1)
    return means


def parts(run: RunData, circuit: str = "kq") -> dict[str, int]:
    """How many heads and layers a number is made of."""
    layers, heads = rank_curves(run, circuit)[1].shape[1:]
    return {"heads": heads, "layers": layers}


def all_layers(values: Array) -> str:
    """The layers behind an array of one number for each, counted from 0, as "Layers 0-5"."""
    return f"Layers 0-{len(values) - 1}" if len(values) > 1 else "Layer 0"


def against_init(run: RunData, circuit: str) -> Finding:
    """The stable rank of the change over that of the product at the start, in the layer where the ratio is largest."""
    sigma = run.initial_spectrum(circuit)
    start = ((sigma**2).sum(-1) / sigma.max(-1) ** 2).mean(-1)
    final = final_ranks(run, circuit)
    if len(start) != len(final):
        raise NotMeasurable(f"{run.source} has {len(start)} layers at the start and {len(final)} later: run it again.")
    detail = f"{all_layers(final)}: {listed(final)}; at the start {listed(start, '.1f')}."
    return Finding(float((final / start).max()), detail, parts(run, circuit))


def against_random(run: RunData, circuit: str) -> Finding:
    """The stable rank of the change over that of a random product of its shape, in the layer of the largest ratio."""
    model = run.part("model")
    width = int(model.get("width", model.get("dim", 0)))
    reference = random_stable_rank(width, int(model.get("head_dim") or width))
    final = final_ranks(run, circuit)
    detail = f"{all_layers(final)}: {listed(final)}; a random change {reference:.1f}."
    return Finding(float(final.max() / reference), detail, parts(run, circuit))


@functools.cache
def random_stable_rank(width: int, head_dim: int) -> float:
    """Mean stable rank of the product of two Gaussian factors of width × head_dim.

    A random change of both factors has twice that inner dimension, and therefore a larger stable rank. The claims
    compare with the smaller value, which is the stricter test.

    >>> 41 < random_stable_rank(512, 128) < 44
    True
    """
    return float(stable_rank(gaussian_spectra(width, width, inner=head_dim, samples=16)).mean())


def rise(run: RunData, circuit: str) -> Finding:
    """The final stable rank over the one early in training, in the layer where it rises least."""
    steps, ranks = rank_curves(run, circuit)
    means = ranks.mean(-1)
    early = early_mean(steps, means)
    ratio = means[-1] / early
    pairs = ", ".join(f"{a:.2f} → {b:.2f}" for a, b in zip(early.tolist(), means[-1].tolist(), strict=True))
    others = listed(np.array([(means[-1] / early_mean(steps, means, part)).min() for part in _OTHER_PARTS]))
    detail = f"{all_layers(ratio)}: {pairs}. Over the first 2% and 10% of steps in place of 5%: {others}."
    return Finding(float(ratio.min()), detail, parts(run, circuit))


def steadiness(run: RunData, circuit: str) -> Finding:
    """The rank correlation of stable rank with time, in the layer where it is least."""
    steps, ranks = rank_curves(run, circuit)
    found = np.array([rank_correlation(steps, layer) for layer in ranks.mean(-1).T])
    return Finding(float(found.min()), f"{all_layers(found)}: {listed(found)}.", parts(run, circuit))


def vo_over_kq(run: RunData) -> Finding:
    """The stable rank of the value-output change over that of the key-query change, in the layer of the least ratio."""
    kq, vo = (final_ranks(run, circuit) for circuit in ("kq", "vo"))
    if len(kq) != len(vo):
        raise NotMeasurable(f"{run.source} has {len(kq)} layers of kq and {len(vo)} of vo: run it again.")
    return Finding(float((vo / kq).min()), f"{all_layers(kq)}: kq {listed(kq)}; vo {listed(vo)}.", parts(run))


def depth(run: RunData, circuit: str) -> Finding:
    """The rank correlation of the final stable rank with the number of the layer."""
    final = final_ranks(run, circuit)
    if len(final) < 3:
        raise NotMeasurable(f"{run.source} has {len(final)} layers; an order needs three.")
    value = rank_correlation(np.arange(len(final), dtype=float), final)
    return Finding(value, f"{all_layers(final)}: {listed(final)}.", parts(run, circuit))


def low_rank(topic: str, circuit: str, experiment: str, reference: str, *, words: str = "") -> list[Predicate]:
    """Claims that the change has far lower stable rank than the product at the start, and than a random change."""
    name = f"{CIRCUITS[circuit].short} change"
    return [
        predicate(
            topic,
            f"lower-than-{what}-{circuit}",
            f"the {name} has far lower stable rank than {than}{words}",
            of=experiment,
            reference=reference,
            circuit=circuit,
            layers="every layer",
            aggregate=f"max over layers of stable rank at the end, mean over heads, over that of {than}",
            measure=functools.partial(measure, circuit=circuit),
            must_be=("≤", 0.5),
            in_words=in_words,
        )
        for what, than, measure, in_words in (
            (
                "init",
                "the product at the start",
                against_init,
                f"the {name} has at most {{value:.0%}} of the stable rank of the product at the start, in every layer",
            ),
            ("random", "a random change of the same shape", against_random, ""),
        )
    ]


def gradual(topic: str, circuit: str, experiment: str, reference: str, *, words: str = "") -> list[Predicate]:
    """Claims that the stable rank of the change grows, and that it grows steadily."""
    name = f"{CIRCUITS[circuit].short} change"
    return [
        predicate(
            topic,
            f"rises-{circuit}",
            f"the stable rank of the {name} is higher at the end than early in training{words}",
            of=experiment,
            reference=reference,
            circuit=circuit,
            layers="every layer",
            aggregate="min over layers of stable rank, mean over heads, at the end over that in the first 5% of steps",
            measure=functools.partial(rise, circuit=circuit),
            must_be=(">", 1),
            in_words=f"the stable rank of the {name} at the end is {{value:.2f}} times that early in training, in the "
            "layer where it rises least",
        ),
        predicate(
            topic,
            f"rises-steadily-{circuit}",
            f"the stable rank of the {name} grows throughout training{words}",
            of=experiment,
            reference=reference,
            circuit=circuit,
            layers="every layer",
            aggregate="min over layers of Spearman's correlation of stable rank, mean over heads, with the step",
            measure=functools.partial(steadiness, circuit=circuit),
            must_be=("≥", 0.5),
        ),
    ]


def vo_above_kq(topic: str, experiment: str, reference: str) -> Predicate:
    """The claim that the value-output change has higher stable rank than the key-query change."""
    return predicate(
        topic,
        "vo-above-kq",
        "the value-output change has higher stable rank than the key-query change",
        of=experiment,
        reference=reference,
        circuit="vo against kq",
        layers="every layer",
        aggregate="min over layers of the ratio of stable ranks at the end, each mean over heads",
        measure=vo_over_kq,
        must_be=(">", 1),
        in_words="the value-output change has {value:.2f} times the stable rank of the key-query change, in the layer "
        "where this is least",
    )


_CENG501 = "CENG501, on [v2] Fig. 4, 7"
PREDICATES: tuple[Predicate, ...] = (
    *(p for name, ref in NETWORKS.items() for circuit in CIRCUITS for p in low_rank("2", circuit, name, ref)),
    *(p for name, ref in NETWORKS.items() for circuit in CIRCUITS for p in gradual("3", circuit, name, ref)),
    *(vo_above_kq("5", name, _CENG501) for name in NETWORKS),
    *(
        predicate(
            "5",
            f"deeper-is-higher-{circuit}",
            f"deeper layers have a {CIRCUITS[circuit].short} change of higher stable rank",
            of=name,
            reference=_CENG501,
            circuit=circuit,
            layers="all, in order",
            aggregate="Spearman's correlation of stable rank at the end, mean over heads, with the layer",
            measure=functools.partial(depth, circuit=circuit),
            must_be=("≥", 0.5),
        )
        for name in NETWORKS
        for circuit in CIRCUITS
    ),
)
