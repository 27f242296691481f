"""Turn what the user named into a base and its steps: one checkpoint, several, or a folder of numbered ones.

Between two checkpoints of one run the change since the base keeps growing, and turns less and less. A file of another
run has learned other directions, and the change turns more than the series does elsewhere: `jumps` reports such steps.
"""

import itertools
import math
import os
import re
import statistics
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from rankrise.checkpoints.files import Checkpoint, is_weights, leads_out, open_checkpoint, show

_LEAST_COSINE = 0.2  # with few neighbours to compare with
_TIMES = 2.0  # the median angle of the other neighbours
_FEW = 2
_SHRINKS = 0.5
_MOST_STEPS = 10_000
_MOST_DIGITS = 15
_SHARD = re.compile(r"-\d+-of-\d+")


class Step(NamedTuple):
    """One checkpoint of a series."""

    step: int
    path: Path


Source = str | PathLike[str] | Checkpoint
Found = tuple[Checkpoint | None, list[tuple[Step, Source]], tuple[str, ...]]


def find_sources(base: Source | None, tuned: Source | Sequence[Source] | None, allowed: bool) -> Found:
    """The base, the steps with what to open for each, and a note where a folder could be read in two ways.

    A Trainer's folder may hold numbered checkpoints and the final model. Alone it is the series; with a base it is the
    model.

    Raises:
        ValueError: Nothing named, or one path twice.
    """
    if tuned is None:
        if base is None:
            raise ValueError("A checkpoint must be named; got none.")
        if (alone := _series(base)) is not None:
            note = f"{_name(base)} is read as its {len(alone)} numbered checkpoints; name a base to read its own model"
            return None, alone, (note,) if _opens(base, allowed) else ()
        base, tuned = None, base
    start = None if base is None else open_source(base, allowed)
    if isinstance(tuned, str | PathLike | Checkpoint):
        series = _series(tuned)
        if series is not None and not _opens(tuned, allowed):
            return start, series, ()
        first = "" if series is None else series[0][0].path.name
        note = f"{_name(tuned)} is read as one model; for the checkpoints in it name each, such as {show(first)}"
        return start, [(Step(0, _path(tuned)), tuned)], () if series is None else (note,)
    if not tuned:
        raise ValueError("A tuned checkpoint must be named; got none.")
    if len(tuned) == 1:
        return find_sources(start, tuned[0], allowed)
    by_path = {_path(source): source for source in tuned}
    if len(by_path) < len(tuned):
        raise ValueError(f"Every checkpoint must be named once; got {len(tuned)} names of {len(by_path)} checkpoints.")
    return start, [(step, by_path[step.path]) for step in number_steps(list(by_path))], ()


def open_source(source: Source, allowed: bool) -> Checkpoint:
    """The checkpoint, opened where only its path is given."""
    return source if isinstance(source, Checkpoint) else open_checkpoint(source, allow_torch_load=allowed)


def _series(source: Source) -> list[tuple[Step, Source]] | None:
    if isinstance(source, Checkpoint):
        return None
    try:
        return [(step, step.path) for step in find_steps(source)]
    except ValueError:
        return None


def _opens(source: Source, allowed: bool) -> bool:
    try:
        open_source(source, allowed)
    except ValueError:
        return False
    return True


def _path(source: Source) -> Path:
    return source.path if isinstance(source, Checkpoint) else Path(source)


def _name(source: Source) -> str:
    return show(_path(source).name or _path(source))


def find_steps(folder: str | PathLike[str]) -> list[Step]:
    """The checkpoints in a folder by the numbers in their names: `checkpoint-100`, `0000100_adapters.safetensors`.

    Names that differ in more than numbers belong to different series; the longest is taken. Where they differ in
    several numbers, as `epoch_0_step_100`, these order them and the steps count from 1. Shards are no steps, and links
    that lead out of the folder are left out.

    Raises:
        ValueError: Fewer than two.
    """
    folder = Path(folder)
    groups: dict[str, list[Path]] = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        if leads_out(folder, Path(os.path.realpath(entry))) or _SHARD.search(entry.name):
            continue  # a link to elsewhere, which the user did not name; a part of a checkpoint
        if _numbers(entry.name) and (entry.is_dir() or is_weights(entry)):
            groups.setdefault(re.sub(r"\d+", "#", entry.name), []).append(entry)
    longest = max(groups, key=lambda name: (len(groups[name]), name), default=None)
    paths = [] if longest is None else sorted(groups[longest], key=lambda path: (_numbers(path.name), path.name))
    steps = number_steps(paths)
    if len(steps) < 2 or len(steps) > _MOST_STEPS:
        raise ValueError(
            f"{show(folder)} must hold numbered checkpoints, such as checkpoint-100 and checkpoint-200; "
            f"got {len(steps)} of them."
        )
    return steps


def number_steps(paths: Sequence[str | PathLike[str]]) -> list[Step]:
    """Return the steps of given paths, by the one number in which they differ, else in the given order.

    >>> [step.step for names in (["run1/step-20", "run1/step-3"], ["sft-7b", "dpo-3b"]) for step in number_steps(names)]
    [3, 20, 1, 2]
    """
    given = [Path(path) for path in paths]
    if len({re.sub(r"\d+", "#", str(path)) for path in given}) == 1:
        places = zip(*(re.findall(r"\d+", str(path)) for path in given), strict=True)
        differing = [digits for digits in places if len(set(digits)) > 1]
        numbers = _numbers(" ".join(differing[0])) if len(differing) == 1 else ()
        if len(set(numbers)) == len(given):
            return sorted(map(Step, numbers, given))
    return [Step(n, path) for n, path in enumerate(given, start=1)]


def note_on_order(base: Source | None, tuned: Sequence[Step]) -> str | None:
    """A question where the base is a later step of the run than what it is compared with; None otherwise.

    >>> note_on_order("run/checkpoint-300", [Step(0, Path("run/checkpoint-100"))])
    'the base checkpoint-300 is a later step than checkpoint-100: if checkpoint-100 came first, swap the two'
    """
    if base is None or not tuned:
        return None
    paths = [_path(base), tuned[0].path]
    if number_steps(paths)[0].path == paths[0]:  # in order, or without numbers that order them
        return None
    first, second = (show(path.name) for path in paths)
    return f"the base {first} is a later step than {second}: if {second} came first, swap the two"


def jumps(
    steps: Sequence[int], norms: Sequence[float | None], cosines: Sequence[float | None], *, start: int = 0
) -> list[tuple[int, int, str]]:
    """Return pairs of neighbouring steps that one run does not explain, and why.

    A run whose steps were all independent would turn its change by `θ = arccos √(t/t′)` between steps t and t′. A run
    that goes anywhere turns it by less, and a run that wanders about its goal turns it by one angle every time. A
    neighbour is therefore reported where its angle is larger than that θ, and more than twice the median of the other
    neighbours, both as an angle and in units of its θ; or where its cosine is below 0.2. Where there are fewer than two
    others, the cosine alone decides. `studies/series_jumps.py` measures how often this is right.

    Args:
        steps: Their numbers.
        norms: Size of the whole change at each.
        cosines: Cosine of each change with the one before, None for the first.
        start: Number of the step that the changes are measured from.
    """
    found = []
    rows = list(zip(steps, norms, cosines, strict=True))
    turns = [
        None if cosine is None else _turn(before - start, after - start, cosine)
        for (before, *_), (after, _, cosine) in itertools.pairwise(rows)
    ]
    for i, ((before, norm0, _), (after, norm, cosine)) in enumerate(itertools.pairwise(rows)):
        turn, others = turns[i], [t for j, t in enumerate(turns) if j != i and t is not None]
        if turn is not None and _stands_out(turn, others):
            found.append((before, after, f"the change points elsewhere (cosine {cosine:.2f})"))
        elif norm is not None and norm0 and norm < _SHRINKS * norm0:
            found.append((before, after, f"the change shrinks to {norm / norm0:.0%}"))
    return found


class _Turn(NamedTuple):
    angle: float  # between two changes
    in_units: float  # the angle over the one that independent steps would give


def _stands_out(turn: _Turn, others: Sequence[_Turn]) -> bool:
    if turn.in_units <= 1:
        return False
    if len(others) < _FEW or math.cos(turn.angle) < _LEAST_COSINE:
        return math.cos(turn.angle) < _LEAST_COSINE
    usual = statistics.median(other.angle for other in others)
    in_units = statistics.median(other.in_units for other in others)
    return turn.angle > _TIMES * usual and turn.in_units > _TIMES * in_units


def _turn(before: int, after: int, cosine: float) -> _Turn:
    share = min(max(before / after, 0.0), 0.999) if after > 0 else 0.0
    angle = math.acos(min(max(cosine, -1.0), 1.0))
    return _Turn(angle, angle / math.acos(math.sqrt(share)))


def _numbers(name: str) -> tuple[int, ...]:
    """The numbers in a name; none where one is too long to be a count."""
    found = re.findall(r"\d+", name)
    return tuple(map(int, found)) if all(len(digits) <= _MOST_DIGITS for digits in found) else ()
