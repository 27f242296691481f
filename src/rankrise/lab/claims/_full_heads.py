"""Claims about small heads with full matrices: the flow, its prediction, and plain optimisers. Beyond the paper.

Bounds were set on seeds 0, 1 and 2 and committed before seeds 3, 4 and 5, which judge, were run.
"""

import functools

import numpy as np

from rankrise.lab.claims._claim import Finding, Predicate, listed, predicate
from rankrise.lab.claims._toy_curves import along, loss_curve
from rankrise.lab.claims._toy_numbers import (
    distance_from_limit,
    emerged_at_half_loss,
    smallest,
    transitions_vanish,
)
from rankrise.lab.experiments import family_members
from rankrise.runs import Array, NotMeasurable, RunData

FLOWS = tuple(member.name for member in family_members("toy-full-flow"))  # from the largest α to the smallest
_SMALLEST = FLOWS[-1]
_PASSED = 1e-3  # the singular value at which a direction counts as learned, as in `predict`
_PILOT = "the bound, on seeds 0, 1 and 2, which do not judge"
_claim = functools.partial(
    predicate,
    "full",
    about="full matrices",
    circuit="kq and vo",
    layers="the head",
    reference="beyond the paper",
    set_after=_PILOT,
)


def passing_times(run: RunData) -> Array:
    """When each singular value first is above 1e-3, (2d,), inf for never; its logarithm is interpolated."""
    sigma, (times, _) = along(run, "spectrum"), loss_curve(run)
    found = np.full(sigma.shape[1], np.inf)
    for i, path in enumerate(sigma.T):
        above = np.flatnonzero(path > _PASSED)
        if len(above) and above[0]:
            low, high = path[above[0] - 1 : above[0] + 1]
            part = (np.log(_PASSED) - np.log(max(low, 1e-300))) / (np.log(high) - np.log(max(low, 1e-300)))
            found[i] = times[above[0] - 1] + part * (times[above[0]] - times[above[0] - 1])
    return found


def distance_from_prediction(stages: RunData, flow: RunData) -> Finding:
    """The largest |t − predicted| over stages, over the time of the last one."""
    place = list(stages.spec["log10_alphas"]).index(flow.spec["log10_alpha"])
    rows, products = stages.rows("predicted_time", ""), stages.scalar("product").astype(int)
    predicted = rows["value"].to_numpy()[rows["head"].to_numpy() == place]
    if len(predicted) != len(products):
        raise NotMeasurable(f"{stages.source} predicts {len(predicted)} of {len(products)} stages: run it again.")
    ranks = [int((products[:k] == j).sum()) for k, j in enumerate(products)]
    width = along(flow, "spectrum").shape[1] // 2
    measured = passing_times(flow)[products * width + np.array(ranks, dtype=int)]
    gaps = np.abs(measured - predicted) / predicted.max()
    return Finding(float(gaps.max()), f"{len(gaps)} stages: {listed(gaps, '.4f')}.", {"stages": len(gaps)})


def distance_from_flow(run: RunData, flow: RunData) -> Finding:
    """The largest |t / t_flow − 1| over singular values that pass 1e-3 in either before the end."""
    end = min(loss_curve(run)[0][-1], loss_curve(flow)[0][-1])
    ours, theirs = (np.minimum(passing_times(found), end) for found in (run, flow))
    either = (ours < end) | (theirs < end)
    if not either.any():
        raise NotMeasurable("No singular value passes 1e-3.")
    gaps = np.abs(ours / theirs - 1)[either]
    return Finding(float(gaps.max()), f"{len(gaps)} singular values, mean {gaps.mean():.3f}.")


_IN_WORDS = "at α = 1e-256 every direction is learned within {value:.2%} of the whole time of when it is predicted"
_HALF = "of the singular values that pass 1% of the largest, the share that has at half of the loss's fall"

PREDICATES: tuple[Predicate, ...] = (
    _claim(
        "strict-minimum",
        "every stationary point of Algorithm 1 is a strict minimum on its active columns",
        of="toy-full-stages",
        aggregate="smallest eigenvalue of the Hessian on active columns modulo gauge, over stages",
        measure=smallest("curvature"),
        must_be=(">", 0),
        of_every_seed=True,
    ),
    _claim(
        "generic",
        "no leading minor of the overlaps between old and new directions vanishes",
        of="toy-full-stages",
        aggregate="the smallest leading minor, over stages",
        measure=smallest("smallest_minor"),
        must_be=("≥", 1e-3),
        of_every_seed=True,
    ),
    _claim(
        "follows-the-limit",
        "at α = 1e-256 the loss follows the staircase of Algorithm 1 for matrices",
        of=_SMALLEST,
        circuit="the loss",
        layers="",
        aggregate="time average of |loss − loss of the limit|, over the limit's fall",
        needs=("toy-full-stages", _SMALLEST),
        measure=distance_from_limit,
        must_be=("≤", 0.02),
    ),
    _claim(
        "transitions-vanish",
        "transitions are a vanishing fraction of time as α → 0",
        of="toy-full-flow",
        circuit="the loss",
        layers="",
        aggregate="share of the time at which the loss is more than 5% of its fall away from the limit's: "
        "at α = 1e-256 over that at 1e-8",
        needs=("toy-full-stages", *FLOWS),
        measure=transitions_vanish,
        must_be=("≤", 0.5),
    ),
    *(
        _claim(
            "times-as-predicted",
            f"at α = {name.removeprefix('toy-full-flow-')} every singular value passes 1e-3 when it is predicted to",
            of=name,
            aggregate="max of |t − predicted| over stages, over the last predicted time; flagged times too",
            needs=("toy-full-stages", name),
            measure=distance_from_prediction,
            must_be=("≤", bound),
            in_words=_IN_WORDS if name == _SMALLEST else "",
        )
        for name, bound in zip(FLOWS, (0.05, 0.01, 0.01), strict=True)
    ),
    *(
        _claim(
            "one-after-another",
            f"with full matrices, singular values are learned one after another{how}",
            of=name,
            aggregate=_HALF,
            measure=emerged_at_half_loss,
            must_be=("≤", 0.75),
        )
        for name, how in (
            (FLOWS[0], ", at α = 1e-8"),
            ("toy-full-gd", " by gradient descent"),
            ("toy-full-sgd", " by SGD"),
            ("toy-full-adam", " by Adam"),
        )
    ),
    *(
        _claim(
            "times-as-in-the-flow",
            f"{words} learns singular values when the flow does",
            of=name,
            aggregate="max of |t / t_flow − 1| over singular values that pass 1e-3 in either, t = η · step / log(1/α)",
            needs=(name, FLOWS[0]),
            measure=distance_from_flow,
            must_be=("≤", 0.15),
        )
        for name, words in (
            ("toy-full-gd", "gradient descent"),
            ("toy-full-sgd", "SGD"),
            ("toy-full-adam", "Adam"),
        )
    ),
)
