"""Begin a run, go on with the one in the folder from the newest checkpoint that is whole, or read a finished one."""

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from rankrise.gauges import sigma_reparam
from rankrise.heads import canonical_names, named_weights, resolve
from rankrise.lab.training._config import TrainingConfig
from rankrise.lab.training._job import Job, check_batch_size, check_fit, differences
from rankrise.lab.training._loop import Loop
from rankrise.lab.training._snapshot import (
    Progression,
    refuse_other_config,
    refuse_other_data,
    restore,
    restore_model,
    seed_random,
)
from rankrise.lab.training._step import build_optimiser
from rankrise.lab.training._train import Observer, TrainingResult, TrainingWarning
from rankrise.store import (
    TrainingState,
    find_checkpoint,
    has_run,
    is_sealed,
    load_checkpoint,
    load_initial,
    load_run,
    load_spec,
)

_SCORES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def run(job: Job) -> TrainingResult:
    """Begin or resume the job, train, and seal; see `train`."""
    check_batch_size(job)
    _reparametrise(job.model, job.config)
    if has_run(job.out) and is_sealed(job.out):
        return _finished_result(job)
    job = replace(job, model=job.model.to(job.device), dataset=job.dataset.to(job.device))
    check_fit(job)
    optimiser = build_optimiser(job.model, job.config, job.device)
    observer, progression = _open(job, optimiser)
    return Loop(job, optimiser, observer, progression).run()


def _reparametrise(model: nn.Module, config: TrainingConfig) -> None:
    """Parametrise the weights as the recipe says, unless some are parametrised already."""
    if any(parametrize.is_parametrized(module) for module in model.modules()):
        return
    if config.reparam == "sigma":
        sigma_reparam(model)
    elif config.reparam == "sigma_attention":
        views = (layer.roles[role] for layer in resolve(model).layers for role in "qkv")
        chosen = {view.parameter.rpartition(".")[0] for view in views}
        sigma_reparam(model, only=lambda name, module: name in chosen)
    elif config.reparam == "spectral_norm":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)  # because the power iteration begins at random vectors
            for module in [module for module in model.modules() if isinstance(module, nn.Linear)]:
                spectral_norm(module)


def _open(job: Job, optimiser: torch.optim.Optimizer) -> tuple[Observer, Progression]:
    """Restore the newest good checkpoint and open the observer there; the main process chooses, the others follow.

    When no checkpoint is good, training starts again at step 0 with a warning: everything is a function of the seeds,
    so only time is lost, and a job that nobody watches goes on.

    Raises:
        ValueError: The folder holds another run, or another process writes it.
        OSError: The folder cannot be written.
    """
    processes = job.processes
    with contextlib.ExitStack() as undo:
        if processes.is_main:
            undo.callback(processes.most, -1)  # whatever happens, the others get an answer
            progression = _restored(job, optimiser, _choose_checkpoint(job.out, job.spec))
            observer = _observed(job, progression.step if progression.step or has_run(job.out) else None)
            undo.pop_all()
            processes.most(progression.step)
            return observer, progression
    step = processes.most(-1)
    if step < 0:
        raise ValueError(f"The main process must open the run in {job.out}; it could not, and says why.")
    progression = _restored(job, optimiser, load_checkpoint(job.out, step) if step else None)
    seed_random(job.device, seed=job.config.seed, rank=processes.rank, step=step)
    return _observed(job, step or None), progression


def _observed(job: Job, resume: int | None) -> Observer:
    return job.observe(
        job.model,
        job.out,
        every=job.ranks_due,
        spectra=job.spectra_due,
        resume=resume,
        exist="overwrite",  # what was recorded after the checkpoint is computed again
        config=job.spec,
        needs_folder=True,
    )


def _restored(job: Job, optimiser: torch.optim.Optimizer, checkpoint: TrainingState | None) -> Progression:
    if checkpoint is None:
        seed_random(job.device, seed=job.config.seed, rank=job.processes.rank, step=0)
        return Progression()
    refuse_other_config(checkpoint, job.config, job.out)
    refuse_other_data(checkpoint, job.data, job.out)
    changed = differences(checkpoint.state.get("conditions", {}), job.conditions)
    if changed:
        warnings.warn(
            f"The run in {job.out} goes on under other conditions: {changed}. The last bits of its numbers may differ "
            "from those of an uninterrupted run.",
            TrainingWarning,
            stacklevel=2,
        )
    return restore(checkpoint, job.model, optimiser, device=job.device)


def _choose_checkpoint(out: Path, spec: Mapping[str, Any]) -> TrainingState | None:
    if has_run(out):
        changed = differences(load_spec(out).get("config"), spec)
        if changed:
            raise ValueError(
                f"The run in {out} must go on as it began; {changed}. Choose another folder, or the old values."
            )
    checkpoint, skipped = find_checkpoint(out)
    if skipped:
        instead = f"step {checkpoint.step}" if checkpoint else "the beginning, as no other is left"
        warnings.warn(f"{' '.join(skipped)} Training goes on from {instead}.", TrainingWarning, stacklevel=2)
    return checkpoint


def _finished_result(job: Job) -> TrainingResult:
    """The last scores in the table of a sealed run; its trained weights are loaded into the model of the job.

    Raises:
        ValueError: The folder holds another run: another spec, other initial weights, other data.
    """
    import pyarrow.compute as pc

    out, model = job.out, job.model.to(job.device)
    changed = differences(load_spec(out).get("config"), job.spec)
    if changed:
        raise ValueError(f"{out} must not hold another finished run; {changed}. Choose another folder.")
    _refuse_other_weights(out, model)
    checkpoint, skipped = find_checkpoint(out)
    if checkpoint is None:
        warnings.warn(
            f"{' '.join(skipped)} The run in {out} has no checkpoint any more, so `model` keeps its initial "
            "weights.".lstrip(),
            TrainingWarning,
            stacklevel=2,
        )
    else:
        refuse_other_data(checkpoint, job.data, out)
        restore_model(checkpoint, model)
    table = load_run(out)
    found = ((name, table.filter(pc.equal(table["quantity"], name))["value"]) for name in _SCORES)
    scores = {name: values[-1].as_py() for name, values in found if len(values)}
    step = pc.max(table["step"]).as_py()
    return TrainingResult("finished", step, f"Was finished before, after {step} steps in {out}.", **scores)


def _refuse_other_weights(out: Path, model: nn.Module) -> None:
    own = dict(named_weights(model))
    names = canonical_names(own)
    now = {names[name]: parameter.detach().cpu() for name, parameter in own.items()}
    for name, weight in load_initial(out).items():
        if name not in now or now[name].shape != weight.shape or not torch.equal(now[name].to(weight.dtype), weight):
            what = "it has other weights in" if name in now else "it has no"
            raise ValueError(
                f"`model` must have the weights that the finished run in {out} began with; {what} {name!r}. "
                "Build it as before, or choose another folder."
            )
