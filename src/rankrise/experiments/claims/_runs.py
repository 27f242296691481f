"""Runs as claims read them: arrays from the table, and the spec."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankrise.experiments.claims._claim import NotMeasurable
from rankrise.store import load_run, load_spec
from rankrise.tracking import initial_spectra

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, np.dtype[np.float64]]
_MAY_BE_INFINITE = {"gap"}  # where the winner of a stage has no rival


@dataclass(frozen=True)
class RunData:
    """One run of an experiment."""

    folder: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What the runner put into `spec.json`: the experiment's name and its spec."""
        config = load_spec(self.folder).get("config")
        if not isinstance(config, Mapping) or not isinstance(config.get("spec"), Mapping):
            raise ValueError(f"{self.folder} must be the run of an experiment; its spec.json holds none.")
        return config

    @property
    def spec(self) -> Mapping[str, Any]:
        """Of the run, as JSON values."""
        spec: Mapping[str, Any] = self.config["spec"]
        return spec

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of the spec, such as `model` or `task`."""
        found = self.spec.get(name)
        if not isinstance(found, Mapping):
            raise NotMeasurable(f"{self.source} has no `{name}` in its spec.")
        return found

    @property
    def seed(self) -> int:
        """Of everything random."""
        return int(self.spec.get("seed", 0))

    @property
    def source(self) -> str:
        """How a verdict names it."""
        return f"{self.config.get('experiment', self.folder.parent.name)}/{self.folder.name}"

    @cached_property
    def table(self) -> "pa.Table":
        """The long table."""
        return load_run(self.folder)

    def scalar(self, quantity: str) -> Array:
        """A number that belongs to no layer, step by step."""
        return self._scalar(quantity)[1]

    def curve(self) -> tuple[Array, Array]:
        """Times and losses of a theory run, point by point."""
        (at, times), (steps, losses) = self._scalar("time"), self._scalar("loss")
        if not np.array_equal(at, steps):
            raise NotMeasurable(f"{self.source} has `time` and `loss` at different steps: run it again.")
        if np.any(np.diff(times) < 0):
            raise NotMeasurable(f"{self.source} has times out of order: run it again.")
        return times, losses

    def path(self, quantity: str, circuit: str, *, ragged: bool = False) -> tuple[Array, Array]:
        """Steps (S,) and values (S, layers, heads, index) of a circuit.

        With `ragged` heads may have steps of their own, and what was not recorded is NaN; else it must all be there.
        """
        part = self._rows(quantity, circuit)
        if not part.num_rows:
            raise NotMeasurable(f"{self.source} has no `{quantity}` of {circuit}.")
        steps, values = _dense(part)
        if not ragged and np.isnan(values).any():
            raise NotMeasurable(
                f"{self.source} has not recorded `{quantity}` of {circuit} at every step: run it again."
            )
        return steps, values

    def products(self) -> Array:
        """Products q = [a, b] of a theory run, (S, 2d)."""
        return self.along("product")

    def along(self, quantity: str) -> Array:
        """A vector of both circuits at every time of a theory run, (S, 2k)."""
        steps, found = self._scalar("time")[0], [self.path(quantity, circuit) for circuit in ("kq", "vo")]
        if not all(np.array_equal(at, steps) for at, _ in found):
            raise NotMeasurable(f"{self.source} has not recorded `{quantity}` at every time: run it again.")
        return np.concatenate([values[:, 0, 0] for _, values in found], axis=1)

    def activation_times(self) -> Array:
        """Of the coordinates of q, (2d,); inf for those that never became active."""
        d = int(self.part("task")["dim"])
        times = np.full(2 * d, np.inf)
        for offset, circuit in ((0, "kq"), (d, "vo")):
            part = self._rows("activation_time", circuit)
            times[offset + part["index"].to_numpy()] = part["value"].to_numpy()
        return times

    def initial_spectrum(self, circuit: str) -> Array:
        """Singular values before training, (layers, heads, index): from the table, else from the initial weights."""
        import pyarrow.compute as pc

        part = self._rows("initial_spectrum", circuit)
        if not part.num_rows:
            try:
                table = initial_spectra(self.folder)
            except (OSError, ValueError) as error:
                raise NotMeasurable(f"{self.source} has no initial spectrum: {error}") from None
            part = table.filter(pc.equal(table["circuit"], circuit))
        values: Array = _dense(part)[1][0]
        if not np.isfinite(values).all():
            raise NotMeasurable(f"{self.source} has an initial spectrum of {circuit} with gaps: run it again.")
        return values

    def _rows(self, quantity: str, circuit: str) -> "pa.Table":
        import pyarrow.compute as pc

        same = pc.and_(pc.equal(self.table["quantity"], quantity), pc.equal(self.table["circuit"], circuit))
        part = self.table.filter(same)
        values = part["value"].to_numpy()
        if np.isnan(values).any() or (quantity not in _MAY_BE_INFINITE and np.isinf(values).any()):
            of = f"`{quantity}` of {circuit}" if circuit else f"`{quantity}`"
            raise NotMeasurable(f"{self.source} has {of} that is not a finite number.")
        return part

    def _scalar(self, quantity: str) -> tuple[Array, Array]:
        part = self._rows(quantity, "")
        if not part.num_rows:
            raise NotMeasurable(f"{self.source} has no `{quantity}`.")
        steps, values = (part[name].to_numpy() for name in ("step", "value"))
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]


def _dense(part: "pa.Table") -> tuple[Array, Array]:
    """Steps and values (S, layers, heads, index) of rows of one quantity and circuit; NaN where there is no row."""
    columns = [part[name].to_numpy() for name in ("step", "layer", "head", "index")]
    found = [np.unique(column, return_inverse=True) for column in columns]
    values: Array = np.full([len(names) for names, _ in found], np.nan)
    values[tuple(place for _, place in found)] = part["value"].to_numpy()
    return found[0][0].astype(np.float64), values
