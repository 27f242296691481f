"""A run that is finished already."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankrise.store import load_run, load_spec
from rankrise.training._plain import differences
from rankrise.training._result import TrainingResult

_SCORES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


def finished_result(out: Path, spec: Mapping[str, Any]) -> TrainingResult:
    """The last scores in the table of a sealed run.

    Raises:
        ValueError: It is another run.
    """
    import pyarrow.compute as pc

    changed = differences(load_spec(out).get("config"), spec)
    if changed:
        raise ValueError(f"{out} must not hold another finished run; {changed}. Choose another folder.")
    table = load_run(out)
    found = ((name, table.filter(pc.equal(table["quantity"], name))["value"]) for name in _SCORES)
    scores = {name: values[-1].as_py() for name, values in found if len(values)}
    step = pc.max(table["step"]).as_py()
    return TrainingResult("finished", step, f"Was finished before, after {step} steps in {out}.", **scores)
