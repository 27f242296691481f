"""From what the user named to the base and the steps: one checkpoint, several, or a folder of numbered ones."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from rankrise.checkpoints._checkpoint import Checkpoint
from rankrise.checkpoints._folders import show
from rankrise.checkpoints._open import open_checkpoint
from rankrise.checkpoints._series import Step, find_steps, number_steps

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
