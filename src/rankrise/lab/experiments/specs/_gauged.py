"""Experiments of the gauges: slingshots, lazy networks, and digits too hot, otherwise normalised, decayed or scaled."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from rankrise.lab.experiments._spec import Experiment
from rankrise.lab.experiments.kinds import LazySpec, ModularSpec, TrainingSpec
from rankrise.lab.experiments.specs._paper_networks import DIGITS_PAPER, DIGITS_SMALL, DIGITS_SMOKE, varied

# Arithmetic modulo p: slingshots

_MODULAR = (
    ModularSpec(p=7, width=16, num_steps=200, every=5),
    ModularSpec(num_steps=5000),
    ModularSpec(  # the task, the split and the optimiser in which grokking was first reported
        p=97, operation="divide", train_share=0.5, network="transformer", width=128, batch_size=512, num_steps=100_000,
        every=100,
    ),
)  # fmt: skip
_TINY = 1e-22  # ε below the gradients of a float64 network whose softmax rounds to 1
_MODULAR_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "modular-adam": ("Adam in float32", {}),
    "modular-zero-sum": ("Adam in float32, zero-sum gradient", {"loss": "zero_sum"}),
    "modular-loss64": ("Adam in float32, loss in float64", {"loss": "fp64"}),
    "modular-fp64": ("Adam in float64", {"precision": "fp64"}),
    "modular-fp64-tiny": ("Adam in float64 with ε = 1e-22", {"precision": "fp64", "epsilon": _TINY}),
    "modular-fp64-tiny-zero-sum": (
        "Adam in float64, ε = 1e-22, zero-sum",
        {"precision": "fp64", "epsilon": _TINY, "loss": "zero_sum"},
    ),
    "modular-eps": ("Adam in float32 with ε = 1e-5", {"epsilon": 1e-5}),
    "modular-sgd": ("SGD with momentum in float32", {"optimiser": "sgd", "learning_rate": 0.5}),
}
_LONGER = {"modular-fp64-tiny": 9000, "modular-fp64-tiny-zero-sum": 9000}  # steps at scale small


def _modular(name: str) -> Experiment:
    words, changes = _MODULAR_CHANGES[name]
    smoke, small, paper = (replace(spec, **changes) for spec in _MODULAR)
    return Experiment(
        name,
        f"Arithmetic modulo p: {words}",
        "whether loss and norm of the last layer go through slingshots, and test accuracy with them; addition modulo "
        "31 by an MLP, at scale paper division modulo 97 by a transformer",
        smoke=smoke,
        small=replace(small, num_steps=_LONGER.get(name, small.num_steps)),
        paper=paper,
        family="modular",
    )


_MODULAR_TRANSFORMER = Experiment(
    "modular-transformer",
    "Arithmetic modulo p by a transformer of one block",
    "whether test accuracy rises at a slingshot; subtraction modulo 31, at scale paper division modulo 97",
    smoke=replace(_MODULAR[0], operation="subtract", network="transformer"),
    small=replace(_MODULAR[1], operation="subtract", train_share=0.85, network="transformer", width=32, num_steps=3000),
    paper=_MODULAR[2],
    family="modular",
)


# Lazy networks

_TIGHT = LazySpec(network="tight", kappas=(1e-3,), ends=(1.0, 10.0, 100.0))
_TANH = LazySpec(network="tanh", alphas=(30.0, 100.0, 300.0), ends=(1.0, 10.0, 30.0))
_LAZY = (
    Experiment(
        "lazy-tight",
        "The scalar model whose distance from linear meets its bound",
        "the error over κ √R₀, which is 4e⁻² for small κ whatever T, L and R₀ are",
        smoke=_TIGHT,
        small=replace(_TIGHT, kappas=(1e-3, 1e-2, 1e-1, 1.0, 10.0), lipschitz=(1.0, 10.0), initial_losses=(1.0, 100.0)),
        paper=replace(
            _TIGHT,
            kappas=tuple(10.0**power for power in range(-4, 3)),
            ends=(1.0, 3.0, 10.0, 30.0, 100.0),
            lipschitz=(0.1, 1.0, 10.0),
            initial_losses=(0.01, 1.0, 100.0),
        ),
    ),
    Experiment(
        "lazy-tanh",
        "A tanh network beside its linearisation, at several α",
        "the error of the linearisation, below the bound and falling as 1/α",
        smoke=_TANH,
        small=replace(
            _TANH,
            alphas=(3.0, 10.0, 30.0, 100.0, 300.0),
            ends=(1.0, 3.0, 10.0, 30.0, 100.0),
            samples=30,
            dim=6,
            width=64,
        ),
        paper=replace(
            _TANH,
            alphas=(3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
            ends=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
            samples=60,
            dim=10,
            width=256,
        ),
    ),
)


# Digits: hot, decayed, normalised elsewhere, under σReparam, and at initial scales from 10 to 0.03

_BASES = (DIGITS_SMOKE, DIGITS_SMALL, DIGITS_PAPER)


def _hot(spec: TrainingSpec, **training: Any) -> TrainingSpec:
    """Thirty times the rate of the registry's digits, constant and from the first step, for about 250 steps."""
    hot = {"learning_rate": 30 * spec.training.learning_rate, "schedule": "constant", "warmup_epochs": 0}
    length = {"epochs": _hot_epochs(spec), "track_every": min(8, spec.training.track_every)}
    return replace(varied(spec, training=hot | length | training), probes=("entropy",))


def _hot_epochs(spec: TrainingSpec) -> int:
    return min(spec.training.epochs, 250 * spec.training.batch_size // 1437)


def _changed(**parts: Mapping[str, Any]) -> Callable[[TrainingSpec], TrainingSpec]:
    return lambda spec: varied(spec, **parts)


def _regime(factor: float) -> Callable[[TrainingSpec], TrainingSpec]:
    return lambda spec: replace(varied(spec, model={"init_scale": factor}), probes=("laziness", "kernel"))


def _sgd_sigma(spec: TrainingSpec) -> TrainingSpec:
    """SGD as in `vit-digits-sgd`, under σReparam."""
    rate = min(1000 * spec.training.learning_rate, 0.1)
    sgd = {"optimiser": "sgd", "learning_rate": rate, "momentum": 0.9, "reparam": "sigma"}
    return varied(spec, training=sgd)


_BARE = {"warmup_epochs": 0}
_HEADS = "whether heads come to look at one token only, and whether training succeeds"
_RANKS = "test accuracy and the stable rank of the change, beside those of vit-digits"
_Change: TypeAlias = tuple[str, str, Callable[[TrainingSpec], TrainingSpec]]  # in words, what it shows, the change
_HOT: dict[str, _Change] = {
    "hot": ("at thirty times the rate", _HEADS, _hot),
    "hot-sigma": ("at thirty times the rate, under σReparam", _HEADS, lambda s: _hot(s, reparam="sigma")),
    "hot-sigma-qkv": (
        "at thirty times the rate, σReparam of q, k and v",
        _HEADS,
        lambda s: _hot(s, reparam="sigma_attention"),
    ),
    "hot-spectral": (
        "at thirty times the rate, torch's spectral norm",
        _HEADS,
        lambda s: _hot(s, reparam="spectral_norm"),
    ),
    "hot-warmup": (
        "at thirty times the rate after a warm-up",
        _HEADS,
        lambda s: _hot(s, warmup_epochs=0.4 * _hot_epochs(s)),
    ),
}
_OTHERWISE: dict[str, _Change] = {
    **{
        f"decay-{decay:g}": (
            f"with AdamW and weight decay {decay:g}",
            _RANKS,
            _changed(training={"optimiser": "adamw", "weight_decay": decay}),
        )
        for decay in (0.1, 1.0, 10.0)
    },
    "post-norm": ("with LayerNorm after attention and MLP", _RANKS, _changed(model={"norm": "post"})),
    "no-norm": ("without LayerNorm", _RANKS, _changed(model={"norm": "none"})),
    "bare": ("without LayerNorm and warm-up", _RANKS, _changed(model={"norm": "none"}, training=_BARE)),
    "bare-sigma": (
        "without LayerNorm and warm-up, under σReparam",
        _RANKS,
        _changed(model={"norm": "none"}, training={**_BARE, "reparam": "sigma"}),
    ),
    "sigma": ("under σReparam", _RANKS, _changed(training={"reparam": "sigma"})),
    "sgd-sigma": ("with SGD, under σReparam", _RANKS, _sgd_sigma),
    **{
        f"regime-{factor:g}": (
            f"from weights × {factor:g}, with laziness and kernel",
            "where the network leaves its linearisation, and what ranks of weights and kernel do there",
            _regime(factor),
        )
        for factor in (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
    },
}


def _of_digits(name: str, words: str, shows: str, change: Callable[[TrainingSpec], TrainingSpec]) -> Experiment:
    smoke, small, paper = map(change, _BASES)
    return Experiment(
        f"vit-digits-{name}",
        f"vit-digits {words}",
        shows,
        smoke=smoke,
        small=small,
        paper=paper,
        variant_of="vit-digits",
    )


HOT_DIGITS = tuple(_of_digits(name, *how) for name, how in _HOT.items())
OTHER_DIGITS = tuple(_of_digits(name, *how) for name, how in _OTHERWISE.items())
GAUGED = (*map(_modular, _MODULAR_CHANGES), _MODULAR_TRANSFORMER, *_LAZY, *HOT_DIGITS, *OTHER_DIGITS)
