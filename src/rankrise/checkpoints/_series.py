"""A series of checkpoints: which files are its steps, how the ranks go over them, and whether they are one run's.

Between two checkpoints of one run the change since the base grows on: its cosine with the change before stays high. A
file of another run has learned other directions, and the cosine falls to nothing.
"""

import itertools
import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from rankrise.checkpoints import _torch_files
from rankrise.checkpoints._folders import show

_LEAST_COSINE = 0.2
_SHRINKS = 0.5
_MOST_STEPS = 10_000


class Step(NamedTuple):
    """One checkpoint of a series."""

    step: int
    path: Path


def find_steps(folder: str | PathLike[str]) -> list[Step]:
    """The checkpoints in a folder by the number in their names: `checkpoint-100`, `0000100_adapters.safetensors`.

    Names that differ in more than one number belong to different series; the longest is taken. Links that lead out of
    the folder are left out.

    Raises:
        ValueError: Fewer than two.
    """
    folder = Path(folder)
    groups: dict[str, list[Step]] = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        numbers = re.findall(r"\d+", entry.name)
        is_file = entry.name.endswith(".safetensors") or _torch_files.is_weights(entry.name)
        if not Path(os.path.realpath(entry)).is_relative_to(os.path.realpath(folder)):
            continue  # a link to elsewhere, which the user did not name
        if len(numbers) == 1 and len(numbers[0]) < 16 and (entry.is_dir() or is_file):
            groups.setdefault(re.sub(r"\d+", "#", entry.name), []).append(Step(int(numbers[0]), entry))
    longest = max(groups, key=lambda name: (len(groups[name]), name), default=None)
    steps = [] if longest is None else sorted(groups[longest])
    if len(steps) < 2 or len(steps) > _MOST_STEPS:
        raise ValueError(
            f"{show(folder)} must hold numbered checkpoints, such as checkpoint-100 and checkpoint-200; "
            f"got {len(steps)} of them."
        )
    return steps


def number_steps(paths: Sequence[str | PathLike[str]]) -> list[Step]:
    """Steps of given paths, by the last number in the name of each, or of its folder; else in the given order."""
    found = [Step(_number(Path(path)), Path(path)) for path in paths]
    if all(step.step >= 0 for step in found) and len({step.step for step in found}) == len(found):
        return sorted(found)
    return [Step(n, step.path) for n, step in enumerate(found, start=1)]


def jumps(
    steps: Sequence[int], norms: Sequence[float | None], cosines: Sequence[float | None]
) -> list[tuple[int, int, str]]:
    """Pairs of neighbouring steps that one run does not explain, and why.

    Args:
        steps: Their numbers.
        norms: Size of the whole change at each.
        cosines: Cosine of each change with the one before, None for the first.
    """
    found = []
    rows = list(zip(steps, norms, cosines, strict=True))
    for (before, norm0, _), (after, norm, cosine) in itertools.pairwise(rows):
        if cosine is not None and cosine < _LEAST_COSINE:
            found.append((before, after, f"the change points elsewhere (cosine {cosine:.2f})"))
        elif norm is not None and norm0 and norm < _SHRINKS * norm0:
            found.append((before, after, f"the change shrinks to {norm / norm0:.0%}"))
    return found


def _number(path: Path) -> int:
    for name in (path.name, path.parent.name) if path.is_file() else (path.name,):
        numbers = re.findall(r"\d+", re.sub(r"-\d+-of-\d+", "", name))
        if numbers and len(numbers[-1]) < 16:
            return int(numbers[-1])
    return -1
