"""Verdicts: intervals over seeds, numbers that can be checked by hand, and what is missing said in a sentence."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.claims import planted
from tests.lab.claims.test_both_directions import STEEP, verdict_of

from rankrise.lab.claims import claims, describe_claims, evaluate_claims
from rankrise.lab.claims._evaluate import PREDICATES
from rankrise.lab.claims._single_networks import random_stable_rank
from rankrise.lab.experiments import NamedSpec, experiments, run_experiment, to_json, vary

PAGE = Path(__file__).parents[3] / "docs" / "claims.md"


def test_the_page_is_what_is_tested():
    """Remake it: python -c "from rankrise.lab.claims import *; print(describe_claims(), end='')"."""
    assert PAGE.read_text() == describe_claims()


def test_claims_are_named_once_and_say_everything():
    found = claims()
    assert len({claim.id for claim in found}) == len(found)
    for claim in found:
        assert claim.statement
        assert claim.reference
        assert claim.circuit
        assert claim.aggregate
        assert claim.threshold
        assert claim.layers or claim.circuit in ("the loss", "accuracy")


def test_claims_need_experiments_that_exist():
    known = experiments()
    assert {name for predicate in PREDICATES for name in predicate.needs} <= set(known)
    used = {name for predicate in PREDICATES for name in predicate.needs}
    without = {"modular-eps", "modular-sgd", "modular-transformer"}  # never near where a softmax rounds, or slow
    without |= {f"vit-digits-regime-{factor}" for factor in ("3", "0.3", "0.03")}  # for the figure
    assert set(known) - used == {"toy-flow-1e-1", "toy-matrix-head", *without}


def test_without_runs_nothing_is_tested():
    for verdict in evaluate_claims({}):
        assert verdict.verdict == "not tested"
        assert verdict.reason.startswith("No run of ")
        assert verdict.value is verdict.low is verdict.high is None


def test_interval_over_seeds(tmp_path):
    """Final ranks 3 ± 0.1 and 4, 5 in three seeds against 10 at the start: ratios 0.3, 0.4, 0.5."""
    folders = [planted.network(tmp_path, "vit-cifar10", kq=((1, 2, 3 + seed),), seed=seed) for seed in range(3)]
    found = verdict_of("lower-than-init-kq@vit-cifar10", {"vit-cifar10": folders})
    assert found.value == pytest.approx(0.4)
    half = 4.302653 * 0.1 / 3**0.5
    assert (found.low, found.high) == (pytest.approx(0.4 - half), pytest.approx(0.4 + half))
    assert found.verdict == "holds"
    assert found.n == "3 seeds × 2 heads × 1 layers, a spec of its own"
    assert found.is_open
    assert "The interval contains the bound: more seeds could turn the verdict." in found.reason
    assert found.runs == tuple(f"vit-cifar10/seed-{seed}" for seed in range(3))
    assert found.reason.startswith("Seeds 0, 1, 2: 0.3, 0.4, 0.5. Seed 2: Layer 0: 5.00; at the start 10.0.")


def test_value_output_is_reported_layer_by_layer(tmp_path):
    """The last layer falls from 4.6 to 2.5, as in the run of PAPER.md: claim 3 fails there and says so."""
    folder = planted.network(tmp_path, "vit-cifar10", vo=((4, 8, 12), (5, 4, 8), (4.6, 3, 2.5)))
    found = verdict_of("rises-vo@vit-cifar10", {"vit-cifar10": [folder]})
    assert found.verdict == "fails"
    assert found.value == pytest.approx(2.5 / 4.6)
    assert "Layers 0-2: 4.00 → 12.00, 5.00 → 8.00, 4.60 → 2.50." in found.reason


def test_comparisons_match_seeds(tmp_path):
    runs = {
        "vit-cifar100": [planted.network(tmp_path, "vit-cifar100", kq=((1, 6),), seed=seed) for seed in (0, 1)],
        "vit-cifar10": [planted.network(tmp_path, "vit-cifar10", kq=((1, 3),), seed=seed) for seed in (1, 2)],
    }
    found = verdict_of("more-classes-higher-kq@vit-cifar100", runs)
    assert (found.value, found.n) == (pytest.approx(2.0), "1 seed × 2 heads × 1 layers, a spec of its own")
    assert found.runs == ("vit-cifar100/seed-1", "vit-cifar10/seed-1")
    runs["vit-cifar10"] = runs["vit-cifar10"][1:]
    assert "No seed was run of all of vit-cifar100, vit-cifar10" in verdict_of(found.claim.id, runs).reason


def test_runs_of_several_scales_are_not_mixed(tmp_path):
    folders = [planted.network(tmp_path, "vit-cifar10", width=64 * (1 + seed), seed=seed) for seed in range(2)]
    found = verdict_of("rises-kq@vit-cifar10", {"vit-cifar10": folders})
    assert (found.verdict, found.runs) == ("not tested", ())
    assert "Runs of vit-cifar10 must differ in their seed only" in found.reason


def test_how_many_scales_are_enough(tmp_path):
    """An order needs three, a comparison two, and "too small" the smallest."""
    runs = planted.family(tmp_path, "vit-cifar10", ranks=(5, 4, 3, 2))
    for claim, fewest in (("each-smaller-scale-is-lower-kq", 3), ("smallest-scale-is-lower-kq", 2)):
        claim = f"{claim}@vit-cifar10-scale"
        some = {name: runs[name] for name in list(runs)[:fewest]}
        assert verdict_of(claim, some).verdict == "holds"
        some.popitem()
        assert verdict_of(claim, some).reason.startswith("No run of vit-cifar10-scale-0.")
    some = {name: runs[name] for name in list(runs)[:3]}
    assert verdict_of("small-scale-hurts@vit-cifar10-scale", some).reason.startswith(
        "No run of vit-cifar10-scale-0.03."
    )


@pytest.mark.parametrize(
    ("claim", "build", "reason"),
    [
        ("deeper-is-higher-kq@vit-digits", lambda r: planted.network(r, "vit-digits"), "an order needs three"),
        ("rises-kq@vit-digits", lambda r: planted.network(r, "vit-digits", num_measured=9), "9 measurements"),
        ("rises-kq@vit-digits", lambda r: planted.toy(r, "vit-digits", losses=STEEP), "has no `stable_rank` of kq"),
        (
            "plateaus@toy-flow-1e-32",
            lambda r: planted.toy(r, "toy-flow-1e-32", losses=1 - STEEP),
            "The loss does not fall",
        ),
        (
            "one-after-another@toy-flow-1e-32",
            lambda r: planted.toy(r, "toy-flow-1e-32", losses=STEEP, activations=(float("inf"),) * 2),
            "no coordinate becomes active",
        ),
    ],
)
def test_too_little_is_not_tested(claim, build, reason, tmp_path):
    found = verdict_of(claim, {claim.partition("@")[2]: [build(tmp_path)]})
    assert found.verdict == "not tested"
    assert reason in found.reason


def test_a_folder_that_is_no_run_of_an_experiment(tmp_path):
    from rankrise.store import create_run

    create_run(tmp_path / "x", spec={"mine": 1}, initial={}).seal()
    with pytest.raises(ValueError, match="must be the run of an experiment"):
        evaluate_claims({"toy-stages": [tmp_path / "x"]})


def test_verdicts_go_through_json(tmp_path):
    folder = planted.network(tmp_path, "vit-cifar10")
    for verdict in evaluate_claims({"vit-cifar10": [folder]}):
        record = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
        assert record["claim"]["id"] == verdict.claim.id


def test_random_change_of_the_papers_size():
    """A product of Gaussian factors 512 × 128: 42, as the heads at the start of the paper's network have."""
    assert random_stable_rank(512, 128) == pytest.approx(42, abs=1)


def test_initial_spectrum_from_the_weights(tmp_path):
    """A real run has no `initial_spectrum` in its table: it is read from the weights."""
    spec = experiments()["vit-digits"].smoke
    spec = replace(spec, training=replace(spec.training, epochs=3, track_every=1))  # 12 measurements
    report = run_experiment(NamedSpec("vit-digits", spec), out=tmp_path, device="cpu")
    found = verdict_of("lower-than-init-kq@vit-digits", {"vit-digits": [report.folder]})
    assert found.verdict in ("holds", "fails")
    assert 0 < found.value < 2


def test_what_stands_in_for_the_data_tests_nothing(tmp_path):
    folder = planted.network(tmp_path, "vit-cifar10", data="synthetic_images")
    for verdict in evaluate_claims({"vit-cifar10": [folder]}):
        assert verdict.verdict == "not tested"
    found = verdict_of("rises-kq@vit-cifar10", {"vit-cifar10": [folder]})
    assert "was trained on synthetic_images, which stands in for cifar10" in found.reason


def test_why_there_is_no_run_is_the_reason():
    found = {v.claim.id: v for v in evaluate_claims({}, absent={"vit-cifar100": "No data.", "vit-cifar10": "No data."})}
    assert found["rises-kq@vit-cifar100"].reason == "No data."
    assert found["more-classes-higher-kq@vit-cifar100"].reason == "No data."
    assert found["rises-kq@vit-digits"].reason.startswith("No run of vit-digits.")


@pytest.mark.parametrize(("epochs", "words"), [(None, ""), (60, ", 60 of 500 epochs")])
def test_a_run_of_no_registered_scale_says_so(epochs, words, tmp_path, monkeypatch):
    spec = to_json(vary(experiments()["vit-cifar10-augmented"].paper, epochs=epochs))
    seal = planted.seal
    monkeypatch.setattr(planted, "seal", lambda root, name, seed, _, blocks: seal(root, name, seed, spec, blocks))
    curves = [(2.0, 3.0)] * 6
    name = "vit-cifar10-augmented"
    folder = planted.network(tmp_path, name, kq=curves, num_heads=8)
    found = {v.claim.id: v for v in evaluate_claims({name: [folder]})}[f"rises-kq@{name}"]
    assert found.verdict == "holds"
    assert found.n == f"1 seed × 8 heads × 6 layers{words}"
    assert ("Run: 60 of 500 epochs." in found.reason) == bool(words)


def test_a_run_of_another_recipe_says_so(tmp_path):
    folder = planted.network(tmp_path, "vit-cifar10")
    found = {v.claim.id: v for v in evaluate_claims({"vit-cifar10": [folder]})}["rises-kq@vit-cifar10"]
    assert found.n.endswith(", a spec of its own")
