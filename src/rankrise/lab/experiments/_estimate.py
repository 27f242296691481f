"""How long runs take: measured where one like it was run here, else a guess that is corrected as runs end."""

import contextlib
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankrise.lab.experiments._prediction_spec import PredictionSpec
from rankrise.lab.experiments._spec import Spec, TrainingSpec, spec_hash
from rankrise.lab.experiments._theory_specs import DescentSpec, MatrixFlowSpec, RobustnessSpec, StagesSpec, TheorySpec
from rankrise.lab.models import GPTConfig, ToyHeadConfig, ViTConfig
from rankrise.store import replacing

NAME = "durations.json"
_CPU = (1e11, 0.025, 0.5)  # two cores: FLOP/s, seconds more for each step, seconds to begin
_GPU = (2e14, 0.002, 30.0)
_SAMPLES = {  # by data set, or by its folder
    "cifar10": 50_000,
    "cifar100": 50_000,
    "digits": 1_437,
    "tiny-imagenet-20": 2_000,
    "imagenet": 1_281_167,
    "wikitext-2": 2_400,
    "wikitext-103": 114_000,
}


@dataclass
class Estimator:
    """Seconds of runs.

    Args:
        on_gpu: Whether networks are trained on one.
        measured: Seconds by the hash of a spec with its seed at 0, of this machine.
    """

    on_gpu: bool = False
    measured: dict[str, float] = field(default_factory=dict)
    _ratios: dict[str, list[float]] = field(default_factory=dict)

    def seconds(self, spec: Spec) -> float:
        """Of a run from its start: of one like it, else a guess times how wrong guesses of this kind were."""
        known = self.measured.get(_key(spec))
        if known is not None:
            return known
        return guess_seconds(spec, on_gpu=self.on_gpu) * statistics.median(self._ratios.get(_kind(spec), [1.0]))

    def total(self, specs: Iterable[Spec]) -> float:
        """Of several runs."""
        return sum(self.seconds(spec) for spec in specs)

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take a whole run into account."""
        self.measured[_key(spec)] = seconds
        self._ratios.setdefault(_kind(spec), []).append(seconds / guess_seconds(spec, on_gpu=self.on_gpu))


def guess_seconds(spec: Spec, *, on_gpu: bool) -> float:
    """From the size of a run alone; right within a factor of three or so.

    >>> from rankrise.lab.experiments import experiments
    >>> 300 < guess_seconds(experiments()["vit-cifar10"].paper, on_gpu=True) < 1500
    True
    """
    if isinstance(spec, TrainingSpec):
        rate, per_step, start = _GPU if on_gpu else _CPU
        samples = spec.data.num_train or spec.data.samples or _SAMPLES.get(spec.data.path or spec.data.name, 1000)
        steps = spec.training.epochs * max(1, samples // spec.training.batch_size)
        return start + steps * (per_step + _flops(spec) / rate)
    if isinstance(spec, PredictionSpec):
        return _prediction_seconds(spec, on_gpu=on_gpu)
    assert isinstance(spec, TheorySpec)
    size = spec.task.samples * spec.task.tokens * spec.task.dim
    if isinstance(spec, DescentSpec):
        return 1 + spec.num_steps * (5e-4 + 4e-8 * size)
    flow = 1 + 6e-5 * size
    if isinstance(spec, RobustnessSpec):
        return flow * (1 + spec.trials / 4)
    if isinstance(spec, MatrixFlowSpec):
        return flow * spec.task.dim / 5
    return flow / 4 if isinstance(spec, StagesSpec) else flow


def _prediction_seconds(spec: PredictionSpec, *, on_gpu: bool) -> float:
    rate, per_step, start = (_GPU[0], 0.01, _GPU[2]) if on_gpu else _CPU  # eager: a step is launches
    whole = (1 + spec.num_seeds) * (spec.pretrain_steps + spec.tune_steps)
    adapters = 3 * (len(spec.rates) + spec.num_seeds) * spec.adapter_steps
    return start + (whole + adapters) * (per_step + _gpt_flops(spec.model, spec.batch_size) / rate)


def _gpt_flops(model: GPTConfig, batch_size: int) -> float:
    """Of a step: 6 for each weight and token."""
    layer = model.width * (4 * model.num_heads * model.head_dim + 2 * model.mlp_width)
    return 6.0 * (model.num_layers * layer + model.vocab_size * model.width) * model.context * batch_size


def _flops(spec: TrainingSpec) -> float:
    """Of a step: 6 for each weight and token."""
    model = spec.model
    if isinstance(model, ToyHeadConfig):
        return 24.0 * model.dim**2 * spec.training.batch_size * (spec.data.tokens or 10)
    layer = model.width * (4 * model.num_heads * model.head_dim + 2 * model.mlp_width)
    weights = model.num_layers * layer
    if isinstance(model, GPTConfig):
        return _gpt_flops(model, spec.training.batch_size)
    assert isinstance(model, ViTConfig)
    tokens = 1 + (model.image_size // model.patch_size) ** 2
    return 6.0 * weights * tokens * spec.training.batch_size


def read_durations(out: Path) -> dict[str, float]:
    """What runs took here before; empty when nothing is known, or the file is not readable."""
    try:
        record = json.loads((out / NAME).read_text(encoding="utf-8"))
        return {str(key): float(value) for key, value in record.items() if 0 < float(value) < math.inf}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_durations(out: Path, measured: dict[str, float]) -> None:
    """Keep them beside the runs, with those of other processes; a disk that refuses does not matter here."""
    known = {**read_durations(out), **measured}
    text = json.dumps({key: max(round(value, 2), 0.01) for key, value in sorted(known.items())}, indent=1)
    with contextlib.suppress(OSError), replacing(out / NAME, "durations") as temporary:
        temporary.write_text(text)


def _key(spec: Spec) -> str:
    return spec_hash(replace(spec, seed=0))


def _kind(spec: Spec) -> str:
    return type(spec).__name__
