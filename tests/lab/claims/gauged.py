"""Runs of the gauges' experiments with a table of our choosing, and what must hold or fail on them."""

import numpy as np
from tests.lab.claims import planted

from rankrise.lab.claims._slingshots import PREDICATES
from rankrise.lab.experiments.kinds._toy_parts import curve_rows, path_rows
from rankrise.store import rows

SPIKES = (700.0, 1600.0, 2500.0)


def modular(root, name, *, num=3, trough=-7.2, warning=400, creep=0.0, test=0.01):
    """A loss with `num` spikes from troughs at 10^`trough`, and a norm that runs up to each and creeps between them."""
    steps = np.arange(0.0, 3000.0, 20.0)
    peaks = np.array(SPIKES[:num])
    norm = 10 + creep * steps
    loss = np.where(steps < 300, trough * steps / 300, trough - 1e-5 * steps)  # the lowest loss is before each run-up
    for peak in peaks:
        phase = np.clip((steps - peak + 300) / 300, 0, 1)
        loss = np.where((steps > peak - 300) & (steps <= peak), trough + 4 * phase**4, loss)
        fall = (steps > peak) & (steps <= peak + 100)
        loss = np.where(fall, trough + 4 - 4 * (steps - peak) / 100, loss)
        norm = norm + phase
    first = peaks[0] - warning if num else np.inf
    curves = {
        "loss": 10.0**loss,
        "last_norm": norm,
        "absorbed": np.where(steps >= first, 0.5, 0.0),
        "train_accuracy": (steps >= 300).astype(float),
        "test_accuracy": np.where(steps >= 300, test, 0.9),
    }
    spec = {"kind": "modular", "precision": "fp32", "p": 31}
    return planted.seal(root, name, 0, spec, [curve_rows(curves, steps=steps.astype(int))])


def heads(root, name, *, shares=(1.0, 0.02, 0.5), floor=0.0, accuracy=0.5):
    """Two heads; the share of the first goes through `shares` at steps 0, 8, …; n is e: entropies are shares."""
    blocks = []
    for n, share in enumerate(shares):
        entropy = np.array([[share, 0.9]])
        for quantity, values in (
            ("attention_entropy_share", entropy),
            ("attention_entropy", entropy),
            ("entropy_floor", np.full((1, 2), floor)),
            ("max_logit", np.full((1, 2), 50.0)),
        ):
            blocks.append(rows(8 * n, quantity, values, circuit="kq", layers=np.arange(1), heads=True))
        blocks.append(rows(8 * n, "test_accuracy", [accuracy]))
    return planted.seal(root, name, 0, {"kind": "training", "data": {"name": "digits"}}, blocks)


def lazy(root, name, *, factor=0.5413, power=-1.0, over=1.0, reverse=False):
    """Cases at α from 30 to 3000 and two times: the error is `factor` κ √R₀, times (α/30)^(power + 1)."""
    alpha, time = (values.ravel() for values in np.meshgrid([30.0, 300.0, 3000.0], [1.0, 10.0]))
    kappa = np.full(6, 1e-3) if name == "lazy-tight" else time / alpha
    error = factor * kappa * (alpha / 30) ** (power + 1) * np.where(time > 1, over, 1.0)
    curves = {
        "alpha": alpha,
        "time": time,
        "kappa": kappa,
        "initial_loss": np.ones(6),
        "lipschitz": np.ones(6),
        "error": error,
        "bound": 6 * kappa,
        "linearisation_error": (-1 if reverse else 1) * error,
    }
    return planted.seal(root, name, 0, {"kind": "lazy"}, [curve_rows(curves)])


def kernel(root, name, *, ranks=(5.0, 20.0), alignments=(0.2, 0.6), cosine=0.5, error=0.5):
    """A network whose kernel is read at the start, half way and at the end."""
    paths = {
        "kernel_effective_rank": (ranks[0], np.mean(ranks), ranks[1]),
        "kernel_stable_rank": (2.0, 3.0, 4.0),
        "kernel_alignment": (alignments[0], np.mean(alignments), alignments[1]),
        "kernel_cosine": (1.0, (1 + cosine) / 2, cosine),
    }
    blocks = [
        path_rows(quantity, np.array(path)[:, None], circuit="ntk", steps=[0, 60, 120])
        for quantity, path in paths.items()
    ]
    blocks.append(curve_rows({"linearisation_error": [error / 2, error]}, steps=[60, 120]))
    return planted.network(root, name, data="digits", more=blocks)


def two_networks(root, changed, plain):
    """Test accuracies of a network under σReparam and without."""
    names = (f"{HOT}-sigma", HOT)
    return {
        name: [planted.network(root, name, data="digits", accuracy=accuracy)]
        for name, accuracy in zip(names, (changed, plain), strict=True)
    }


def one(build, name, **changes):
    """What makes the runs of a claim that needs one experiment."""
    return lambda root: {name: [build(root, name, **changes)]}


def two(build, first, second, **others):
    """What makes the runs of a claim that compares two; `others` are what is different in the second."""
    return lambda root: {first: [build(root, first)], second: [build(root, second, **others)]}


def all_modular(test):
    return lambda root: {
        name: [modular(root, name, test=test)]
        for name in next(p.needs for p in PREDICATES if p.claim.id == "does-not-grok@modular")
    }


HOT = "vit-digits-hot"
LARGE, SMALL = "vit-digits-regime-10", "vit-digits-regime-0.1"
CASES = [
    ("slings@modular-adam", one(modular, "modular-adam"), one(modular, "modular-adam", num=1)),
    (
        "does-not-sling@modular-zero-sum",
        one(modular, "modular-zero-sum", num=0),
        one(modular, "modular-zero-sum"),
    ),
    (
        "begins-where-softmax-rounds@modular-adam",
        one(modular, "modular-adam"),
        one(modular, "modular-adam", trough=-5.0),
    ),
    ("absorption-warns@modular-adam", one(modular, "modular-adam"), one(modular, "modular-adam", warning=100)),
    ("norm-is-slung@modular-adam", one(modular, "modular-adam"), one(modular, "modular-adam", creep=1e-3)),
    ("does-not-grok@modular", all_modular(0.01), all_modular(0.5)),
    (f"collapses@{HOT}", one(heads, HOT), one(heads, HOT, shares=(1.0, 0.2, 0.5))),
    (
        f"does-not-collapse@{HOT}-sigma-qkv",
        one(heads, f"{HOT}-sigma-qkv", shares=(1.0, 0.2, 0.5)),
        one(heads, f"{HOT}-sigma-qkv"),
    ),
    (f"collapse-is-early@{HOT}", one(heads, HOT), one(heads, HOT, shares=(1.0, *[0.5] * 9, 0.02))),
    (f"stays-above-floor@{HOT}", one(heads, HOT), one(heads, HOT, floor=0.03)),
    (
        f"sigma-trains-better@{HOT}-sigma",
        lambda root: two_networks(root, 0.8, 0.5),
        lambda root: two_networks(root, 0.5, 0.8),
    ),
    (f"learns@{HOT}-warmup", one(heads, f"{HOT}-warmup"), one(heads, f"{HOT}-warmup", accuracy=0.1)),
    (
        f"fails@{HOT}-spectral",
        one(heads, f"{HOT}-spectral", accuracy=0.1),
        one(heads, f"{HOT}-spectral", accuracy=0.9),
    ),
    ("tight-constant@lazy-tight", one(lazy, "lazy-tight"), one(lazy, "lazy-tight", factor=0.6)),
    ("alpha-follows-time@lazy-tight", one(lazy, "lazy-tight"), one(lazy, "lazy-tight", over=1.02)),
    ("within-bound@lazy-tanh", one(lazy, "lazy-tanh"), one(lazy, "lazy-tanh", factor=6.1)),
    ("error-falls-with-alpha@lazy-tanh", one(lazy, "lazy-tanh"), one(lazy, "lazy-tanh", power=-0.9)),
    ("gauge-tracks-error@lazy-tanh", one(lazy, "lazy-tanh"), one(lazy, "lazy-tanh", reverse=True)),
    (
        "kernel-rank-rises@vit-digits-regime-1",
        one(kernel, "vit-digits-regime-1"),
        one(kernel, "vit-digits-regime-1", ranks=(5.0, 6.0)),
    ),
    (
        "kernel-aligns@vit-digits-regime-1",
        one(kernel, "vit-digits-regime-1"),
        one(kernel, "vit-digits-regime-1", alignments=(0.2, 0.3)),
    ),
    (
        "large-weights-keep-the-kernel@vit-digits-regime",
        two(kernel, LARGE, SMALL, cosine=0.1),
        two(kernel, LARGE, SMALL, cosine=0.6),
    ),
    (
        "large-weights-are-lazier@vit-digits-regime",
        two(kernel, LARGE, SMALL, error=0.9),
        two(kernel, LARGE, SMALL, error=0.4),
    ),
]
