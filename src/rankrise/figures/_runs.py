"""Read runs for a figure: the table as arrays, and what the spec says of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from rankrise.store import load_run, load_spec
from rankrise.tracking import initial_spectra

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

Runs: TypeAlias = Mapping[str, Sequence[Path]]


class Dense(NamedTuple):
    """One quantity of one circuit: steps (S,), values (S, layers, heads, index), NaN where nothing was recorded."""

    steps: "NDArray[np.int64]"
    values: "NDArray[np.float64]"


@dataclass(frozen=True)
class RunData:
    """One run: its table, its spec, and what it is called."""

    folder: Path
    experiment: str
    spec: Mapping[str, Any]  # of the experiment: data, model, training, …
    table: "pa.Table"

    @property
    def source(self) -> str:
        """How a figure names it."""
        return f"{self.experiment}/{self.folder.name}"

    @property
    def seed(self) -> int:
        """Of everything random."""
        return int(self.spec.get("seed", 0))

    def scalar(self, quantity: str) -> tuple["NDArray[np.int64]", "NDArray[np.float64]"]:
        """Steps and values of a number that belongs to no layer, in the order of steps."""
        part = self._rows(quantity, "")
        steps, values = (part[name].to_numpy() for name in ("step", "value"))
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]

    def dense(self, quantity: str, circuit: str) -> Dense:
        """A quantity of a circuit as an array.

        Raises:
            ValueError: The run has none.
        """
        part = self._rows(quantity, circuit)
        if not part.num_rows:
            raise ValueError(f"{self.source} has no `{quantity}` of {circuit}: run it again with that measured.")
        return dense(part)

    def initial_spectrum(self, circuit: str) -> "NDArray[np.float64]":
        """Singular values before training, (layers, heads, index): from the table, else from the initial weights.

        Raises:
            FileNotFoundError: There is neither.
            ValueError: The initial weights have no such circuit.
        """
        part = self._rows("initial_spectrum", circuit)
        if not part.num_rows:
            import pyarrow.compute as pc

            table = initial_spectra(self.folder)
            part = table.filter(pc.equal(table["circuit"], circuit))
        if not part.num_rows:
            raise ValueError(f"{self.source} has no {circuit} in its initial weights: figures need both circuits.")
        return np.asarray(dense(part).values[0])

    def _rows(self, quantity: str, circuit: str) -> "pa.Table":
        import pyarrow.compute as pc

        same = pc.and_(pc.equal(self.table["quantity"], quantity), pc.equal(self.table["circuit"], circuit))
        return self.table.filter(same)


def dense(table: "pa.Table") -> Dense:
    """Rows of one quantity and circuit as an array; a row recorded twice counts as it was last."""
    columns = [table[name].to_numpy() for name in ("step", "layer", "head", "index")]
    found = [np.unique(column, return_inverse=True) for column in columns]
    values = np.full([len(names) for names, _ in found], np.nan)
    values[tuple(place for _, place in found)] = table["value"].to_numpy()
    return Dense(found[0][0], values)


def read_run(folder: Path) -> RunData:
    """Open a run directory that an experiment made.

    Raises:
        FileNotFoundError: There is no run.
        ValueError: It is damaged.
    """
    name, spec = spec_of(folder)
    return RunData(Path(folder), name, spec, load_run(folder))


def spec_of(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """What a run is called, and the spec of its experiment; without its table.

    Raises:
        FileNotFoundError: There is no run.
        ValueError: Its spec is damaged.
    """
    spec = load_spec(folder)
    config = spec.get("config", spec)
    if not isinstance(config, Mapping):
        return folder.parent.name, {}
    return str(config.get("experiment", folder.parent.name)), config.get("spec", config)


def read_experiment(runs: Runs, name: str, *, figure: str) -> list[RunData]:
    """The runs of one experiment, which must differ in nothing but their seed.

    Raises:
        ValueError: There are none, or they are of several scales.
    """
    require(runs, [name], figure=figure)
    found = sorted((read_run(Path(folder)) for folder in runs[name]), key=lambda run: run.seed)
    specs = [{key: value for key, value in run.spec.items() if key != "seed"} for run in found]
    if any(spec != specs[0] for spec in specs):
        raise ValueError(
            f"Runs of {name!r} in one figure must differ in their seed only; got {', '.join(r.source for r in found)}. "
            "Pass those of one scale."
        )
    return found


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
