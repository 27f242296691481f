"""Claims about slingshots: that they begin where the softmax rounds to 1, and what removes them. Beyond the paper.

Bounds were set on seeds 0, 1 and 2 at scale small and committed before seeds 3, 4 and 5, which judge, were run. The
runs learn addition modulo 31; at scale paper another network learns another table, for which nothing is known.
"""

import functools

import numpy as np

from rankrise.lab.claims._claim import Finding, Predicate, predicate
from rankrise.runs import NotMeasurable, RunData, read_together
from rankrise.signals import Slingshot, detect_slingshots

_PILOT = "the bound, on seeds 0, 1 and 2 at scale small, which do not judge"
_ROUNDS = {"fp32": 2.0**-24, "fp64": 2.0**-53}  # 1 minus less than this is 1
_ABSORBED = 0.1  # share of the samples whose softmax has rounded to 1 that counts as a warning
_claim = functools.partial(
    predicate,
    "gauges",
    about="slingshots",
    circuit="the loss and the last layer",
    layers="the last",
    reference="beyond the paper",
    set_after=_PILOT,
)


def slingshots_of(run: RunData) -> tuple[Slingshot, ...]:
    """The slingshots whose plateau is in the record."""
    steps, (loss, norm) = read_together(run, "loss", "last_norm")
    return detect_slingshots(steps, loss.ravel(), norm.ravel()).closed


def some_slingshots(run: RunData) -> tuple[Slingshot, ...]:
    """The slingshots of a run that has some."""
    found = slingshots_of(run)
    if not found:
        raise NotMeasurable(f"{run.source} has no slingshot, so that nothing can be said of where one begins.")
    return found


def number_of_slingshots(run: RunData) -> Finding:
    """How many slingshots there are."""
    found, least = slingshots_of(run), run.scalar("loss").min()
    peaks = ", ".join(f"{one.peak:.0f}" for one in found)
    return Finding(len(found), f"{f'Spikes at steps {peaks}' if found else 'No spike'}; least loss {least:.1e}.")


def distance_from_rounding(run: RunData) -> Finding:
    """The largest distance in decades of the loss at which a slingshot begins from where the softmax rounds to 1."""
    limit = _ROUNDS[run.spec.get("precision", "fp32")]
    begins = np.array([one.loss_from for one in some_slingshots(run)])
    listed = ", ".join(f"{loss:.1e}" for loss in begins)
    return Finding(
        float(np.abs(np.log10(begins / limit)).max()), f"They begin at {listed}; 1 − {limit:.1e} rounds to 1."
    )


def steps_of_warning(run: RunData) -> Finding:
    """How many steps before the first spike a tenth of the samples has a softmax of 1."""
    peak = some_slingshots(run)[0].peak
    steps, (absorbed, _) = read_together(run, "absorbed", "loss")
    warned = steps[absorbed.ravel() > _ABSORBED]
    if not len(warned):
        raise NotMeasurable(f"{run.source} has slingshots and never a tenth of its samples with a softmax of 1.")
    return Finding(float(peak - warned[0]), f"The warning comes at step {warned[0]:.0f}, the spike at {peak:.0f}.")


def growth_in_slingshots(run: RunData) -> Finding:
    """Of the growth of the last layer's norm after the first trough, the part from a trough to its spike."""
    found = some_slingshots(run)
    end = run.scalar("last_norm")[-1]
    grown = end - found[0].norm_from
    part = sum(one.norm_to - one.norm_from for one in found) / grown
    return Finding(float(part), f"{found[0].norm_from:.2f} → {end:.2f} from step {found[0].trough:.0f} on.")


def accuracy_when_fitted(*runs: RunData) -> Finding:
    """The best test accuracy of any of the runs once all training data are fitted."""
    best = []
    for run in runs:
        _, (fitted, test) = read_together(run, "train_accuracy", "test_accuracy")
        if fitted.max() < 1:
            raise NotMeasurable(f"{run.source} does not fit its training data.")
        best.append(test.ravel()[fitted.ravel() >= 1].max())
    return Finding(
        float(max(best)), f"{', '.join(f'{value:.3f}' for value in best)}; chance is {1 / runs[0].spec['p']:.3f}."
    )


_WITH = {"modular-adam": ("in float32", 2), "modular-fp64-tiny": ("in float64 with ε = 1e-22", 1)}
_WITHOUT = {
    "modular-zero-sum": "in float32 with the zero-sum gradient",
    "modular-loss64": "in float32 with the loss in float64",
    "modular-fp64": "in float64 with ε = 1e-8",
    "modular-fp64-tiny-zero-sum": "in float64 with ε = 1e-22 and the zero-sum gradient",
}
_NUMBER = "slingshots whose plateau is in the record (`signals.detect_slingshots`)"

PREDICATES: tuple[Predicate, ...] = (
    *(
        _claim(
            "slings",
            f"Adam slings {words}",
            of=name,
            aggregate=_NUMBER,
            measure=number_of_slingshots,
            must_be=("≥", least),
            of_every_seed=True,
        )
        for name, (words, least) in _WITH.items()
    ),
    *(
        _claim(
            "does-not-sling",
            f"Adam does not sling {words}",
            of=name,
            aggregate=_NUMBER,
            measure=number_of_slingshots,
            must_be=("≤", 0),
            of_every_seed=True,
            set_after="",  # none is what the words say
        )
        for name, words in _WITHOUT.items()
    ),
    *(
        _claim(
            "begins-where-softmax-rounds",
            f"slingshots begin where the softmax rounds to 1, {words}",
            of=name,
            aggregate="largest distance in decades of the loss at a trough from the largest x for which 1 − x is 1",
            measure=distance_from_rounding,
            must_be=("≤", 0.6),
            of_every_seed=True,
        )
        for name, (words, _) in _WITH.items()
    ),
    _claim(
        "absorption-warns",
        "samples whose softmax has rounded to 1 announce the first slingshot",
        of="modular-adam",
        aggregate="steps from the first measurement with more than a tenth of the samples at a softmax of 1 to the "
        "first spike",
        measure=steps_of_warning,
        must_be=("≥", 200),
        of_every_seed=True,
        in_words="a tenth of the samples has a softmax of 1 at least {value:.0f} steps before the first slingshot",
    ),
    _claim(
        "norm-is-slung",
        "the last layer grows in slingshots only",
        of="modular-adam",
        aggregate="growth of the norm from troughs to spikes, over all growth after the first trough",
        measure=growth_in_slingshots,
        must_be=("≥", 0.8),
    ),
    _claim(
        "does-not-grok",
        "no network that fits modular arithmetic generalises, with slingshots or without",
        of="modular",
        circuit="accuracy",
        layers="",
        aggregate="best test accuracy of any run after it has fitted its training data",
        needs=(*_WITH, *_WITHOUT),
        measure=accuracy_when_fitted,
        must_be=("≤", 0.1),
        of_every_seed=True,
    ),
)
