"""Beyond the paper: which claims survive other optimisers, activations, losses, data and sizes."""

import numpy as np

from rankrise.experiments.claims._claim import Finding, NotMeasurable, Predicate, predicate
from rankrise.experiments.claims._networks import gradual, low_rank, vo_above_kq
from rankrise.experiments.claims._runs import RunData
from rankrise.experiments.claims._toy import AT_HALF
from rankrise.experiments.claims._toy_numbers import active_at_half_loss, detected_stages

_OURS = "beyond the paper"
_TOYS = {
    "toy-flow-1e-8": "the flow at α = 1e-8, for comparison",
    "toy-gd": "gradient descent",
    "toy-sgd": "stochastic gradient descent",
    "toy-adam": "Adam",
    "toy-relu": "ReLU",
    "toy-cross-entropy": "cross-entropy without a penalty",
}
_NETWORKS = {
    **{
        f"{base}-{name}": words
        for base in ("vit-cifar10", "vit-digits")
        for name, words in {
            "relu": ", with ReLU",
            "sgd": ", under SGD",
            "random-labels": ", on random labels",
            "wide": ", in a network twice as wide",
        }.items()
    },
    "vit-cifar10-augmented": ", with augmentation",
}
_CENG501 = "vit-cifar10-ceng501"


def times_as_in_the_flow(run: RunData, flow: RunData) -> Finding:
    """Largest relative difference of activation times, of coordinates active in both."""
    ours, theirs = run.activation_times(), flow.activation_times()
    both = np.isfinite(ours) & np.isfinite(theirs) & (theirs > 0)
    if not both.any():
        raise NotMeasurable("No coordinate activates in both runs.")
    gaps = np.abs(ours[both] / theirs[both] - 1)
    return Finding(float(gaps.max()), f"{int(both.sum())} coordinates, mean {gaps.mean():.3f}.")


def learned(run: RunData) -> Finding:
    """The part of the loss that training removes."""
    losses = run.scalar("loss")
    return Finding(float(1 - losses[-1] / losses[0]), f"Loss {losses[0]:.4g} → {losses[-1]:.4g}.")


PREDICATES: tuple[Predicate, ...] = (
    *(
        predicate(
            "beyond",
            f"stages@{name}",
            f"the toy has stages with {words}",
            reference=_OURS,
            circuit="the loss",
            layers="",
            aggregate="drops between plateaus that `detect_stages` finds with confidence of at least 0.5",
            needs=(name,),
            measure=detected_stages,
            must_be=("≥", 2),
        )
        for name, words in _TOYS.items()
    ),
    *(
        predicate(
            "beyond",
            f"one-after-another@{name}",
            f"coordinates are learned one after another with {words}",
            reference=_OURS,
            circuit="kq and vo",
            layers="the head",
            aggregate=AT_HALF,
            needs=(name,),
            measure=active_at_half_loss,
            must_be=("≤", 0.75),
        )
        for name, words in _TOYS.items()
    ),
    *(
        predicate(
            "beyond",
            f"times-as-in-the-flow@{name}",
            f"with {_TOYS[name]} coordinates activate when they do in the flow at the same α",
            reference=_OURS,
            circuit="kq and vo",
            layers="the head",
            aggregate="max over coordinates of the relative difference of the rescaled times at which |q| passes 1e-3",
            needs=(name, "toy-flow-1e-8"),
            measure=times_as_in_the_flow,
            must_be=("≤", 0.05),
        )
        for name in ("toy-gd", "toy-sgd", "toy-adam")
    ),
    predicate(
        "beyond",
        "learns@toy-ceng501",
        "the toy of the CENG501 reproduction, with random targets, has something to learn",
        reference="CENG501, on [v2] Fig. 2",
        circuit="the loss",
        layers="",
        aggregate="the part of the loss that training removes",
        needs=("toy-ceng501",),
        measure=learned,
        must_be=("≥", 0.1),
    ),
    *(p for name, words in _NETWORKS.items() for p in low_rank("beyond", "kq", name, _OURS, words=words)),
    *(p for name, words in _NETWORKS.items() for p in gradual("beyond", "kq", name, _OURS, words=words)),
    *low_rank("beyond", "kq", _CENG501, "CENG501, on [v2] Fig. 5", words=", by that reproduction's recipe"),
    *gradual("beyond", "kq", _CENG501, "CENG501, on [v2] Fig. 4, 6", words=", by that reproduction's recipe"),
    vo_above_kq("beyond", _CENG501, "CENG501, on [v2] Fig. 4"),
)
