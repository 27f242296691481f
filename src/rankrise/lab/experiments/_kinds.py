"""What each kind of spec needs and does; another kind joins by registering these functions for its type."""

import time
from dataclasses import dataclass, replace
from functools import singledispatch
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankrise.lab.data import find_dataset, load_dataset
from rankrise.lab.experiments._prediction_spec import NO_PEFT, PredictionSpec
from rankrise.lab.experiments._spec import Spec, TrainingSpec, to_json
from rankrise.lab.experiments._theory_runs import initial_weights, record
from rankrise.lab.experiments._theory_specs import TheorySpec
from rankrise.lab.models import GPTConfig, ModelConfig, ToyHeadConfig, build_model
from rankrise.lab.training import Report, train
from rankrise.lab.training._processes import choose_device
from rankrise.store import create_run, has_run, resume_run
from rankrise.theory import Status

if TYPE_CHECKING:
    from rankrise.lab.data import Dataset
    from rankrise.lab.training import Progress

Ending = Literal["finished", "stopped", "diverged"]


@dataclass(frozen=True)
class Outcome:
    """How executing a spec ended, in a sentence for the user, and by which signal if it was stopped."""

    ending: Ending
    message: str = ""
    signal: int | None = None


@singledispatch
def missing_data(spec: Spec, root: Path | None) -> str:
    """Why the data of a spec is not at hand, in a sentence; empty when it is.

    Only looks whether files are there: what is wrong inside them is said when they are read.
    """
    raise TypeError(f"`spec` must be of a known kind; got {type(spec).__name__}.")


@singledispatch
def execute(
    spec: Spec,
    folder: Path,
    *,
    name: str,
    root: Path | None,
    device: str | None,
    progress: "Progress | None",
) -> Outcome:
    """Begin or go on with the run of a spec in its folder."""
    raise TypeError(f"`spec` must be of a known kind; got {type(spec).__name__}.")


@missing_data.register(TrainingSpec)
def _(spec: TrainingSpec, root: Path | None) -> str:
    try:
        find_dataset(spec.data, root=root)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        return str(error)
    return ""


@execute.register(TrainingSpec)
def _(
    spec: TrainingSpec,
    folder: Path,
    *,
    name: str,
    root: Path | None,
    device: str | None,
    progress: "Progress | None",
) -> Outcome:
    dataset = load_dataset(replace(spec.data, seed=spec.seed), root=root)
    check_fit(spec.model, dataset)
    result = train(
        build_model(spec.model, seed=spec.seed),
        dataset,
        replace(spec.training, seed=spec.seed),
        out=folder,
        device=device,
        spec={"experiment": name, "spec": to_json(spec)},
        progress=progress,
    )
    return Outcome(result.status, result.message, result.signal)


@missing_data.register(PredictionSpec)
def _(spec: PredictionSpec, root: Path | None) -> str:
    if find_spec("peft") is None:
        return NO_PEFT
    try:
        find_dataset(spec.data, root=root)
    except FileNotFoundError as error:
        return str(error)
    return ""


@execute.register(PredictionSpec)
def _(
    spec: PredictionSpec,
    folder: Path,
    *,
    name: str,
    root: Path | None,
    device: str | None,
    progress: "Progress | None",
) -> Outcome:
    """What was cut off goes on after its last whole stage."""
    from rankrise.lab.experiments._prediction_run import run_prediction

    config = {"experiment": name, "spec": to_json(spec)}
    run_prediction(spec, folder, config=config, root=root, device=choose_device(device), progress=progress)
    return Outcome("finished")


@missing_data.register(TheorySpec)
def _(spec: TheorySpec, root: Path | None) -> str:
    return ""  # made on the spot


@execute.register(TheorySpec)
def _(
    spec: TheorySpec,
    folder: Path,
    *,
    name: str,
    root: Path | None,
    device: str | None,
    progress: "Progress | None",
) -> Outcome:
    """Solved on the CPU; what was cut off starts over."""
    if has_run(folder):
        run = resume_run(folder, step=-1)
    else:
        config = {"experiment": name, "spec": to_json(spec)}
        run = create_run(folder, spec={"kind": "theory", "config": config}, initial=initial_weights(spec))
    try:
        recording = record(spec, _Ticker(progress))
        for block in recording.blocks:
            run.append(block)
        run.seal()
    finally:
        run.close()
    usual = (Status.FINISHED, Status.T_END)
    message = "" if recording.status in usual else recording.status.remedy
    return Outcome("diverged" if recording.status is Status.DIVERGED else "finished", message)


class _Ticker:
    """Hands the part that is done on to whoever shows progress, a few times a second."""

    def __init__(self, progress: "Progress | None") -> None:
        self._progress = progress
        self._begun = self._last = time.monotonic()

    def __call__(self, part: float) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._last < _SECONDS:
            return
        self._last = now
        step = round(part * _PARTS)
        self._progress.update(Report(step, _PARTS, 1, 1, rate=step / (now - self._begun)))


_PARTS = 1000  # of a theory run, as progress counts them
_SECONDS = 0.25


def check_fit(model: ModelConfig, dataset: "Dataset") -> None:
    """Refuse a model that cannot take the data: before anything is written, in the terms of the spec.

    Raises:
        ValueError: Other task, shape or number of classes.
    """
    for what, wanted, given in _sizes(model, dataset):
        is_enough = what in _AT_MOST and isinstance(given, int) and isinstance(wanted, int) and given <= wanted
        if given != wanted and not is_enough:
            raise ValueError(
                f"The model must fit the data; its {what} is {wanted} and the data's is {given}. "
                "Change `model` or `data` of the spec."
            )


_AT_MOST = ("context", "vocab_size", "num_classes")  # the model may have room to spare


def _sizes(model: ModelConfig, dataset: "Dataset") -> list[tuple[str, object, object]]:
    """What must agree: its name, the model's and the data's."""
    shape = dataset.input_shape
    if isinstance(model, ToyHeadConfig):
        return [("task", "regress", dataset.task), ("dim", model.dim, shape[-1])]
    if isinstance(model, GPTConfig):
        return [
            ("task", "next_token", dataset.task),
            ("context", model.context, shape[-1]),
            ("vocab_size", model.vocab_size, dataset.num_classes),
        ]
    return [
        ("task", "classify", dataset.task),
        ("image", (model.num_channels, model.image_size, model.image_size), tuple(shape)),
        ("num_classes", model.num_classes, dataset.num_classes),
    ]
