"""Claims beyond the paper: whether its claims also hold with other optimisers, activations, losses, data and sizes."""

import numpy as np

from rankrise.lab.claims._claim import Finding, Predicate
from rankrise.lab.claims._single_networks import gradual, low_rank, vo_above_kq
from rankrise.lab.claims._toy import AT_HALF, ONE_TASK, SEED_4, task, toy_claim
from rankrise.lab.claims._toy_curves import activation_times, loss_curve
from rankrise.lab.claims._toy_numbers import active_at_half_loss, stages_of_coordinates
from rankrise.runs import NotMeasurable, RunData
from rankrise.view import CIRCUITS

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
    **{f"vit-digits-decay-{decay:g}": f", with AdamW and weight decay {decay:g}" for decay in (0.1, 1.0, 10.0)},
    "vit-digits-post-norm": ", with LayerNorm after attention and MLP",
    "vit-digits-no-norm": ", without LayerNorm",
    "vit-digits-sigma": ", under σReparam",
    "vit-digits-sgd-sigma": ", with SGD under σReparam",
    "vit-cifar10-augmented": ", with augmentation",
    **{f"vit-cifar10-scale-{factor}": f", at initial scale {factor}" for factor in ("0.3", "0.1", "0.03")},
}
_CENG501 = "vit-cifar10-ceng501"
_RECIPE = ", by that reproduction's recipe"


def times_as_in_the_flow(run: RunData, flow: RunData) -> Finding:
    """The largest relative difference of activation times, over coordinates that are active in either run.

    A coordinate that is active in one run only counts as becoming active at the end of the other.
    """
    end = min(run.scalar("time")[-1], flow.scalar("time")[-1])
    ours, theirs = (np.minimum(activation_times(one), end) for one in (run, flow))
    either = (ours < end) | (theirs < end)
    if not either.any() or not theirs.min() > 0:
        raise NotMeasurable("No coordinate activates, or one is active from the start.")
    gaps = np.abs(ours[either] / theirs[either] - 1)
    return Finding(float(gaps.max()), f"{int(either.sum())} coordinates, mean {gaps.mean():.3f}.")


def learned(run: RunData) -> Finding:
    """The part of the loss that training removes."""
    _, losses = loss_curve(run)
    active = int(np.isfinite(activation_times(run)).sum())
    if not active:
        raise NotMeasurable(f"{run.source} ends before a coordinate becomes active: run it for longer.")
    return Finding(
        float(1 - losses[-1] / losses[0]), f"Loss {losses[0]:.4g} → {losses[-1]:.4g}; {active} coordinates are active."
    )


PREDICATES: tuple[Predicate, ...] = (
    *(
        toy_claim(
            "beyond",
            "stages",
            f"the toy has stages with {words}",
            of=name,
            reference=_OURS,
            aggregate="coordinates that pass 1e-3 after at least another 5% of the fall of the loss, the first counted",
            measure=stages_of_coordinates,
            must_be=("≥", 2),
            set_after="the number, as that of drops that `detect_stages` finds depended on the grid",
        )
        for name, words in _TOYS.items()
    ),
    *(
        toy_claim(
            "beyond",
            "one-after-another",
            f"coordinates are learned one after another with {words}",
            of=name,
            reference=_OURS,
            aggregate=AT_HALF,
            measure=active_at_half_loss,
            must_be=("≤", 0.75),
            set_after=SEED_4,
        )
        for name, words in _TOYS.items()
    ),
    *(
        toy_claim(
            "beyond",
            "times-as-in-the-flow",
            f"with {_TOYS[name]} coordinates activate when they do in the flow at the same α",
            of=name,
            reference=_OURS,
            aggregate="max over coordinates that are active in either, of the relative difference of the rescaled "
            "times at which |q| passes 1e-3; the end where it does not",
            needs=(name, "toy-flow-1e-8"),
            measure=times_as_in_the_flow,
            must_be=("≤", 0.05),
            shared=task,
            one_of=ONE_TASK,
            set_after=SEED_4,
        )
        for name in ("toy-gd", "toy-sgd", "toy-adam")
    ),
    toy_claim(
        "beyond",
        "learns",
        "the toy of the CENG501 reproduction, with random targets, has something to learn",
        of="toy-ceng501",
        reference="CENG501, on [v2] Fig. 2",
        circuit="the loss",
        layers="",
        aggregate="the part of the loss that training removes",
        measure=learned,
        must_be=("≥", 0.1),
        set_after=SEED_4,
    ),
    *(
        p
        for make in (low_rank, gradual)
        for name, words in _NETWORKS.items()
        for circuit in CIRCUITS
        for p in make("beyond", circuit, name, _OURS, words=words)
    ),
    *(
        p
        for make, figure in ((low_rank, "5"), (gradual, "4, 6"))
        for circuit in CIRCUITS
        for p in make("beyond", circuit, _CENG501, f"CENG501, on [v2] Fig. {figure}", words=_RECIPE)
    ),
    vo_above_kq("beyond", _CENG501, "CENG501, on [v2] Fig. 4"),
)
