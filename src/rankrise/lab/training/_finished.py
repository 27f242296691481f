"""A run that is finished already."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.heads import canonical_names
from rankrise.lab.training._plain import differences
from rankrise.lab.training._result import TrainingResult, TrainingWarning
from rankrise.lab.training._snapshot import DataRecord, refuse_other_data, restore_model
from rankrise.store import find_checkpoint, load_initial, load_run, load_spec

_SCORES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def finished_result(out: Path, spec: Mapping[str, Any], model: nn.Module, data: DataRecord) -> TrainingResult:
    """The last scores in the table of a sealed run; its trained weights go to `model`.

    Raises:
        ValueError: It is another run: another spec, other initial weights, other data.
    """
    import pyarrow.compute as pc

    changed = differences(load_spec(out).get("config"), spec)
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
        refuse_other_data(checkpoint, data, out)
        restore_model(checkpoint, model)
    table = load_run(out)
    found = ((name, table.filter(pc.equal(table["quantity"], name))["value"]) for name in _SCORES)
    scores = {name: values[-1].as_py() for name, values in found if len(values)}
    step = pc.max(table["step"]).as_py()
    return TrainingResult("finished", step, f"Was finished before, after {step} steps in {out}.", **scores)


def _refuse_other_weights(out: Path, model: nn.Module) -> None:
    initial = load_initial(out)
    own = dict(model.named_parameters(remove_duplicate=False))
    names = canonical_names(own)
    now = {names[name]: parameter.detach().cpu() for name, parameter in own.items()}
    for name, weight in initial.items():
        if name not in now or now[name].shape != weight.shape or not torch.equal(now[name].to(weight.dtype), weight):
            what = "it has other weights in" if name in now else "it has no"
            raise ValueError(
                f"`model` must have the weights that the finished run in {out} began with; {what} {name!r}. "
                "Build it as before, or choose another folder."
            )
