"""The prediction study, stage by stage. A stage is one block of the table, written when it is whole.

| stage | scalars |
|---|---|
| `pretrain` | `validation_loss` and `test_loss` on Python's library, before it was seen |
| `tune` | the same of the full fine-tune; `rank` by module, advised from its first steps, and `parameters` |
| `advised`, `uniform`, `adalora` | the same of an adapter; `learning_rate`, `parameters`; `rank` by module |

`step` of the table counts stages. All have `repetition`, `stage` (its position in `STAGES`) and `seconds`. Repetition 0
tries the learning rates, a stage each, and has no `test_loss`. What was cut off goes on behind its last whole stage;
only the weights after the first training are kept besides, while their repetition lasts.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from studies.prediction_spec import METHODS, Method, PredictionSpec
from studies.prediction_stages import (
    STAGES,
    StageRecord,
    chosen_rate,
    last_step,
    next_rate,
    read_stages,
    stage_rows,
    validation_losses,
)
from studies.prediction_tuning import (
    WithLoss,
    adapter_config,
    add_adapter,
    advised_ranks,
    direction_costs,
    fit,
    held_out_loss,
    module_ranks,
    network_from,
    num_parameters,
    recipe,
)
from torch import Tensor, nn

from rankrise.lab.data import LibraryText, load_dataset, load_library
from rankrise.lab.models import build_model
from rankrise.lab.training import Report, TrainingConfig
from rankrise.store import (
    Run,
    create_run,
    has_run,
    is_sealed,
    load_run,
    load_spec,
    load_tensors,
    resume_run,
    save_tensors,
)

if TYPE_CHECKING:
    from rankrise.lab.data import Dataset
    from rankrise.lab.training import Progress


def run_prediction(
    spec: PredictionSpec,
    folder: Path,
    *,
    root: Path | None,
    device: torch.device,
    progress: "Progress | None" = None,
) -> None:
    """Begin the run of a spec in `folder`, or go on with it, and seal it; a run that is done is left as it is.

    Raises:
        ValueError: The folder holds the run of another spec, or one of another version of Python's library.
    """
    if has_run(folder):
        _check_spec(spec, folder)
        if is_sealed(folder):
            return
    library = load_library(spec.data, spec.blocks, root=root)
    run = _open(spec, folder, library)
    try:
        stages = _Stages(spec, run, library, root=root, device=device, progress=progress)
        stages.run_all()
        run.seal()
    finally:
        run.close()
    for path in folder.glob("base-*.safetensors"):
        path.unlink()


def _check_spec(spec: PredictionSpec, folder: Path) -> None:
    if load_spec(folder).get("config", {}).get("spec") != spec.to_json():
        raise ValueError(f"{folder} must hold a run of this spec; it holds another. Choose another --out.")


def _open(spec: PredictionSpec, folder: Path, library: LibraryText) -> Run:
    record = library.to_json()
    if not has_run(folder):
        config = {"experiment": "lora-prediction", "spec": spec.to_json()}
        content = {"kind": "prediction", "config": config, "library": record}
        return create_run(folder, spec=content, initial={"seed": torch.tensor([spec.seed])})  # all follows from it
    found = load_spec(folder)["library"]
    if found["sha256"] != record["sha256"]:
        raise ValueError(
            f"Python's library must be the one that the run in {folder} began with, of Python {found['python']}; "
            f"it is another, of Python {record['python']}. Go on with that Python, or choose another --out."
        )
    return resume_run(folder, step=last_step(load_run(folder)))


@dataclass
class _Stages:
    """What the stages share."""

    spec: PredictionSpec
    run: Run
    library: LibraryText
    root: Path | None
    device: torch.device
    progress: "Progress | None"

    def __post_init__(self) -> None:
        self._done = read_stages(load_run(self.run.folder))
        self._clock = _Clock(self.progress, _num_steps(self.spec, self._done))
        self._validation = self.library.dataset("validation").to(self.device)
        self._test = self.library.dataset("test").to(self.device)

    @cached_property
    def _text(self) -> "Dataset":
        """Of the first training."""
        return load_dataset(replace(self.spec.data, seed=self.spec.seed), root=self.root).to(self.device)

    def run_all(self) -> None:
        """Every stage that is not in the table yet."""
        for repetition in range(self.spec.num_seeds + 1):
            self._pretrain(repetition)
            ranks = self._tune(repetition)
            for method in METHODS:
                for rate in self._rates(repetition, method):
                    self._adapt(repetition, method, rate, ranks)
            self._weights_path(repetition).unlink(missing_ok=True)

    def _rates(self, repetition: int, method: Method) -> Iterator[float]:
        """Of repetition 0 all that must be tried; of the others the one that it chose."""
        if repetition:
            yield chosen_rate(self._done, method)
            return
        while (rate := next_rate(validation_losses(self._done, method), self.spec.rates)) is not None:
            yield rate

    def _pretrain(self, repetition: int) -> None:
        spec, begun = self.spec, time.monotonic()
        if self._find(repetition, "pretrain"):
            return
        seed = spec.repetition_seed(repetition)
        network = build_model(spec.model, seed=seed).to(self.device)
        config = self._recipe(spec.pretrain_rate, repetition)
        self._fit(WithLoss(network, config, self.device), self._text, config, spec.pretrain_steps)
        save_tensors(self._weights_path(repetition), network.state_dict(), "base")
        self._write(repetition, "pretrain", begun, self._losses(network, config, repetition))

    def _tune(self, repetition: int) -> dict[str, int]:
        """The full fine-tune; returns the ranks that its first steps advise."""
        spec, begun = self.spec, time.monotonic()
        found = self._find(repetition, "tune")
        if found:
            return found.ranks
        base = self._weights(repetition)
        network = network_from(spec.model, base).to(self.device)
        config = self._recipe(spec.tune_rate, repetition)
        ranks: dict[str, int] = {}

        def after_step(step: int) -> None:
            if step == spec.advice_step:
                ranks.update(advised_ranks(network, base, spec.rank).ranks)

        model = WithLoss(network, config, self.device)
        self._fit(model, self._validation, config, spec.tune_steps, after_step)
        parameters = num_parameters(ranks, direction_costs(network))
        scalars = {**self._losses(network, config, repetition), "parameters": parameters}
        self._write(repetition, "tune", begun, scalars, ranks)
        return ranks

    def _adapt(self, repetition: int, method: Method, rate: float, advice: Mapping[str, int]) -> None:
        spec, begun = self.spec, time.monotonic()
        if self._find(repetition, method, rate):
            return
        if repetition == 0 and rate not in spec.rates:
            self._clock.add(spec.adapter_steps)
        network = network_from(spec.model, self._weights(repetition))
        settings = adapter_config(method, network, rank=spec.rank, advice=advice, num_steps=spec.adapter_steps)
        costs = direction_costs(network)
        config = self._recipe(rate, repetition)
        model = WithLoss(network, config, self.device)
        adapted = add_adapter(model, settings, seed=config.seed).to(self.device)
        prune = adapted.base_model.update_and_allocate if method == "adalora" else None
        self._fit(adapted, self._validation, config, spec.adapter_steps, prune)
        ranks = module_ranks(adapted)
        scalars = self._losses(network, config, repetition)
        scalars |= {"learning_rate": rate, "parameters": num_parameters(ranks, costs)}
        self._write(repetition, method, begun, scalars, ranks)

    def _recipe(self, rate: float, repetition: int) -> TrainingConfig:
        spec = self.spec
        seed = spec.repetition_seed(repetition)
        return recipe(rate, batch_size=spec.batch_size, precision=spec.precision, seed=seed)

    def _fit(
        self,
        model: nn.Module,
        dataset: "Dataset",
        config: TrainingConfig,
        num_steps: int,
        then: Callable[[int], None] | None = None,
    ) -> None:
        def after_step(step: int) -> None:
            if then is not None:
                then(step)
            self._clock.tick()

        fit(model, dataset, config, num_steps, device=self.device, after_step=after_step)

    def _losses(self, network: nn.Module, config: TrainingConfig, repetition: int) -> dict[str, float]:
        """Repetition 0 chooses and does not see the test files."""
        datasets = {"validation_loss": self._validation} | ({"test_loss": self._test} if repetition else {})
        return {name: held_out_loss(network, data, config, self.device) for name, data in datasets.items()}

    def _find(self, repetition: int, stage: str, rate: float | None = None) -> StageRecord | None:
        found = (r for r in self._done if (r.repetition, r.stage) == (repetition, stage))
        return next((r for r in found if rate is None or r.scalars["learning_rate"] == rate), None)

    def _write(
        self,
        repetition: int,
        stage: str,
        begun: float,
        scalars: Mapping[str, float],
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        timed = {**scalars, "seconds": time.monotonic() - begun}
        record = StageRecord(len(self._done), repetition, stage, timed, dict(ranks or {}))
        self.run.append(stage_rows(record), sync=True)
        self._done.append(record)

    def _weights_path(self, repetition: int) -> Path:
        return self.run.folder / f"base-{repetition}.safetensors"

    def _weights(self, repetition: int) -> dict[str, Tensor]:
        return load_tensors(self._weights_path(repetition))


def _num_steps(spec: PredictionSpec, done: list[StageRecord]) -> int:
    """Optimiser steps that are left, if no learning rate has to be added."""
    length = {"pretrain": spec.pretrain_steps, "tune": spec.tune_steps}
    num = {stage: spec.num_seeds + (len(spec.rates) if stage in METHODS else 1) for stage in STAGES}
    total = sum(length.get(stage, spec.adapter_steps) * n for stage, n in num.items())
    return max(1, total - sum(length.get(r.stage, spec.adapter_steps) for r in done))


class _Clock:
    """Counts optimiser steps of all stages for whoever shows progress, a few times a second."""

    def __init__(self, progress: "Progress | None", num_steps: int) -> None:
        self._progress, self._num_steps = progress, num_steps
        self._step, self._begun, self._last = 0, time.monotonic(), 0.0

    def add(self, num_steps: int) -> None:
        """More than was thought."""
        self._num_steps += num_steps

    def tick(self) -> None:
        """A step is done."""
        self._step += 1
        now = time.monotonic()
        if self._progress is None or now - self._last < 0.25:
            return
        self._last = now
        rate = self._step / max(now - self._begun, 1e-9)
        self._progress.update(Report(self._step, max(self._num_steps, self._step), 1, 1, rate=rate))
