"""A network trained on a data set, with its ranks tracked from step 0."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rankrise.lab.data import DataConfig, find_dataset
from rankrise.lab.experiments.kinds._kind import Assignment, ConfigField, Ended, Kind, Spec
from rankrise.lab.models import MODELS, ModelConfig
from rankrise.lab.training import TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from rankrise.lab.data import Dataset
    from rankrise.lab.training import Observe
    from rankrise.tracking import Probe, Schedule

ProbeName: TypeAlias = Literal["entropy", "laziness", "kernel"]
_CPU = (1e11, 0.025, 0.5)  # two cores: FLOP/s, seconds of a step that do not depend on its FLOP, seconds to begin
_GPU = (2e14, 0.002, 30.0)
_FEW, _MANY = 16, 96  # how many samples probes read
_SAMPLES = {  # training samples, by the folder of a data set or by its name
    "cifar10": 50_000,
    "cifar100": 50_000,
    "digits": 1_437,
    "tiny-imagenet-20": 2_000,
    "imagenet": 1_281_167,
    "wikitext-2": 2_400,
    "wikitext-103": 114_000,
}


@dataclass(frozen=True)
class TrainingSpec(Spec):
    """A network trained on a data set: everything its numbers depend on.

    The seed stands here and nowhere else. The initial weights, the order of the data and whatever the data set draws
    follow from it.

    Args:
        data: What the network learns from.
        model: The network.
        training: How the network is trained and tracked.
        seed: Seed of everything random.
        probes: What is measured beside the weights, on the first test samples: the "entropy" of attention and the
            "laziness" on 16 samples each, whenever ranks are measured; the "kernel" on 96 samples, at the start and
            whenever spectra are measured.

    Raises:
        ValueError: `data` or `training` brings a seed of its own.

    >>> from rankrise.lab.experiments import spec_hash
    >>> from rankrise.lab.models import ViTConfig
    >>> spec = TrainingSpec(DataConfig("digits"), ViTConfig(image_size=8, patch_size=2), TrainingConfig(epochs=3))
    >>> spec_hash(spec) == spec_hash(replace(spec, seed=1))
    False
    """

    data: DataConfig
    model: ModelConfig
    training: TrainingConfig
    seed: int = 0
    probes: tuple[ProbeName, ...] = field(default=(), metadata={"omit_default": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, part in (("data", self.data), ("training", self.training)):
            if getattr(part, "seed", 0) != 0:
                raise ValueError(
                    f"`{name}.seed` must be left at 0 in a spec; got {part.seed!r}. Set the spec's own `seed`."
                )


class TrainingKind(Kind[TrainingSpec]):
    """Trained by `rankrise.lab.training.train`, which resumes exactly."""

    name = "training"
    title = "a network trained on a data set"
    spec = TrainingSpec
    parts = {  # noqa: RUF012
        "data": ConfigField({"data": DataConfig}, omit=("seed",)),
        "model": ConfigField(MODELS),
        "training": ConfigField({"training": TrainingConfig}, omit=("seed",)),
    }
    can_resume = True
    is_network = True

    def data_name(self, spec: TrainingSpec) -> str:
        """The name of the data set."""
        return spec.data.name

    def data_folder(self, spec: TrainingSpec) -> str:
        """The folder of the data set where the spec names one, else the name of the data set."""
        return spec.data.path or spec.data.name

    def missing_data(self, spec: TrainingSpec, root: Path | None) -> str:
        """Looks only whether files are there; what is wrong inside them is said when they are read."""
        try:
            find_dataset(spec.data, root=root)
        except (FileNotFoundError, ModuleNotFoundError) as error:
            return str(error)
        return ""

    def execute(self, spec: TrainingSpec, assignment: Assignment) -> Ended:
        """Read the data, build the network and train it."""
        from rankrise.lab.data import load_dataset
        from rankrise.lab.models import build_model
        from rankrise.lab.training import train

        dataset = load_dataset(replace(spec.data, seed=spec.seed), root=assignment.data)
        check_fit(spec.model, dataset)
        result = train(
            build_model(spec.model, seed=spec.seed),
            dataset,
            replace(spec.training, seed=spec.seed),
            out=assignment.folder,
            device=assignment.device,
            spec=assignment.config,
            progress=assignment.progress,
            observe=_observe(spec, dataset),
        )
        return Ended(result.status, result.message, result.signal)

    def num_numbers(self, spec: TrainingSpec) -> int:
        """Weights, and data that is made on the spot; data from files is checked when it is read."""
        return spec.model.num_weights + spec.data.num_made

    def guess_seconds(self, spec: TrainingSpec, *, on_gpu: bool) -> float:
        """Steps times what a step takes: its FLOP at a usual speed, and a share that does not depend on the size."""
        rate, per_step, start = _GPU if on_gpu else _CPU
        data, batch_size = spec.data, spec.training.batch_size
        samples = data.num_train or data.samples or _SAMPLES.get(self.data_folder(spec), 1000)
        steps = spec.training.epochs * max(1, samples // batch_size)
        return start + steps * (per_step + batch_size * spec.model.flops(tokens=data.tokens) / rate)

    def with_epochs(self, spec: TrainingSpec, epochs: int) -> TrainingSpec:
        """The warm-up keeps its length, but takes at most half of the new epochs, or the share it had if that is more.

        >>> from rankrise.lab.experiments import experiments
        >>> quick = TrainingKind().with_epochs(experiments()["vit-cifar10"].paper, 10)
        >>> quick.training.epochs, quick.training.warmup_epochs
        (10, 5.0)
        """
        training = spec.training
        share = max(0.5, training.warmup_epochs / training.epochs)
        warmup = min(training.warmup_epochs, share * epochs)
        return replace(spec, training=replace(training, epochs=epochs, warmup_epochs=warmup))


def _observe(spec: TrainingSpec, dataset: "Dataset") -> "Observe":
    """Return the function that opens the tracker of a run with its probes.

    The state that the probes compare with later is kept in the folder of the run, so that a resumed run uses it too.
    """
    from rankrise.tracking import EntropyProbe, KernelProbe, LazinessProbe, RankTracker

    if not spec.probes:
        return RankTracker
    few, many = (next(dataset.test_batches(batch_size=num)) for num in (_FEW, _MANY))

    def observe(model: "nn.Module", out: Path, *, spectra: "Schedule", **options: Any) -> RankTracker:
        def with_start(step: int) -> bool:
            return step == 0 or spectra(step)

        build: dict[ProbeName, Callable[[], Probe]] = {
            "entropy": lambda: EntropyProbe(few.inputs),
            "laziness": lambda: LazinessProbe(few.inputs, start=out / "laziness.safetensors"),
            "kernel": lambda: KernelProbe(
                many.inputs, targets=many.targets, every=with_start, start=out / "kernel.safetensors"
            ),
        }
        return RankTracker(model, out, spectra=spectra, probes=[build[name]() for name in spec.probes], **options)

    return observe


def check_fit(model: ModelConfig, dataset: "Dataset") -> None:
    """Refuse a network that cannot take the data, before anything is written and in the words of the spec.

    Raises:
        ValueError: The task, the shape of a sample or the number of classes does not fit.
    """
    sizes = model.sizes(task=dataset.task, shape=dataset.input_shape, num_classes=dataset.num_classes)
    for size in sizes:
        if not size.fits:
            raise ValueError(
                f"The model must fit the data; its {size.what} is {size.wanted} and the data's is {size.given}. "
                "Change `model` or `data` of the spec."
            )
