"""The state of a training as a checkpoint, and back: weights, optimiser, random generators, and when all are saved."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._job import DataRecord, Job, differences, plain
from rankrise.lab.training._step import optimiser_tensors, restore_optimiser
from rankrise.lab.training._train import TrainingWarning
from rankrise.store import TrainingState, checkpoint_steps, prune_checkpoints, save_checkpoint

_RANDOM = "random/"  # the names of the generators' states among the tensors of an optimiser
_KEEP = 2
_REST = 50  # a pause after a save lasts this many times as long as the save, so that saving costs at most 2%


@dataclass
class Progression:
    """Where training stands, beside weights and optimiser."""

    step: int = 0
    totals: tuple[float, float] = (0.0, 0.0)  # sums of mean loss and number correct since the epoch began
    scores: dict[str, float] = field(default_factory=dict)  # the last of train_loss, train_accuracy, test_loss, …


def take_snapshot(job: Job, optimiser: torch.optim.Optimizer, progression: Progression) -> TrainingState:
    """Gather what is needed to go on; weights are not copied."""
    state = asdict(progression) | {"config": job.config.record(), "data": job.data, "conditions": job.conditions}
    tensors = optimiser_tensors(optimiser, job.model) | _random_state(job.device)
    return TrainingState(progression.step, _model_tensors(job.model), tensors, state)


def restore(
    checkpoint: TrainingState, model: nn.Module, optimiser: torch.optim.Optimizer, *, device: torch.device
) -> Progression:
    """Put a snapshot back into model and optimiser, with the state of the random generators.

    Raises:
        ValueError: The model has other tensors.
    """
    restore_model(checkpoint, model)
    tensors, random = _split_random_state(checkpoint.optimiser)
    restore_optimiser(optimiser, model, tensors)
    _restore_random_state(random, device)
    state = checkpoint.state
    loss, correct = state["totals"]
    return Progression(state["step"], (loss, correct), dict(state["scores"]))


def restore_model(checkpoint: TrainingState, model: nn.Module) -> None:
    """Put the weights of a checkpoint back into a model.

    Raises:
        ValueError: The model has other tensors.
    """
    tensors = _model_tensors(model)
    shapes, saved = ({k: tuple(t.shape) for k, t in part.items()} for part in (tensors, checkpoint.model))
    if shapes != saved:
        strange = sorted(set(shapes.items()) ^ set(saved.items()))[0][0]
        raise ValueError(
            f"The model must have the tensors of the checkpoint at step {checkpoint.step}; {strange!r} differs. "
            "Build it as before, or choose another folder."
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(checkpoint.model[name])


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and stored buffers by name, each once and not copied."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    stored = model.state_dict()
    return own | {name: buffer for name, buffer in model.named_buffers() if name in stored}


def are_finite(checkpoint: TrainingState) -> bool:
    """Return whether every weight is a finite number; this waits for the device once."""
    flags = [tensor.isfinite().all() for tensor in checkpoint.model.values() if tensor.is_floating_point()]
    return bool(torch.stack(flags).all())


def refuse_other_config(checkpoint: TrainingState, config: TrainingConfig, out: Path) -> None:
    """Refuse to go on by another recipe.

    Raises:
        ValueError: The recipe differs; the message says in what.
    """
    changed = differences(checkpoint.state.get("config", {}), plain(config.record()))
    if changed:
        raise ValueError(
            f"The run in {out} must go on by its own recipe; {changed}. Choose another folder, or the old values."
        )


def refuse_other_data(checkpoint: TrainingState, data: DataRecord, out: Path) -> None:
    """Refuse to go on with other data.

    Raises:
        ValueError: The data differs; the message says in what.
    """
    was = dict(checkpoint.state.get("data", data))
    now = dict(data)
    is_same = _are_close(was.pop("fingerprint", []), now.pop("fingerprint"))
    changed = differences(was, now) or ("" if is_same else "its samples are others")
    if changed:
        raise ValueError(
            f"The run in {out} must have the data it began with; {changed}. Restore the data, or choose another folder."
        )


def _are_close(was: list[float], now: list[float]) -> bool:
    """Return whether two fingerprints agree up to the rounding of another device or machine."""
    return len(was) == len(now) and all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6), was, now))


@contextlib.contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Run a block whose random draws leave no trace in the generators of PyTorch outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_random(device: torch.device, *, seed: int, rank: int, step: int) -> None:
    """Seed the generators of this process, from which a model draws (dropout)."""
    mixed = (seed * 1_000_003 + rank * 7919 + step) % 2**63
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(mixed)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of the generators, as tensors of bytes."""
    state = {f"{_RANDOM}cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state[f"{_RANDOM}cuda"] = torch.cuda.get_rng_state(device)
    return state


def _split_random_state(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of a checkpoint into those of the optimiser and the states of the generators."""
    random = {name: tensor for name, tensor in tensors.items() if name.startswith(_RANDOM)}
    return {name: tensor for name, tensor in tensors.items() if name not in random}, random


def _restore_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Put the generators back; a generator whose device was not there at the time of saving stays as it is."""
    if f"{_RANDOM}cpu" in state:
        torch.set_rng_state(state[f"{_RANDOM}cpu"])
    if device.type == "cuda" and f"{_RANDOM}cuda" in state:
        torch.cuda.set_rng_state(state[f"{_RANDOM}cuda"], device)


class Checkpointer:
    """Decides when to save, what to keep, and what to do when the disk refuses; this process holds the run's lock."""

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float,
        every: int | None,
        resumed: int | None,
        before: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Note where to save.

        Args:
            folder: The run directory.
            seconds: The least time between two saves.
            every: Steps between two saves, whatever the time.
            resumed: Step of the checkpoint that was loaded, which is known to be good.
            before: Puts on the disk what a checkpoint relies on, or raises OSError.
            clock: Tells the time in seconds.
        """
        self._folder = folder
        self._seconds = seconds
        self._every = every
        self._before = before
        self._clock = clock
        self._good = [] if resumed is None else [resumed]
        self._next = clock() + seconds
        self._has_warned = False

    def clear_leftovers(self) -> None:
        """Remove what processes that died while saving have left."""
        prune_checkpoints(self._folder, keep=checkpoint_steps(self._folder))

    @property
    def last_good(self) -> int | None:
        """Step of the newest checkpoint that is known to be whole."""
        return self._good[-1] if self._good else None

    def is_due(self, step: int) -> bool:
        """Whether to save now."""
        return self._clock() >= self._next or (self._every is not None and step % self._every == 0)

    def save(self, checkpoint: TrainingState) -> None:
        """Write a checkpoint, then drop all but the newest two good ones; a step that was saved is not saved again.

        Raises:
            OSError: The disk refuses the checkpoint; the checkpoints before it are still there.
        """
        if checkpoint.step == self.last_good:
            return
        begin = self._clock()
        try:
            self._before()
            save_checkpoint(self._folder, checkpoint)
            self._good.append(checkpoint.step)
            with contextlib.suppress(OSError):  # the checkpoint is saved; the next save removes what is left over
                prune_checkpoints(self._folder, keep=self._good[-_KEEP:])
        finally:
            now = self._clock()
            self._next = now + max(self._seconds, _REST * (now - begin))

    def try_to_save(self, checkpoint: TrainingState) -> None:
        """Save; if the disk refuses, warn once and go on."""
        try:
            self.save(checkpoint)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(self.trouble(checkpoint.step, error), TrainingWarning, stacklevel=2)

    def trouble(self, step: int, error: OSError) -> str:
        """Say in a sentence which checkpoint could not be saved, and why."""
        last = "there is none before it" if self.last_good is None else f"the last good one is of step {self.last_good}"
        return (
            f"The checkpoint of step {step} could not be saved in {self._folder} ({error.strerror or error}); {last}. "
            "Training goes on and tries again; make room."
        )
