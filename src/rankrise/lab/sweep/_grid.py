"""A grid of runs as a value: experiments × values of spec fields × seeds, and the runs that it means."""

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankrise.lab.experiments import NamedSpec, PlannedRun, find_experiment, plan_run, with_fields

MOST_RUNS = 100_000


@dataclass(frozen=True)
class Grid:
    """Experiments, each with every combination of values of some fields of its spec, with every seed.

    Args:
        experiments: Names of experiments.
        fields: Values by the path of a field, such as `{"model.init_scale": (1.0, 0.3, 0.1)}`.
        num_seeds: Seeds 0 to `num_seeds - 1` of every combination; None for the seed of the spec.
        scale: Which spec of an experiment the grid begins from: "smoke", "small" or "paper".
        title: One line about a grid that has a name.
    """

    experiments: tuple[str, ...]
    fields: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    num_seeds: int | None = None
    scale: str = "small"
    title: str = ""

    def specs(self) -> list[NamedSpec]:
        """The specs of the grid in order; the seed changes fastest.

        Raises:
            ValueError: An experiment or a field is unknown, a value does not fit its field, or the grid is too large.

        >>> grid = Grid(("toy-stages",), {"task.dim": (4, 8)}, num_seeds=3, scale="smoke")
        >>> [(named.spec.task.dim, named.spec.seed) for named in grid.specs()]
        [(4, 0), (4, 1), (4, 2), (8, 0), (8, 1), (8, 2)]
        """
        values = dict(self.fields)
        if self.num_seeds is not None:
            if "seed" in values:
                raise ValueError("`seed` must be given once: by --seeds, or as a field of the grid.")
            values["seed"] = tuple(range(self.num_seeds))
        num = len(self.experiments)
        for choices in values.values():
            num *= len(choices)
        if num > MOST_RUNS:
            raise ValueError(f"A grid must have at most {MOST_RUNS} runs; this one has {num}. Split it.")
        found = []
        for name in self.experiments:
            spec = find_experiment(name).spec(self.scale)
            for chosen in itertools.product(*values.values()):
                try:
                    varied = with_fields(spec, dict(zip(values, chosen, strict=True)))
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
                found.append(NamedSpec(name, varied))
        return found

    def plan(
        self, *, data: str | os.PathLike[str] | None = None, out: str | os.PathLike[str] = "runs"
    ) -> list[PlannedRun]:
        """The runs of the grid, each once, with what is done and what is in the way.

        Args:
            data: Folder of the data sets.
            out: Folder of the runs.

        Raises:
            ValueError: As for `specs`.
        """
        plans = [plan_run(named, data=data, out=out) for named in self.specs()]
        return list({plan.folder: plan for plan in plans}.values())


def read_fields(words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Read fields and their values as they are written at the shell.

    Values are separated by commas and are JSON; what is no JSON is text.

    Raises:
        ValueError: A word has no `=`, has no values, or names a field again.

    >>> read_fields(["model.init_scale=1,0.3", "task.activation=gelu,null"])
    {'model.init_scale': (1, 0.3), 'task.activation': ('gelu', None)}
    >>> read_fields(["model.init_scale"])
    Traceback (most recent call last):
    ValueError: A grid must be written as field=value,value; got 'model.init_scale'. Try model.init_scale=1,0.3.
    """
    fields: dict[str, tuple[Any, ...]] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (sign and name and text):
            raise ValueError(f"A grid must be written as field=value,value; got {word!r:.80}. Try {name}=1,0.3.")
        if name in fields:
            raise ValueError(f"A grid must name every field once; got {name!r:.80} twice. Join its values by commas.")
        fields[name] = tuple(dict.fromkeys(_values(text)))
    return fields


def _values(text: str) -> list[Any]:
    """The values of one field; a list of numbers, such as the betas of Adam, is one value."""
    try:
        return [tuple(value) if isinstance(value, list) else value for value in json.loads(f"[{text}]")]
    except ValueError:
        return [_value(part) for part in text.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
