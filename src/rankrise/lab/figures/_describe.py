"""What was run, in a sentence."""

import os
from pathlib import Path

from rankrise.lab.experiments._run_data import RunData
from rankrise.lab.figures import _toy, _words


def describe_run(path: str | os.PathLike[str], *, of_family: bool = False) -> str:
    """Network, data, length and optimiser of a run, or the task of one of theory; from its spec.

    Args:
        path: Its folder.
        of_family: Whether it stands for runs at several initial scales, so that its own is not said.

    Raises:
        FileNotFoundError: There is no run at `path`.
        ValueError: It is damaged.
    """
    run = RunData(Path(path))
    if "task" in run.spec:
        return _toy.describe(run).removeprefix("Run: ").replace(f", seed {run.seed}.", ".")
    return _words.describe([run], of_family=of_family).removeprefix("Run: ").replace(", one seed.", ".")
