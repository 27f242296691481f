"""The recipe of a training: a frozen value made of JSON values, so that the spec of a run can hold it."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from rankrise._arguments import as_count, check_choice

Optimiser = Literal["adam", "adamw", "sgd"]
Schedule = Literal["cosine", "constant"]
Precision = Literal["fp32", "tf32", "bf16"]
Reparam = Literal["none", "sigma", "sigma_attention", "spectral_norm"]

_LARGE = 10**9  # bound of counts, which keeps the number of all steps of a run below 2⁶³
_COUNTS = {  # the smallest and the largest allowed value
    "epochs": (1, _LARGE),
    "batch_size": (1, _LARGE),
    "accumulate": (1, _LARGE),
    "track_every": (1, _LARGE),
    "evaluate_every": (1, _LARGE),
    "num_spectra": (0, 100_000),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True)
class TrainingConfig:
    """A recipe; the defaults are those of the paper for CIFAR, without its 15 epochs of warm-up.

    Args:
        epochs: Number of passes over the training data.
        batch_size: Number of samples of an optimiser step, over all processes.
        optimiser: "adam", "adamw" or "sgd".
        learning_rate: The highest learning rate, which the warm-up ends at.
        betas: The two decay rates of Adam and AdamW.
        momentum: The momentum of SGD.
        weight_decay: Applied to every parameter; decoupled for AdamW, added to the gradient otherwise.
        warmup_epochs: Length of the linear warm-up; need not be whole.
        schedule: "cosine" to zero over the length of the run, or "constant".
        precision: "fp32"; "tf32" for matrix products on a GPU in TF32; "bf16" for autocast, which keeps the weights and
            the optimiser in float32.
        accumulate: Number of pieces that a batch is cut into to save memory; their gradients are added up.
        clip_norm: Largest norm of the gradient; None does not clip.
        reparam: How weights are parametrised. "none": not at all. "sigma": by `rankrise.sigma_reparam`, so that every
            weight has a spectral norm that is learned. "sigma_attention": the same for queries, keys and values only.
            "spectral_norm": by the function of PyTorch, which fixes the spectral norm of every linear weight to 1.
        track_every: Steps between measurements of the ranks; step 0 and the last step are measured too.
        num_spectra: Number of measurements of whole spectra over the run; at most 100,000.
        evaluate_every: Epochs between tests; the model is tested after the last epoch too.
        seed: Seed of the order of the data, of the augmentation, and of what the model draws (dropout).

    Raises:
        ValueError: A value is out of its range; the message names it.

    >>> TrainingConfig(epochs=5).schedule
    'cosine'
    """

    epochs: int
    batch_size: int = 512
    optimiser: Optimiser = "adam"
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.0
    weight_decay: float = 0.0
    warmup_epochs: float = 0.0
    schedule: Schedule = "cosine"
    precision: Precision = "fp32"
    accumulate: int = 1
    clip_norm: float | None = None
    track_every: int = 100
    num_spectra: int = 20
    evaluate_every: int = 1
    seed: int = 0
    reparam: Reparam = field(default="none", metadata={"omit_default": True})

    def __post_init__(self) -> None:
        for name, (least, most) in _COUNTS.items():
            object.__setattr__(self, name, as_count(getattr(self, name), name, least=least, most=most))
        for name in ("learning_rate", "momentum", "weight_decay", "warmup_epochs"):
            _check_number(name, getattr(self, name))
        for name, kinds in (
            ("optimiser", Optimiser),
            ("schedule", Schedule),
            ("precision", Precision),
            ("reparam", Reparam),
        ):
            check_choice(name, getattr(self, name), get_args(kinds))
        if isinstance(self.betas, list):  # JSON has lists only
            object.__setattr__(self, "betas", tuple(self.betas))
        if not _are_betas(self.betas):
            raise ValueError(f"`betas` must be two numbers from 0 to below 1; got {self.betas!r}.")
        if self.clip_norm is not None and not (_is_number(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(f"`clip_norm` must be positive or None; got {self.clip_norm!r}.")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"`warmup_epochs` must be below `epochs`; got {self.warmup_epochs} and {self.epochs}. "
                "Train longer, or warm up for less."
            )
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"`accumulate` must divide `batch_size`; got {self.accumulate} and {self.batch_size}. "
                "Choose a divisor, so that all pieces weigh the same."
            )
        if self.momentum and self.optimiser != "sgd":
            raise ValueError(f"`momentum` must be 0 for {self.optimiser!r}; got {self.momentum}. Set `betas`.")

    def record(self) -> dict[str, Any]:
        """Return the recipe in the form in which runs store it.

        A field with `omit_default` was added after runs had been stored. It is left out while it has its default, so
        that the records of those runs stay equal to the recipe that they were made by.

        >>> "reparam" in TrainingConfig(epochs=1).record()
        False
        >>> TrainingConfig(epochs=1, reparam="sigma").record()["reparam"]
        'sigma'
        """
        later = {item.name: item.default for item in fields(self) if item.metadata.get("omit_default")}
        return {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}


def _check_number(name: str, value: object) -> None:
    if not (_is_number(value) and 0 <= value < float("inf")):  # type: ignore[operator]
        raise ValueError(f"`{name}` must be a number of at least 0; got {value!r}.")


def _are_betas(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_number(beta) and 0 <= beta < 1 for beta in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
