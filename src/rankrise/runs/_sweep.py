"""Many runs as one table: a row for each run, with the fields in which the runs differ and the values at their end."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise._tables import table
from rankrise.runs._find import check_run, find_runs, spec_fields
from rankrise.runs._run_data import RunData, need
from rankrise.store import UntrustedFolder, has_run, is_part, read_json, show, write_json

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

PLAN = "sweep.json"  # the file beside the runs that lists which runs were asked for
_MOST_ROWS, _MOST_VALUES = 40, 6  # most rows and values that `repr` shows
_LEFT = ("run", "experiment", "state")


@dataclass(frozen=True)
class SweepRow:
    """One run of a sweep.

    Attributes:
        run: The run; its folder may not exist yet.
        experiment: The name of the experiment; empty for a run of somebody's own training loop.
        state: "finished", "running", "stopped" or "damaged", as in `find_runs`; "missing" if the run was asked for and
            has not begun.
        problem: Why the run is damaged, in a sentence; otherwise empty.
        fields: The fields of its spec by their paths.
        values: The last value of every number of the run as a whole; `stable_rank.kq` and `stable_rank.vo` are means
            over all heads at the last measurement.
    """

    run: RunData
    experiment: str
    state: str
    problem: str
    fields: Mapping[str, Any]
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values; a number that is not finite becomes null."""
        values = {name: value if math.isfinite(value) else None for name, value in self.values.items()}
        place = {"folder": str(self.run.folder), "experiment": self.experiment, "state": self.state}
        return {**place, "problem": self.problem, "spec": dict(self.fields), "values": values}


@dataclass(frozen=True)
class Sweep:
    """Runs below one folder. Iterating gives the runs that are finished, so that `rr.compare(sweep)` takes a sweep.

    Args:
        folder: The folder of the runs.
        rows: A row for each run.
    """

    folder: Path
    rows: tuple[SweepRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RunData]:
        return (row.run for row in self.rows if row.state == "finished")

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The fields of the specs that are not the same in all runs, such as "seed" or "model.init_scale"."""
        specs = [row.fields for row in self.rows if row.fields]
        names = dict.fromkeys(name for fields in specs for name in fields)
        return tuple(name for name in names if len({repr(fields.get(name)) for fields in specs}) > 1)

    @property
    def table(self) -> "pa.Table":
        """The sweep as an Arrow table: experiment, the fields that differ, state, the values at the end, folder."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {"experiment": [row.experiment for row in self.rows]}
        columns |= {name: _one_type([row.fields.get(name) for row in self.rows]) for name in self.differing}
        columns["state"] = [row.state for row in self.rows]
        names = dict.fromkeys(name for row in self.rows for name in row.values)
        columns |= {name: [row.values.get(name) for row in self.rows] for name in names}
        columns["folder"] = [str(row.run.folder) for row in self.rows]
        return pa.table(columns)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the table as a data frame of pandas, which must be installed."""
        need("pandas")
        return self.table.to_pandas()

    def __repr__(self) -> str:
        states = [row.state for row in self.rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        head = f"{show(self.folder)}: {len(self)} run{'' if len(self) == 1 else 's'}{': ' if counts else ''}{counts}"
        names = list(dict.fromkeys(name for row in self.rows for name in row.values))[:_MOST_VALUES]
        one_name = len({row.experiment for row in self.rows}) < 2
        lines = [
            {
                "run": f"{row.experiment}/{row.run.folder.name}" if not one_name else row.run.folder.name,
                **{_short(name, self.differing): _cell(row.fields.get(name, "")) for name in self.differing},
                "state": row.state,
                **{name: row.values.get(name, "") for name in names},
            }
            for row in self.rows[:_MOST_ROWS]
        ]
        more = [f"… and {len(self) - _MOST_ROWS} more; `.to_pandas()` has them"] * (len(self) > _MOST_ROWS)
        problems = [row.problem for row in self.rows if row.problem][:_MOST_ROWS]
        return "\n".join([head, *([table(lines, left=_LEFT)] if lines else []), *more, *problems])


def open_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Open every run below a folder as one table.

    Runs that `rankrise sweep` was asked for in this folder and that have not begun are rows in state "missing".

    Args:
        path: The folder of the runs.

    Raises:
        FileNotFoundError: The folder holds no run, and no run was asked for.
        ValueError: The file that lists the runs that were asked for is damaged.

    >>> import tempfile, torch
    >>> from rankrise.store import create_run, scalar_rows
    >>> out = Path(tempfile.mkdtemp())
    >>> for rate in (0.1, 0.2):
    ...     run = create_run(out / str(rate), spec={"config": {"rate": rate}}, initial={"w": torch.zeros(1)})
    ...     run.append(scalar_rows([(1, "loss", 1 - rate)]))
    ...     run.seal()
    >>> sweep = open_sweep(out)
    >>> sweep.differing, [row.values["loss"] for row in sweep.rows]
    (('rate',), [0.9, 0.8])
    """
    folder = Path(path)
    asked = _asked(folder)
    found = [run.folder for run in find_runs(folder)]
    missing = [folder / name for name in asked if not has_run(folder / name)]
    if not found and not missing:
        raise FileNotFoundError(f"A sweep must be a folder that holds runs; {show(folder)} holds none.")
    return read_sweep(folder, [*found, *missing])


def read_sweep(folder: Path, runs: Sequence[Path]) -> Sweep:
    """Return the sweep of some runs below a folder; runs that are not there are "missing"."""
    asked = _asked(folder)
    return Sweep(folder, tuple(_row(path, asked.get(_name(folder, path), {})) for path in runs))


def write_sweep_plan(folder: Path, specs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write down which runs are asked for in a folder, in addition to those that were asked for before.

    Args:
        folder: The folder of the runs.
        specs: Specs as JSON values, by the path of the run below the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = _asked(folder)
    if any(name not in known for name in specs):
        write_json(folder / PLAN, {**known, **specs}, "sweep plan")


def _asked(folder: Path) -> dict[str, Mapping[str, Any]]:
    """The specs of the runs that were asked for, by their path below the folder."""
    try:
        with UntrustedFolder(folder) as opened:
            record = read_json(opened, PLAN)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    names = [name for name in record if all(map(is_part, name.split("/")))] if isinstance(record, dict) else []
    return {name: record[name] for name in names if isinstance(record[name], dict)}


def _name(folder: Path, run: Path) -> str:
    return run.relative_to(folder).as_posix() if run.is_relative_to(folder) else ""


def _row(path: Path, asked: Mapping[str, Any]) -> SweepRow:
    run = RunData(path)
    if not has_run(path):
        return SweepRow(run, path.parent.name, "missing", "", spec_fields(asked), {})
    found = check_run(path)
    if found.state == "damaged":
        return SweepRow(run, path.parent.name, "damaged", found.problem, spec_fields(asked), {})
    try:
        values = _final(run)
    except (OSError, ValueError) as error:
        return SweepRow(run, path.parent.name, "damaged", str(error), spec_fields(run.spec), {})
    name = str(run.config.get("experiment", ""))
    return SweepRow(run, name, found.state, "", spec_fields(run.spec or run.config), values)


def _final(run: RunData) -> dict[str, float]:
    """The last value of every number of the run as a whole, and the mean stable rank of both circuits at the end."""
    import pyarrow.compute as pc

    rows = run.table
    whole = rows.filter(pc.equal(rows["layer"], -1)).select(["quantity", "step", "value"]).sort_by("step")
    values: dict[str, float] = dict(zip(whole["quantity"].to_pylist(), whole["value"].to_pylist(), strict=True))
    ranks = rows.filter(pc.equal(rows["quantity"], "stable_rank"))
    for circuit in ("kq", "vo"):
        part = ranks.filter(pc.equal(ranks["circuit"], circuit))
        if part.num_rows:
            values[f"stable_rank.{circuit}"] = pc.mean(
                part.filter(pc.equal(part["step"], pc.max(part["step"])))["value"]
            ).as_py()
    return values


def _one_type(values: list[Any]) -> list[Any]:
    """Return values of one type, because a column has one; values of several types become texts."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or len(kinds) < 2:
        return [float(value) for value in values] if kinds == {int, float} and None not in values else values
    return [None if value is None else str(value) for value in values]


def _short(name: str, names: Sequence[str]) -> str:
    """Return the last part of a path if no other path ends with it, and else the whole path."""
    last = name.rpartition(".")[2]
    return last if [other.rpartition(".")[2] for other in names].count(last) == 1 else name


def _cell(value: object) -> object:
    return value if isinstance(value, int | float | bool) else show(value)
