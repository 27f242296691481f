"""What was run, in a sentence."""

import os
from pathlib import Path

from rankrise.experiments._run_data import RunData
from rankrise.figures import _networks, _toy


def describe_run(path: str | os.PathLike[str]) -> str:
    """Network, data, length and optimiser of a run, or the task of one of theory; from its spec.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: It is damaged.
    """
    run = RunData(Path(path))
    if "task" in run.spec:
        return _toy.describe(run).removeprefix("Run: ").replace(f", seed {run.seed}.", ".")
    return _networks.describe([run]).removeprefix("Run: ").replace(", one seed.", ".")
