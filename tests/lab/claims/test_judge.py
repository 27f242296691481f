"""From the numbers of seeds to a verdict: means, worst seeds, bounds met exactly, and numbers that are not finite."""

import math

import numpy as np
import pytest
from tests.lab.claims import planted
from tests.lab.claims.test_both_directions import LINE, verdict_of

from rankrise.lab.claims._claim import Finding, predicate
from rankrise.lab.claims._evaluate import PREDICATES, departure
from rankrise.lab.claims._judge import judge
from rankrise.lab.experiments import experiments, to_json, vary

OF_EVERY_SEED = {
    "one-joins-per-stage@toy-stages",
    "nothing-leaves@toy-stages",
    "nothing-leaves@toy-flow-1e-32",
    "unique-winner@toy-stages",
    "strict-minimum@toy-stages",
    "strict-minimum@toy-full-stages",
    "generic@toy-full-stages",
    "fewer-join@toy-decay-stages",
    "one-joins-per-stage@toy-layernorm-stages",
    "later@toy-random-targets",
}
OF_GAUGES = {
    *(f"{name}@modular-{run}" for name in ("slings", "begins-where-softmax-rounds") for run in ("adam", "fp64-tiny")),
    *(f"does-not-sling@modular-{run}" for run in ("zero-sum", "loss64", "fp64", "fp64-tiny-zero-sum")),
    "absorption-warns@modular-adam",
    "does-not-grok@modular",
    "collapses@vit-digits-hot",
    "collapses@vit-digits-hot-warmup",
    *(f"does-not-collapse@vit-digits-hot-{run}" for run in ("sigma", "sigma-qkv", "spectral")),
    "collapse-is-early@vit-digits-hot",
    "stays-above-floor@vit-digits-hot",
    "stays-above-floor@vit-digits-hot-sigma",
    "learns@vit-digits-hot-warmup",
    "within-bound@lazy-tight",
    "within-bound@lazy-tanh",
    "error-falls-with-alpha@lazy-tanh",
    "kernel-rank-rises@vit-digits-regime-1",
    "kernel-aligns@vit-digits-regime-1",
}
BEFORE_ANY_RUN = {claim for claim in OF_GAUGES if claim.startswith(("does-not-sling@", "within-bound@"))}


def judged(must_be, values, parts=None, **changes):
    """The verdict on numbers of seeds 0, 1, …"""
    claim = predicate(
        "1", "a@b", "", of="b", reference="", circuit="", layers="", aggregate="n", needs=(), measure=Finding,
        must_be=must_be, **changes,
    )  # fmt: skip
    parts = parts or [{}] * len(values)
    findings = [Finding(value, f"Detail {n}.", parts[n]) for n, value in enumerate(values)]
    return judge(claim, range(len(values)), findings, ())


def test_claims_that_something_is_always_so_say_how_they_are_judged():
    assert {p.claim.id for p in PREDICATES if p.of_every_seed} == OF_EVERY_SEED | OF_GAUGES
    for p in PREDICATES:
        assert ("; worst seed" in p.claim.aggregate) == p.of_every_seed
        after = "; worst seed — set after seeing the data: " in p.claim.aggregate
        assert after == (p.of_every_seed and p.claim.id not in BEFORE_ANY_RUN)


BREAKS = {
    "one-joins-per-stage@toy-stages": ({"products": ((0, 0), (1, 1))}, 2),
    "nothing-leaves@toy-stages": ({"products": ((0, 0), (1, 0), (0, 1))}, 1),
    "unique-winner@toy-stages": ({"gap": 0.0}, 0),
    "strict-minimum@toy-stages": ({"curvature": -1.0}, -1),
}


@pytest.mark.parametrize("claim", BREAKS)
def test_one_seed_is_enough_against_a_claim_of_every_seed(claim, tmp_path):
    """One of five: by the mean the last two would hold."""
    change, value = BREAKS[claim]
    good = [planted.stages(tmp_path, seed=seed, gap=9.0, curvature=9.0) for seed in range(4)]
    bad = planted.stages(tmp_path, seed=4, **({"gap": 9.0, "curvature": 9.0} | change))
    held, broken = (verdict_of(claim, {"toy-stages": folders}) for folders in (good, [*good, bad]))
    assert (held.verdict, broken.verdict, broken.value) == ("holds", "fails", value)
    for verdict in (held, broken):
        assert (verdict.low, verdict.high, verdict.is_open, verdict.interval) == (None, None, False, "")
        assert "The worst seed decides: no interval." in verdict.reason
    assert broken.n.startswith("5 seeds")
    assert " Seed 4: " in broken.reason


def test_one_flow_is_enough_against_nothing_leaves(tmp_path):
    name = "toy-flow-1e-32"
    stay, leave = ([[0, 0], [1e-2, 0], [last, 1], [last, 1]] for last in (1.0, 1e-4))
    runs = [planted.toy(tmp_path, name, losses=LINE[:4], products=stay, seed=seed) for seed in (0, 1)]
    assert verdict_of(f"nothing-leaves@{name}", {name: runs}).verdict == "holds"
    runs.append(planted.toy(tmp_path, name, losses=LINE[:4], products=leave, seed=2))
    found = verdict_of(f"nothing-leaves@{name}", {name: runs})
    assert (found.verdict, found.value, found.is_open) == ("fails", 1, False)
    assert found.reason.startswith("Seeds 0, 1, 2: 0, 0, 1. Seed 2: ")


@pytest.mark.parametrize(
    ("must_be", "values", "by_mean", "by_worst"),
    [
        ((">", 0), [0, 0.01, 0.02], "holds", "fails"),
        ((">", 0), [-1, 2, 2], "holds", "fails"),
        ((">", 0), [0.1, 2, 2], "holds", "holds"),
        (("≥", 0), [0, 0, 0], "holds", "holds"),
        (("≤", 1), [1, 1, 1], "holds", "holds"),
        (("≤", 1), [0, 0, 2], "holds", "fails"),
        (("<", 1), [0, 0, 1], "holds", "fails"),
        (("<", 1), [2, 2, 1], "fails", "fails"),
    ],
)
def test_mean_and_worst_seed(must_be, values, by_mean, by_worst):
    mean, worst = judged(must_be, values), judged(must_be, values, of_every_seed=True)
    assert (mean.verdict, mean.value) == (by_mean, pytest.approx(np.mean(values)))
    assert (worst.verdict, worst.value) == (by_worst, max(values) if must_be[0] in "≤<" else min(values))


@pytest.mark.parametrize(("must_be", "seed"), [((">", 1), 2), (("≤", 1), 1)])
def test_the_reason_has_every_seed_and_the_detail_of_the_worst(must_be, seed):
    found = judged(must_be, [1.02, 1.12, 0.844])
    assert found.reason.startswith(f"Seeds 0, 1, 2: 1.02, 1.12, 0.844. Seed {seed}: Detail {seed}.")
    assert judged(must_be, [1.02]).reason == "Detail 0. One seed: no interval."


@pytest.mark.parametrize("bound", [0.1, 0.2, 0.3, 0.7, 1.1, 1 / 3, 1e-3])
@pytest.mark.parametrize("n", range(2, 13))
def test_a_bound_that_is_met_exactly_is_met(bound, n):
    for sign, verdict in (("≤", "holds"), ("≥", "holds"), ("<", "fails"), (">", "fails")):
        found = judged((sign, bound), [bound] * n)
        assert (found.verdict, found.low, found.high, found.is_open) == (verdict, bound, bound, False)
    above = float(np.nextafter(bound, 2))
    assert judged(("≤", bound), [above] * n).verdict == "fails"  # and no violation is rounded away


def test_an_interval_in_words():
    assert judged(("≤", 0.2), [0.1, 0.2, 0.3]).interval == "-0.0484 to 0.448 ?"
    assert judged(("≤", 1), [0.1, 0.2, 0.3]).interval == "-0.0484 to 0.448"
    assert judged(("≤", 1), [0.1]).interval == ""


@pytest.mark.parametrize(
    ("must_be", "values", "seed"),
    [
        ((">", 0), [math.inf, 0.1], 0),
        ((">", 0), [0.1, -math.inf], 1),
        ((">", 0), [math.inf, -math.inf], 1),
        ((">", 0), [math.inf, math.nan], 0),
        (("≤", 0), [math.inf, math.inf], 0),
        (("≥", 0.5), [1.0, 1.1, math.inf], 2),
        (("≤", 1), [math.nan], 0),
    ],
)
def test_a_number_that_is_not_finite_tests_nothing(must_be, values, seed):
    found = judged(must_be, values)
    assert (found.verdict, found.value) == ("not tested", None)
    assert found.reason == f"Its number is not finite in seed {seed}: Detail {seed}."


def test_infinite_in_every_seed_on_the_side_of_the_claim():
    """As orders of convergence where stage times equal those of the limit."""
    found = judged(("≥", 0.5), [math.inf] * 3)
    assert (found.verdict, found.value, found.interval, found.is_open) == ("holds", math.inf, "", False)
    assert found.reason.endswith("Infinite in every seed: no interval.")
    assert judged(("≤", 0.5), [-math.inf]).verdict == "holds"


def test_a_winner_without_a_rival_does_not_hide_one_that_is_not_unique():
    """Gaps may be infinite: the worst seed is finite."""
    for worst, verdict in ((0.02, "holds"), (0.0, "fails")):
        found = judged((">", 0), [math.inf, worst], of_every_seed=True)
        assert (found.verdict, found.value) == (verdict, worst)
    assert judged((">", 0), [-math.inf, 1.0], of_every_seed=True).verdict == "not tested"
    assert judged((">", 0), [math.nan, 1.0], of_every_seed=True).verdict == "not tested"


@pytest.mark.parametrize(
    ("parts", "n"),
    [
        ([{}, {}], "2 seeds"),
        ([{"perturbations": 5}, {"perturbations": 3}], "2 seeds × 3 to 5 perturbations"),
        ([{"heads": 8, "layers": 6}] * 2, "2 seeds × 8 heads × 6 layers"),
        ([{}, {"perturbations": 3}], "2 seeds × 3 perturbations"),
        ([{"perturbations": 3}, {}], "2 seeds × 3 perturbations"),
    ],
)
def test_what_stands_behind_a_number(parts, n):
    assert judged(("≤", 1), [0.0, 0.0], parts).n == n


@pytest.mark.parametrize("name", ["vit-cifar10", "vit-digits"])
@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("key", ["track_every", "warmup_epochs", "evaluate_every", "num_spectra"])
def test_another_clock_is_not_another_length(name, scale, key):
    spec = to_json(experiments()[name].spec(scale))
    spec["training"][key] = 1 + (spec["training"][key] or 0)
    assert departure(name, spec) == "a spec of its own"


def test_another_length_is_said():
    known = experiments()["vit-cifar10"]
    assert departure("vit-cifar10", to_json(vary(known.paper, epochs=60))) == "60 of 500 epochs"
    assert "reparam" not in to_json(known.paper)["training"]  # as runs were recorded before there was such a field
    assert departure("vit-cifar10", to_json(vary(known.small, epochs=3))).startswith("scale small, 3 of ")


def test_a_run_of_reproduce_is_of_the_scale_that_was_asked_for():
    """The plan of smoke trains the networks of scale small on digits for 15 epochs, which a reader need not know."""
    for name in ("vit-digits", "vit-digits-scale-0.1", "vit-digits-relu"):
        assert departure(name, to_json(vary(experiments()[name].small, epochs=15, seed=2))) == "scale smoke, 15 epochs"
    assert departure("vit-digits", to_json(vary(experiments()["vit-digits"].small, epochs=14))).startswith(
        "scale small, 14 of "
    )
