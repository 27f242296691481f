"""One run as data: its spec, and the quantities of its long table as whole arrays.

The reader does not know who wrote the run: a tracker in someone's own training loop, the trainer, or a solver of the
theory. Every array that it returns is checked, so that a caller never computes with a table that has holes.
"""

import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from rankrise._doors import plot_run
from rankrise.runs import _overview
from rankrise.runs._curve import MOST_ENTRIES, Array, Curve, Gaps, NotMeasurable, is_whole, read_curve, whole_steps
from rankrise.runs._learned import HeadChange, RunStage, find_stages, learned_heads
from rankrise.store import Alert, Followed, is_locked, is_sealed, load_run, load_spec, read_alerts

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    from matplotlib.figure import Figure

_MAY_BE_INFINITE = {"gap"}  # the gap of a stage is infinite if the winning coordinate has no rival


class Recorded(NamedTuple):
    """One quantity of one circuit: steps (S,) and values (S, layers, heads, index); a value that is missing is NaN."""

    steps: Array
    values: Array


@dataclass(frozen=True)
class RunData:
    """One run. Its methods check what they read, and raise `NotMeasurable` with a sentence that names the fault.

    A `RunData` is a snapshot: it reads the files when they are first asked for. Open a run again to see more of one
    that is still being written.

    Args:
        folder: The run directory.
        skip_broken_steps: Whether `path` leaves out a step at which a number is missing or is not finite, instead of
            refusing the table: for pictures of a run that is being written, was cut off, or diverged.
    """

    folder: Path
    skip_broken_steps: bool = False

    @classmethod
    def of_followed(cls, folder: Path, followed: Followed) -> Self:
        """Make a run from what a `RunFollower` has read; steps at which a number is missing are left out."""
        run = cls(folder, skip_broken_steps=True)
        run.__dict__.update(_record=followed.spec, table=followed.table)  # cached properties look here first
        return run

    def __repr__(self) -> str:
        try:
            return _overview.overview_text(self.overview())
        except (OSError, ValueError) as error:  # a repr must not fail
            return f"{self.folder}: damaged. {error}"

    def _repr_html_(self) -> str:
        try:
            return _overview.overview_html(self.overview())
        except (OSError, ValueError):
            return f"<pre>{html.escape(repr(self))}</pre>"

    def overview(self) -> _overview.Overview:
        """What was tracked, how far the run is, its ranks now and the stages seen, as a record."""
        return _overview.overview(self)

    def progress(self) -> _overview.Progress:
        """What was tracked and how far the run is; ranks and stages are left out, because they take longer to find."""
        return _overview.progress(self)

    @property
    def state(self) -> str:
        """One of "finished", "running" while a process writes the run, and "stopped" if it was cut off."""
        if is_sealed(self.folder):
            return "finished"
        return "running" if is_locked(self.folder) else "stopped"

    @cached_property
    def _record(self) -> Mapping[str, Any]:
        """What `spec.json` holds."""
        return load_spec(self.folder)

    @property
    def tracked_layers(self) -> Sequence[Mapping[str, Any]]:
        """The layers with attention as the tracker read them, each with `index`, `name` and `num_heads`."""
        layers: Sequence[Mapping[str, Any]] = self._record.get("layers", ())
        return layers

    @property
    def notes(self) -> tuple[str, ...]:
        """What the tracker said of the model, such as layers that it leaves out."""
        notes = self._record.get("notes", ())
        return tuple(str(note) for note in notes) if isinstance(notes, list) else ()

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The `config` of `spec.json`: the name and the spec of an experiment, or what the user of a tracker put there.

        Raises:
            FileNotFoundError: The folder holds no run.
            ValueError: The file `spec.json` is damaged.
        """
        config = self._record.get("config")
        return config if isinstance(config, Mapping) else {}

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec of the experiment, as JSON values; empty for a run of no experiment."""
        spec = self.config.get("spec")
        return spec if isinstance(spec, Mapping) else {}

    def part(self, name: str) -> Mapping[str, Any]:
        """A part of the spec, such as `model` or `task`.

        Raises:
            NotMeasurable: The spec has no such part.
        """
        found = self.spec.get(name)
        if not isinstance(found, Mapping):
            raise NotMeasurable(f"{self.source} has no `{name}` in its spec.")
        return found

    @property
    def seed(self) -> int:
        """The seed of everything random in the run; 0 if the spec has none.

        Raises:
            NotMeasurable: The seed is no whole number.
        """
        seed = self.spec.get("seed", 0)
        if type(seed) is not int:
            raise NotMeasurable(f"{self.source} has a seed that is no whole number in its spec.")
        return seed

    @property
    def init_scale(self) -> float | None:
        """The factor of the initial weights: `init_scale` of the model or of a tracker's `config`; None if not said."""
        model = self.spec.get("model")
        said = (model if isinstance(model, Mapping) else self.config).get("init_scale")
        return float(said) if isinstance(said, int | float) else None

    @property
    def source(self) -> str:
        """How verdicts and figures name the run: experiment and folder."""
        folder = Path(os.path.abspath(self.folder))  # "." has no name
        return f"{self.config.get('experiment', folder.parent.name)}/{folder.name}"

    @cached_property
    def table(self) -> "pa.Table":
        """The long table, one number a row."""
        return load_run(self.folder)

    @cached_property
    def _curves(self) -> dict[tuple[object, ...], Curve]:
        """The curves that were read before: heads, stages and the overview ask for the same ones."""
        return {}

    def to_pandas(self) -> "pandas.DataFrame":
        """The long table as a pandas frame, where pandas is installed."""
        need("pandas")
        return self.table.to_pandas()

    def to_polars(self) -> "polars.DataFrame":
        """The long table as a polars frame, where polars is installed."""
        need("polars")
        import polars

        return cast("polars.DataFrame", polars.from_arrow(self.table))

    def has(self, quantity: str, circuit: str = "") -> bool:
        """Whether the table has rows of a quantity of a circuit; an empty circuit stands for the model as a whole."""
        import pyarrow.compute as pc

        same = pc.and_(pc.equal(self.table["quantity"], quantity), pc.equal(self.table["circuit"], circuit))
        return bool(pc.any(same).as_py())

    def curve(
        self, quantity: str, *, circuit: str | None = None, layer: int | None = None, head: int | None = None
    ) -> Curve:
        """One quantity over training, as it was recorded.

        Args:
            quantity: The quantity, such as "stable_rank", "spectrum" or "loss".
            circuit: "kq", "vo", or a whole matrix such as "q"; needed if the quantity was measured in several.
            layer: One layer, counted from 0; all by default.
            head: One head, counted from 0; all by default.

        Raises:
            NotMeasurable: The run has no such quantity, circuit, layer or head; the message lists what it has.

        >>> import tempfile, torch
        >>> from rankrise import RankTracker, open_run
        >>> model = torch.nn.MultiheadAttention(4, 2, bias=False)
        >>> out = tempfile.mkdtemp()
        >>> with RankTracker(model, out=out, every=1) as tracker:
        ...     tracker.step(0, loss=0.5)
        >>> curve = open_run(out).curve("stable_rank", circuit="kq", layer=0)
        >>> curve.values.shape, curve.heads
        ((1, 2), (0, 1))
        """
        key = (quantity, circuit, layer, head)
        if key not in self._curves:
            self._curves[key] = read_curve(
                self.table, quantity, circuit=circuit, layer=layer, head=head, source=self.source
            )
        return self._curves[key]

    def heads(self, *, layer: int | None = None) -> tuple[HeadChange, ...]:
        """The heads from the one that learned most, by the size of their change.

        Args:
            layer: One layer, counted from 0; all by default.

        Raises:
            NotMeasurable: The run has no norms of heads.
        """
        return learned_heads(self, layer=layer)

    def stages(self) -> tuple[RunStage, ...]:
        """Drops of the loss and rises of the stable rank of every layer, in order of time.

        The stages are found by `rankrise.signals.detect_stages` in curves of at least 20 measurements.
        """
        return self._stages

    @cached_property
    def _stages(self) -> tuple[RunStage, ...]:
        """The stages: finding them costs seconds in a long run of many layers."""
        return find_stages(self)

    def alerts(self) -> tuple[Alert, ...]:
        """What the alerts of the tracker found, in the order of time; each has a `sentence`."""
        names = self._record.get("alerts")
        if not isinstance(names, list) or not names:
            return ()
        return read_alerts(self.table, [str(name) for name in names])

    def plot(self, figure: str = "training_curves", **options: Any) -> "Figure":
        """Draw a figure of the run with matplotlib.

        Args:
            figure: One of `rankrise.view.run_figure_ids()`.
            **options: Options of the figure.

        Returns:
            A matplotlib figure, which a notebook shows and `savefig` writes.

        Raises:
            NotMeasurable: The run lacks what the figure shows, or the figure compares several runs.
            ValueError: The figure or an option is unknown.
            ModuleNotFoundError: matplotlib is not installed.
        """
        return plot_run(self, figure, options)

    def scalar(self, quantity: str) -> Array:
        """The values of a number that belongs to no layer, in the order of steps."""
        return self.scalar_path(quantity)[1]

    def scalar_path(self, quantity: str) -> tuple[Array, Array]:
        """Steps and values of a number that belongs to no layer, in the order of steps.

        Raises:
            NotMeasurable: The quantity is missing, or was recorded twice at a step.
        """
        part = self.rows(quantity, "")
        if not part.num_rows:
            raise NotMeasurable(f"{self.source} has no `{quantity}`.")
        steps, values = (part[name].to_numpy() for name in ("step", "value"))
        order = np.argsort(steps, kind="stable")
        steps = steps[order].astype(np.float64)
        if np.any(np.diff(steps) == 0):
            raise NotMeasurable(f"{self.source} has `{quantity}` twice at a step: run it again.")
        return steps, values[order]

    def path(self, quantity: str, circuit: str, *, gaps: Gaps = "none") -> Recorded:
        """Steps and values of one quantity of one circuit, or of one whole matrix.

        Args:
            quantity: The quantity, such as "stable_rank" or "spectrum".
            circuit: "kq" or "vo", or a whole matrix such as "q" or "mlp.up_proj".
            gaps: What may be missing and then becomes NaN. "none": nothing may be missing. "tail": the last values of a
                step may be missing if they are missing in all heads, because spectra are cut to one length. "heads": a
                head may be missing at a step, because every perturbation of the theory has steps of its own.

        Raises:
            NotMeasurable: The quantity is missing, incomplete, or not finite.
        """
        part = self.rows(quantity, circuit)
        if not part.num_rows:
            raise NotMeasurable(f"{self.source} has no `{quantity}` of {circuit}: run it again with that measured.")
        if self.skip_broken_steps:
            part = whole_steps(part)
            if not part.num_rows:
                raise NotMeasurable(f"{self.source} has `{quantity}` of {circuit} at no step in all heads.")
        return Recorded(*self._dense(part, f"`{quantity}` of {circuit}", gaps))

    def initial_spectrum(self, circuit: str) -> Array:
        """Singular values before training, (layers, heads, index), from the table or else from the initial weights."""
        import pyarrow.compute as pc

        part = self.rows("initial_spectrum", circuit)
        if not part.num_rows:
            from rankrise.tracking import initial_spectra  # imports torch, which a run is opened and drawn without

            try:
                table = initial_spectra(self.folder)
            except (OSError, ValueError) as error:
                raise NotMeasurable(f"{self.source} has no initial spectrum: {error}") from None
            part = table.filter(pc.equal(table["circuit"], circuit))
        if not part.num_rows:
            raise NotMeasurable(f"{self.source} has no {circuit} in its initial weights: both circuits are needed.")
        values: Array = self._dense(part, f"the initial spectrum of {circuit}", "none")[1][0]
        if not np.isfinite(values).all():
            raise NotMeasurable(f"{self.source} has an initial spectrum of {circuit} with gaps: run it again.")
        return values

    def rows(self, quantity: str, circuit: str) -> "pa.Table":
        """The rows of one quantity of one circuit; an empty circuit stands for the model as a whole.

        Raises:
            NotMeasurable: A value is not finite.
        """
        import pyarrow.compute as pc

        same = pc.and_(pc.equal(self.table["quantity"], quantity), pc.equal(self.table["circuit"], circuit))
        part = self.table.filter(same)
        if self.skip_broken_steps:
            return part.filter(pc.is_finite(part["value"]))
        values = part["value"].to_numpy()
        if np.isnan(values).any() or (quantity not in _MAY_BE_INFINITE and np.isinf(values).any()):
            of = f"`{quantity}` of {circuit}" if circuit else f"`{quantity}`"
            raise NotMeasurable(f"{self.source} has {of} that is not a finite number.")
        return part

    def _dense(self, part: "pa.Table", what: str, gaps: Gaps) -> tuple[Array, Array]:
        """Steps (S,) and values (S, layers, heads, index) of rows of one quantity and circuit, checked."""
        columns = [part[name].to_numpy() for name in ("step", "layer", "head", "index")]
        found = [np.unique(column, return_inverse=True) for column in columns]
        shape = [len(names) for names, _ in found]
        if math.prod(shape) > max(MOST_ENTRIES, 4 * part.num_rows):  # checked before anything of this size is made
            raise NotMeasurable(f"{self.source} has not recorded {what} at every step: run it again.")
        values: Array = np.full(shape, np.nan)
        values[tuple(place for _, place in found)] = part["value"].to_numpy()
        there = np.isfinite(values)
        if there.sum() < part.num_rows:
            raise NotMeasurable(f"{self.source} has {what} twice at a step: run it again.")
        model = self.spec.get("model")
        for (names, _), word in zip(found[1:3], ("layer", "head"), strict=True):
            if names.tolist() == [-1]:  # a whole matrix has no head, and one outside the blocks has no layer
                continue
            wanted = (model.get(f"num_{word}s") if isinstance(model, Mapping) else None) or int(names[-1]) + 1
            if type(wanted) is not int or abs(wanted) > 2**31:
                raise NotMeasurable(f"{self.source} must have a count as `num_{word}s` in its spec; it has not.")
            if wanted != len(names) or names[0] != 0 or names[-1] != wanted - 1:
                raise NotMeasurable(f"{self.source} has {what} of {len(names)} of {wanted} {word}s: run it again.")
        there |= self._beyond(*there.shape[1:3])[None, :, :, None]
        if not is_whole(there, gaps):
            raise NotMeasurable(f"{self.source} has not recorded {what} at every step: run it again.")
        return found[0][0].astype(np.float64), values

    def _beyond(self, num_layers: int, num_heads: int) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which places (layers, heads) lie beyond the heads of their layer, where layers differ in their heads."""
        counts = np.full(num_layers, num_heads)
        for layer in self.tracked_layers:
            if layer["index"] < num_layers:
                counts[layer["index"]] = layer["num_heads"]
        return np.asarray(np.arange(num_heads) >= counts[:, None])


def need(package: str) -> None:
    """Refuse to go on without a package for data frames, which no extra brings."""
    import importlib

    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"`to_{package}` needs {package}, which is not installed. Install it: pip install {package}"
        ) from error
