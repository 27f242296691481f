"""Every kind of claim on tables with a known answer: it holds where it was planted, and a violation is reported."""

import math

import numpy as np
import pytest
from tests.lab.claims import gauged, planted

from rankrise.lab.claims import claims, evaluate_claims
from rankrise.lab.claims._evaluate import PREDICATES, _evaluate
from rankrise.lab.experiments.specs._questions import DECAYS
from rankrise.runs import RunData

TIMES = np.linspace(0, 1, 401)
DROPS = (0.2, 0.5, 0.8)
STEEP = planted.staircase(TIMES, DROPS, 0.02)
LINE = 1 - TIMES
POWERS = (1, 2, 4, 8, 16, 32)
LEVELS = ((0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0))
AT = (0.0, *DROPS)


def one_stages(root, **changes):
    return {"toy-stages": [planted.stages(root, **changes)]}


def one_toy(root, name, **changes):
    return {name: [planted.toy(root, name, **changes)]}


def one_network(root, name, **changes):
    return {name: [planted.network(root, name, **changes)]}


def flows(root, width, *, delay=lambda power: 0.0):
    """Flows at six α beside the limit; drops are `width(power)` long, activations `delay(power)` late."""
    found = {"toy-stages": [planted.stages(root, products=LEVELS, times=AT)]}
    for power in POWERS:
        late = delay(power)
        name = f"toy-flow-1e-{power}"
        losses = planted.staircase(TIMES, DROPS, width(power))
        activations = (*(drop + late for drop in DROPS), math.inf)
        run = planted.toy(root, name, losses=losses, activations=activations, log10_alpha=-float(power))
        found[name] = [run]
    return found


def two(root, first, second, other, **changes):
    """Two networks, the second with other ranks."""
    return {**one_network(root, first, **changes), **one_network(root, second, **other)}


def robust(root, assumption, final):
    name = f"toy-robustness-{assumption}"
    return {name: [planted.robustness(root, name, final=final)]}


def decays(root, products):
    """Algorithm 1 with three strengths of weight decay."""
    names = [f"toy-decay-stages-{decay:g}" for decay in DECAYS]
    return {
        name: [planted.named_stages(root, name, products=levels, times=AT[: len(levels)])]
        for name, levels in zip(names, products, strict=True)
    }


def targets(root, **changes):
    """Algorithm 1 on a teacher's targets, and on random ones."""
    return {
        "toy-teacher-targets": [planted.named_stages(root, "toy-teacher-targets", products=LEVELS, times=AT)],
        "toy-random-targets": [planted.named_stages(root, "toy-random-targets", **{"products": LEVELS, **changes})],
    }


def half(name):
    return (
        f"one-after-another@{name}",
        lambda root: one_toy(root, name, losses=STEEP, activations=(0.2, 0.5, 0.8, 0.9)),
        lambda root: one_toy(root, name, losses=STEEP, activations=(0.2, 0.2, 0.2, 0.3)),
    )


def plateaus(name):
    return (
        f"plateaus@{name}",
        lambda root: one_toy(root, name, losses=STEEP),
        lambda root: one_toy(root, name, losses=LINE),
    )


def with_flow(name):
    def runs(root, late):
        times = np.array((0.2, 0.5, 0.8, 0.9))
        return {
            **one_toy(root, name, losses=STEEP, activations=times * late),
            **one_toy(root, "toy-flow-1e-8", losses=STEEP, activations=times),
        }

    return f"times-as-in-the-flow@{name}", lambda root: runs(root, 1.02), lambda root: runs(root, 0.9)


def of_network(kind, circuit, good, bad, name="vit-cifar10"):
    """The change of one circuit of a network with ranks (layers, measurements)."""
    return (
        f"{kind}-{circuit}@{name}",
        lambda root: one_network(root, name, **{circuit: good}),
        lambda root: one_network(root, name, **{circuit: bad}),
    )


RISING, FALLING = ((1, 2, 3, 4), (1, 2, 3, 3.5)), ((1, 2, 3, 4), (3, 2, 1.5, 1))
JAGGED = ((1, 4, 1.2, 3.8, 1.1, 3.9, 1.05, 1.3), (1, 2, 3, 4, 5, 6, 7, 8))
SMOOTH = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 6, 7, 8))
LOW, HIGH = ((1, 2, 3), (1, 2, 3)), ((1, 2, 3), (1, 2, 9))  # init 10, random of 64 × 32: above 10
CASES = [
    ("one-joins-per-stage@toy-stages", one_stages, lambda r: one_stages(r, products=((0, 0), (1, 1)))),
    ("nothing-leaves@toy-stages", one_stages, lambda r: one_stages(r, products=((0, 0), (1, 0), (0, 1)))),
    ("unique-winner@toy-stages", one_stages, lambda r: one_stages(r, gap=0.0)),
    ("strict-minimum@toy-stages", one_stages, lambda r: one_stages(r, curvature=-0.1)),
    half("toy-flow-1e-32"),
    plateaus("toy-flow-1e-32"),
    plateaus("toy-flow-1e-2"),
    (
        "follows-the-limit@toy-flow-1e-32",
        lambda r: flows(r, lambda power: 0.02),
        lambda r: (
            flows(r, lambda power: 0.02)
            | {"toy-stages": [planted.stages(r / "late", products=LEVELS, times=(0, 0.4, 0.7, 0.95))]}
        ),
    ),
    ("transitions-vanish@toy-flow", lambda r: flows(r, lambda p: 0.3 / p), lambda r: flows(r, lambda p: 0.1)),
    (
        "stage-times-converge@toy-flow",
        lambda r: flows(r, lambda p: 0.02, delay=lambda p: 0.5 / p),
        lambda r: flows(r, lambda p: 0.02, delay=lambda p: 0.1),
    ),
    (
        "stage-times-near@toy-flow-1e-32",
        lambda r: flows(r, lambda p: 0.02, delay=lambda p: 0.01),
        lambda r: flows(r, lambda p: 0.02, delay=lambda p: 0.1),
    ),
    (
        "nothing-leaves@toy-flow-1e-32",
        lambda r: one_toy(r, "toy-flow-1e-32", losses=STEEP),
        lambda r: one_toy(r, "toy-flow-1e-32", losses=LINE[:4], products=[[0, 0], [1e-2, 0], [1e-4, 1], [-1e-2, 1]]),
    ),
    (
        "one-after-another@toy-matrix-flow",
        lambda r: {"toy-matrix-flow": [planted.matrix_flow(r, emerge=(0.1, 0.4, 0.7, 0.9))]},
        lambda r: {"toy-matrix-flow": [planted.matrix_flow(r, emerge=(0.1, 0.1, 0.2, 0.2))]},
    ),
    ("returns@toy-robustness-4.3", lambda r: robust(r, "4.3", (0, 0.009)), lambda r: robust(r, "4.3", (0, 0.012))),
    (
        "stays-returned@toy-robustness-4.3",
        lambda r: robust(r, "4.3", (0, 0.009)),
        lambda r: robust(r, "4.3", (0, 0.012)),
    ),
    ("same-end@toy-robustness-4.4", lambda r: robust(r, "4.4", (0, 0.01)), lambda r: robust(r, "4.4", (0.2, 0))),
    *(
        case
        for circuit in ("kq", "vo")
        for case in (
            of_network("lower-than-init", circuit, LOW, HIGH),
            of_network("lower-than-random", circuit, LOW, HIGH),
            of_network("rises", circuit, RISING, FALLING),
            of_network("rises-steadily", circuit, SMOOTH, JAGGED),
            of_network("deeper-is-higher", circuit, ((1, 2), (1, 3), (1, 4)), ((1, 4), (1, 3), (1, 2))),
            (
                f"each-smaller-scale-is-lower-{circuit}@vit-cifar10-scale",
                lambda r, c=circuit: planted.family(r, "vit-cifar10", ranks=(5, 4, 3, 2), circuit=c),
                lambda r, c=circuit: planted.family(r, "vit-cifar10", ranks=(5, 3, 4, 2), circuit=c),
            ),
            (
                f"smallest-scale-is-lower-{circuit}@vit-digits-scale",
                lambda r, c=circuit: planted.family(r, "vit-digits", ranks=(5, 6, 3, 4), circuit=c),
                lambda r, c=circuit: planted.family(r, "vit-digits", ranks=(5, 4, 3, (4, 5.1)), circuit=c),
            ),
            (
                f"more-classes-higher-{circuit}@vit-cifar100",
                lambda r, c=circuit: two(r, "vit-cifar100", "vit-cifar10", {c: ((1, 2), (1, 2))}),
                lambda r, c=circuit: two(r, "vit-cifar100", "vit-cifar10", {c: ((1, 8), (1, 8))}),
            ),
        )
    ),
    (
        "vo-above-kq@vit-cifar10",
        lambda r: one_network(r, "vit-cifar10"),
        lambda r: one_network(
            r, "vit-cifar10", kq=((1, 2, 3),) * 2, vo=((2, 3, 4), (3, 4, 1))
        ),  # the last layer, as in the real run
    ),
    (
        "steadier@vit-imagenet",
        lambda r: two(r, "vit-imagenet", "vit-cifar10", {"kq": JAGGED[:1]}, kq=SMOOTH),
        lambda r: two(r, "vit-imagenet", "vit-cifar10", {"kq": SMOOTH}, kq=JAGGED[:1]),
    ),
    (
        "small-scale-hurts@vit-cifar10-scale",
        lambda r: planted.family(r, "vit-cifar10", ranks=(5, 4, 3, 2)),
        lambda r: planted.family(r, "vit-cifar10", ranks=(5, 4, 3, 2), accuracies=(0.6, 0.5, 0.5, 0.595)),
    ),
    (
        "stages@toy-adam",
        lambda r: one_toy(r, "toy-adam", losses=STEEP, activations=(0.1, 0.1, 0.3, 0.4)),
        lambda r: one_toy(r, "toy-adam", losses=STEEP, activations=(0.01, 0.05, 0.1, 0.19)),
    ),
    half("toy-adam"),
    with_flow("toy-gd"),
    (
        "generic@toy-full-stages",
        lambda r: {"toy-full-stages": [planted.matrix_stages(r)]},
        lambda r: {"toy-full-stages": [planted.matrix_stages(r, minor=1e-9)]},
    ),
    (
        "times-as-predicted@toy-full-flow-1e-8",
        lambda r: {"toy-full-stages": [planted.matrix_stages(r)], "toy-full-flow-1e-8": [planted.full_flow(r)]},
        lambda r: {
            "toy-full-stages": [planted.matrix_stages(r, predicted=(0.3, 0.75))],
            "toy-full-flow-1e-8": [planted.full_flow(r)],
        },
    ),
    (
        "fewer-join@toy-decay-stages",
        lambda r: decays(r, (LEVELS, LEVELS[:3], LEVELS[:2])),
        lambda r: decays(r, (LEVELS[:2], LEVELS[:3], LEVELS[:2])),
    ),
    (
        "later@toy-random-targets",
        lambda r: targets(r, times=(0, 2, 5, 8)),
        lambda r: targets(r, times=AT),
    ),
    (
        "as-many-stages@toy-random-targets",
        lambda r: targets(r, times=AT),
        lambda r: targets(r, products=LEVELS[:2], times=AT[:2]),
    ),
    (
        "no-stages@toy-adam-phases",
        lambda r: {"toy-adam-phases": [planted.adam_phases(r, starts=[(1, 1, 2, 2), (1, 4, 7, 9)])]},
        lambda r: {"toy-adam-phases": [planted.adam_phases(r, starts=[(1, 4, 7, 9), (1, 4, 7, 9)])]},
    ),
    (
        "stages-return@toy-adam-phases",
        lambda r: {"toy-adam-phases": [planted.adam_phases(r, starts=[(1, 1, 2, 2), (1, 4, 7, 9)])]},
        lambda r: {"toy-adam-phases": [planted.adam_phases(r, starts=[(1, 1, 2, 2), (1, 1, 2, 2)])]},
    ),
    (
        "learns@toy-ceng501",
        lambda r: one_toy(r, "toy-ceng501", losses=STEEP),
        lambda r: one_toy(r, "toy-ceng501", losses=[50.0, 49.9]),
    ),
    of_network("lower-than-random", "kq", LOW, HIGH, name="vit-digits-random-labels"),
    of_network("rises", "kq", RISING, FALLING, name="vit-cifar10-sgd"),
    *gauged.CASES,
]


def verdict_of(claim, runs):
    """What `evaluate_claims` says of one claim; `test_one_claim_alone` compares."""
    data = {name: [RunData(folder) for folder in folders] for name, folders in runs.items()}
    return _evaluate(next(p for p in PREDICATES if p.claim.id == claim), data, {})


def test_one_claim_alone(tmp_path):
    runs = one_stages(tmp_path)
    for verdict in evaluate_claims(runs):
        assert verdict_of(verdict.claim.id, runs) == verdict


@pytest.mark.parametrize(("claim", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_both_directions(claim, good, bad, tmp_path):
    for build, verdict in ((good, "holds"), (bad, "fails")):
        found = verdict_of(claim, build(tmp_path / verdict))
        assert found.verdict == verdict, found
        assert found.value is not None
        assert found.runs
        assert found.n.startswith("1 seed")
        assert "One seed: no interval." in found.reason


def kind_of(claim):
    return claim.partition("@")[0]


def test_every_kind_of_claim_is_tested_in_both_directions():
    assert {kind_of(claim.id) for claim in claims()} == {kind_of(claim) for claim, _, _ in CASES}
