"""The verb: what one checkpoint, or a series of them, learned over a base."""

import math
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rankrise.checkpoints.compare._circuits import find_heads, measure_layer
from rankrise.checkpoints.compare._measure import Measured, measure_pair, overlap
from rankrise.checkpoints.compare._result import Diff, Row
from rankrise.checkpoints.compare._sources import Source, Step, find_sources, jumps, note_on_order, open_source
from rankrise.checkpoints.delta import find_device, note_on_size
from rankrise.checkpoints.files import Checkpoint
from rankrise.checkpoints.match import Pair, Preflight, match_checkpoints
from rankrise.heads import HeadMap, Layout


class CheckpointWarning(UserWarning):
    """Something about checkpoints that the reader should know before believing the numbers."""


@dataclass(frozen=True)
class DiffProgress:
    """How far a diff is; `done` and `total` count work, not tensors."""

    name: str  # what comes next
    done: float
    total: float
    seconds: float

    @property
    def remaining(self) -> float | None:
        """Seconds left at the pace so far; None before there is one."""
        return self.seconds * (self.total - self.done) / self.done if self.done >= 0.01 * self.total else None


@dataclass(frozen=True, repr=False)
class Plan:
    """A diff before any value is read: the open checkpoints and what was found by names and shapes."""

    base: Checkpoint | None
    steps: tuple[Step, ...]
    checkpoints: tuple[Checkpoint, ...]
    preflights: tuple[Preflight, ...]
    base_step: int = 0  # number of the base, where it is the first of the series


def plan_diff(
    base: Source | None, tuned: Source | Sequence[Source] | None = None, *, allow_torch_load: bool = False
) -> Plan:
    """Open everything and match it; what `rankrise diff --dry-run` shows.

    Args:
        base: The base, or None. One folder of adapters, or of checkpoints whose first is the base, may stand alone.
        tuned: One checkpoint, several, or a folder of numbered ones.
        allow_torch_load: As `open_checkpoint`.

    Raises:
        ValueError: As `open_checkpoint`.
    """
    start, found, note = find_sources(base, tuned, allow_torch_load)
    steps = tuple(step for step, _ in found)
    checkpoints = tuple(open_source(source, allow_torch_load) for _, source in found)
    base_step = 0
    if start is None and not checkpoints[0].is_adapter:
        if len(checkpoints) < 2:
            raise ValueError(f"A base is needed to see what {checkpoints[0].path} learned: pass it first.")
        base_step = steps[0].step
        start, steps, checkpoints = checkpoints[0], steps[1:], checkpoints[1:]
    preflights = [match_checkpoints(start, checkpoint) for checkpoint in checkpoints]
    order = note_on_order(start, steps)
    preflights[0] = replace(preflights[0], notes=(*note, *((order,) if order else ()), *preflights[0].notes))
    return Plan(start, steps, checkpoints, tuple(preflights), base_step)


def diff(
    base: Source | Plan | None,
    tuned: Source | Sequence[Source] | None = None,
    *,
    heads: Layout | bool = True,
    num_heads: int | None = None,
    summary: bool = False,
    device: str | None = None,
    allow_torch_load: bool = False,
    on_module: Callable[[DiffProgress], None] | None = None,
) -> Diff:
    """What training changed: for every weight and every head its size, its spectrum, its ranks and their floor.

    One pair of tensors is in memory at a time, in blocks of rows where it is large. Adapters are read as what they
    add, `scale·BA`. With several tuned checkpoints every measure becomes a curve over their steps, and a
    `CheckpointWarning` says where the series jumps, as when files of different runs lie in one folder.

    Args:
        base: What training started from: a path or an open checkpoint. None for adapters, whose change needs no base.
        tuned: What it led to: one, several, or a folder of numbered checkpoints.
        heads: False to leave heads out, or your own layout.
        num_heads: Query heads, where no config.json tells.
        summary: Only size, stable rank (within a percent or so) and a lower bound on the rank above the floor, from
            norms and a power iteration: the time is that of reading the files.
        device: Where to measure, by default the CPU.
        allow_torch_load: Read files of `torch.save` with `weights_only=True`.
        on_module: Called before every weight with a `DiffProgress`.

    Raises:
        ValueError: What would give a wrong answer: another architecture, other shapes, quantised weights, a pickle.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> base = {"w": torch.eye(4), "b": torch.ones(4)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(base, f"{folder}/base.safetensors")
    ...     save_file(base | {"w": torch.diag(torch.tensor([2.0, 2.0, 1.0, 1.0]))}, f"{folder}/tuned.safetensors")
    ...     found = diff(f"{folder}/base.safetensors", f"{folder}/tuned.safetensors")
    >>> [(row.name, row.status, row.stable_rank, row.rank_above_floor) for row in found.rows]
    [('b', 'identical', 0.0, 0), ('w', 'changed', 2.0, 2)]
    """
    began = time.monotonic()
    plan = base if isinstance(base, Plan) else plan_diff(base, tuned, allow_torch_load=allow_torch_load)
    for preflight in plan.preflights:
        preflight.check()
    device = find_device(device)
    notes = list(dict.fromkeys(note for preflight in plan.preflights for note in preflight.notes))
    head_map = None if heads is False or summary else _heads(plan, heads, num_heads, notes)
    pairs = [{pair.name: pair for pair in preflight.pairs} for preflight in plan.preflights]
    work = _Work(pairs, head_map, summary, on_module, began)
    rows = _measure(plan, pairs, head_map, work, summary=summary, device=device)
    result = Diff(
        base=None if plan.base is None else str(plan.base.path),
        steps=plan.steps,
        rows=tuple(rows),
        preflights=plan.preflights,
        summary=summary,
        notes=tuple(notes),
        seconds=time.monotonic() - began,
    )
    return _with_jumps(_with_size(result), plan.base_step)


def _measure(
    plan: Plan,
    pairs: Sequence[Mapping[str, Pair]],
    head_map: HeadMap | None,
    work: "_Work",
    *,
    summary: bool,
    device: str,
) -> list[Row]:
    """Weight by weight and, within, step by step, so that the change before is at hand for the cosine."""
    rows: list[Row] = []
    same: list[set[str]] = [set() for _ in plan.steps]
    for name in work.names:
        before: dict[str, Measured] = {}
        for i, (step, checkpoint) in enumerate(zip(plan.steps, plan.checkpoints, strict=True)):
            if name not in pairs[i]:
                continue
            work.begin(name)
            found = measure_pair(plan.base, checkpoint, pairs[i][name], step=step.step, summary=summary, device=device)
            for measured in found:
                row = _with_overlap(measured, before.get(measured.row.name))
                rows.append(row)
                if len(plan.steps) > 1:
                    before[row.name] = measured
                if row.status in ("identical", "unchanged"):
                    same[i].add(name)
            work.end(pairs[i][name])
    if head_map is not None and plan.base is not None:
        for i, (step, checkpoint) in enumerate(zip(plan.steps, plan.checkpoints, strict=True)):
            known = _all_weights(plan.base, plan.preflights[i])
            same[i] |= known.keys() - pairs[i].keys()
            for layer in head_map.layers:
                work.begin(layer.name)
                rows += measure_layer(
                    plan.base, checkpoint, known, layer, step=step.step, unchanged=frozenset(same[i]), device=device
                )
                work.end_layer(pairs[i], layer.parameters())
    return sorted(rows, key=lambda row: row.step)


def _all_weights(base: Checkpoint, preflight: Preflight) -> dict[str, Pair]:
    """The pairs, and those weights of the base that an adapter leaves as they are."""
    rest = {name: Pair(name, stored, None, base.tensors[stored].shape) for name, stored in preflight.base_names.items()}
    return rest | {pair.name: pair for pair in preflight.pairs}


def _with_overlap(measured: Measured, before: Measured | None) -> Row:
    row = measured.row
    if before is None or not row.norm or not before.row.norm:
        return row
    inner = overlap(measured.change, before.change)
    return row if inner is None else replace(row, overlap=inner / (row.norm * before.row.norm))


def _with_size(result: Diff) -> Diff:
    """The result with a note where the matrices changed by more than they were."""
    rows = [row for row in result.weights() if row.kind == "matrix" and row.norm is not None and row.base_norm]
    change, base = (math.hypot(*(getattr(row, name) for row in rows)) for name in ("norm", "base_norm"))
    note = note_on_size(change, base)
    return result if note is None else replace(result, notes=(*result.notes, note))


def _with_jumps(result: Diff, start: int) -> Diff:
    """The result with a note, and a warning, for every jump."""
    if not result.is_series:
        return result
    steps = [step.step for step in result.steps]
    notes = [
        f"the series jumps between {before} and {after}: {why}; are these files of one run?"
        for before, after, why in jumps(steps, result.curves["norm"], result.curves["overlap"], start=start)
    ]
    for note in notes:
        warnings.warn(note, CheckpointWarning, stacklevel=3)
    return replace(result, notes=(*result.notes, *notes))


def _heads(plan: Plan, heads: Layout | bool, num_heads: int | None, notes: list[str]) -> HeadMap | None:
    """The attention layers of the base; where they cannot be told, a note says why."""
    if plan.base is None or plan.base.is_adapter:
        return None
    known = _all_weights(plan.base, plan.preflights[0])
    try:
        found = find_heads(plan.base, known, heads=heads if isinstance(heads, Layout) else None, num_heads=num_heads)
    except ValueError as error:
        notes.append(f"heads are left out: {error}")
        return None
    notes += dict.fromkeys(layer.doubt for layer in found if layer.doubt)
    return found


class _Work:
    """Names in natural order, and how much of the work is done."""

    def __init__(
        self,
        pairs: Sequence[Mapping[str, Pair]],
        head_map: HeadMap | None,
        summary: bool,
        on_module: Callable[[DiffProgress], None] | None,
        began: float,
    ) -> None:
        self.names = sorted({name for step in pairs for name in step}, key=_natural_order)
        self.summary, self.on_module, self.began = summary, on_module, began
        self.done = 0.0
        self.total = sum(self._cost(pair) for step in pairs for pair in step.values())
        if head_map is not None:
            self.total += sum(self._cost_layer(step, layer.parameters()) for step in pairs for layer in head_map.layers)

    def begin(self, name: str) -> None:
        if self.on_module is not None:
            self.on_module(DiffProgress(name, self.done, self.total, time.monotonic() - self.began))

    def end(self, pair: Pair) -> None:
        self.done += self._cost(pair)

    def end_layer(self, pairs: Mapping[str, Pair], names: Sequence[str]) -> None:
        self.done += self._cost_layer(pairs, names)

    def _cost(self, pair: Pair) -> float:
        """Bytes move in a summary; a spectrum costs one more factor of the smaller side."""
        if len(pair.shape) < 2 or 0 in pair.shape:
            return 1e3 + sum(pair.shape)
        rows, columns = pair.shape[0], 1
        for size in pair.shape[1:]:
            columns *= size
        small = 0 if self.summary or pair.tuned_name is None else min(rows, columns) / 16
        return 1e3 + rows * columns * (1 + small)

    def _cost_layer(self, pairs: Mapping[str, Pair], names: Sequence[str]) -> float:
        return sum(self._cost(pairs[name]) / 4 for name in names if name in pairs) + 1e3


def _natural_order(name: str) -> tuple[tuple[int, str | int], ...]:
    return tuple((0, int(p)) if p.isdecimal() else (1, p) for p in re.split(r"(\d+)", name) if p)
