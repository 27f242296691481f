"""Weights & Biases, offline unless the run given is not."""

import os
from collections.abc import Mapping
from typing import Any

_STEP = "rankrise/step"


class WandbSink:
    """A run of W&B: the one given, or a new offline one; needs the package `wandb`.

    The training step is a metric of its own, the x axis of all others, so that a resumed run may go back.
    """

    def __init__(self, run: Any = None, *, project: str = "rankrise", folder: str | os.PathLike[str] = ".") -> None:
        self._own = run is None
        if run is None:
            import wandb

            run = wandb.init(project=project, mode="offline", dir=os.fspath(folder))
        self._run = run
        self._run.define_metric("attn/*", step_metric=_STEP)
        self._defined: set[str] = set()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """All values in one row."""
        for name in values.keys() - self._defined:
            self._defined.add(name)
            if not name.startswith("attn/"):
                self._run.define_metric(name, step_metric=_STEP)
        self._run.log({_STEP: step, **values})

    def close(self) -> None:
        """End the run if it was made here."""
        if self._own:
            self._run.finish()
