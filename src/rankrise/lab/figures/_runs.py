"""The runs of a figure: those of one experiment or family, recorded alike."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from rankrise.lab.experiments._run_data import Gaps, NotMeasurable, Recorded, RunData

Runs: TypeAlias = Mapping[str, Sequence[Path]]


def read_experiment(runs: Runs, name: str, *, figure: str) -> list[RunData]:
    """The runs of one experiment, which must differ in nothing but their seed.

    Raises:
        ValueError: There are none, or they are of several scales.
    """
    require(runs, [name], figure=figure)
    found = sorted((RunData(Path(folder)) for folder in runs[name]), key=lambda run: run.seed)
    specs = [{key: value for key, value in run.spec.items() if key != "seed"} for run in found]
    if any(spec != specs[0] for spec in specs):
        raise ValueError(
            f"Runs of {name!r} in one figure must differ in their seed only; got {', '.join(r.source for r in found)}. "
            "Pass those of one scale."
        )
    return found


def read_alike(found: Sequence[RunData], quantity: str, circuit: str, *, gaps: Gaps = "none") -> list[Recorded]:
    """A quantity of each run.

    Raises:
        ValueError: A table is broken, or they were recorded at different steps.
    """
    parts = [run.path(quantity, circuit, gaps=gaps) for run in found]
    for run, part in zip(found, parts, strict=True):
        if part.values.shape != parts[0].values.shape or not np.array_equal(part.steps, parts[0].steps):
            raise NotMeasurable(
                f"{run.source} has not recorded `{quantity}` of {circuit} as {found[0].source} has: run it again."
            )
    return parts


def require(runs: Runs, names: Sequence[str], *, figure: str) -> None:
    """Refuse to go on without runs.

    Raises:
        ValueError: One of `names` has none; says what to run.

    >>> require({}, ["vit-digits"], figure="stable_rank_over_training")
    Traceback (most recent call last):
    ValueError: `stable_rank_over_training` needs finished runs of vit-digits. Run them: rankrise run vit-digits
    """
    missing = [name for name in names if not runs.get(name)]
    if missing:
        raise ValueError(
            f"`{figure}` needs finished runs of {', '.join(missing)}. Run them: rankrise run {' '.join(missing)}"
        )


def family(runs: Runs, prefix: str, *, figure: str, wanted: str) -> list[str]:
    """Names of experiments that begin with `prefix` and have runs.

    Raises:
        ValueError: There are none; says what to run.
    """
    names = [name for name in runs if (name == prefix or name.startswith(f"{prefix}-")) and runs[name]]
    if not names:
        raise ValueError(f"`{figure}` needs finished runs of {wanted}. Run them: rankrise run {wanted}")
    return names
