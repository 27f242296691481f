"""The run directory of a tracker: what its `spec.json` says, how it is begun or resumed, and what does not fit it."""

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from rankrise.heads import AttentionLayer, HeadMap, LinearWeight, WeightView
from rankrise.store import Run, create_run, has_run, is_sealed, load_initial, load_spec, resume_run
from rankrise.tracking._parameters import copy_in_float32
from rankrise.tracking._recorder import TrackingWarning, plain_reason
from rankrise.tracking._schedule import At, Every, Schedule
from rankrise.tracking._stacks import MeasurementPlan


class RunDirectoryError(OSError):
    """The run directory cannot be opened for writing. The message says why, and what to do.

    Attributes:
        folder: The run directory.
        reason: Why it cannot be opened, and what to do, in a sentence.
        errno: The number of the system's error, if it was one.

    >>> error = RunDirectoryError(Path("runs/mine"), "the disk is full. Make room.", errno=28)
    >>> str(error), error.reason
    ('Opening the run directory runs/mine failed: the disk is full. Make room.', 'the disk is full. Make room.')
    """

    def __init__(self, folder: Path, reason: str, errno: int | None = None) -> None:
        super().__init__(f"Opening the run directory {folder} failed: {reason}")
        self.folder, self.reason, self.errno = folder, reason, errno

    def __reduce__(self) -> tuple[type[Self], tuple[Path, str, int | None]]:
        return type(self), (self.folder, self.reason, self.errno)


def spec(
    head_map: HeadMap | None,
    plan: MeasurementPlan,
    config: Mapping[str, object] | None,
    names: Mapping[str, str],
    linear: Sequence[LinearWeight] | None = None,
) -> dict[str, object]:
    """What `spec.json` says of a tracked run; `names` gives every parameter its name without wrappers.

    The fields `scope` and `linear` are there only if linear weights are read, so that runs without them stay as they
    were.

    Raises:
        ValueError: `config` is not a mapping, or JSON cannot hold it.
    """
    if not isinstance(config, Mapping | None):
        raise ValueError(f"`config` must be a mapping; got {type(config).__name__}.")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`config` must go through JSON; {error}. Pass numbers, strings, lists and dicts.") from None
    return {
        "kind": "tracker",
        "every": _schedule_name(plan.every),
        "spectra": _schedule_name(plan.spectra),
        "quantities": [q.name for q in plan.quantities],
        "directions": plan.num_directions,
        "matrices": plan.matrices,
        "layers": [] if head_map is None else _layers(head_map.layers, names),
        "notes": [] if head_map is None else list(head_map.notes),
        "config": dict(config or {}),
        **({} if linear is None else {"scope": "linear", "linear": _linear(linear, names)}),
    }


def check_folder(out: Path) -> None:
    """Refuse a path that can never be a folder.

    >>> check_folder(Path("runs/to/come"))
    """
    for path in (out, *out.parents):
        if path.is_dir():
            return
        if path.exists():
            raise ValueError(f"`out` must be a folder, there or to be made; {path} is a file. Choose another `out`.")


def initial_weights(
    out: Path, now: Mapping[str, Tensor], spec: Mapping[str, object], *, resume: int | None
) -> dict[str, Tensor]:
    """The weights to compare with: those of `now` for a new run, the saved ones for a resumed run.

    The names in `now` and in the result are names without wrappers. Nothing is written here, so a run that is refused
    stays as it is.

    Raises:
        ValueError: A run is there and `resume` is not given, or the other way round; the layers, heads, adapters or
            folded norms are not those of the run; at step 0, the weights are not those of the run.
    """
    if not has_run(out):
        if resume:
            raise ValueError(
                f"To resume at step {resume}, {out} must hold the run with its initial weights; there is none. "
                "Restore it, or start training afresh."
            )
        return copy_in_float32(now)
    is_finished = is_sealed(out)
    if resume is None or (resume == 0 and is_finished):  # starting over would wipe out a finished run
        raise ValueError(
            f"{out} must not hold {'a finished' if is_finished else 'an unfinished'} run; it does. "
            "Pass `resume=<step of the checkpoint>` to go on with it, or choose another folder."
        )
    _compare_specs(out, load_spec(out), spec)
    saved = load_initial(out)
    missing = [name for name in now if name not in saved]
    if missing:
        raise ValueError(
            f"Every weight must be among those {out} began with; {missing[0]!r} is not. "
            "Wrap, compile and adapt the model as before, or choose another folder."
        )
    are_equal = _are_equal(now, saved)
    if resume == 0 and not are_equal:
        raise ValueError(
            f"At step 0 the model must have the weights that {out} began with; it has others. "
            "Choose another folder for a new run, or seed the model as before."
        )
    if resume and now and are_equal:
        warnings.warn(
            f"At step {resume} the model has exactly the weights that {out} began with. Was the checkpoint loaded "
            "before the tracker was built?",
            TrackingWarning,
            stacklevel=3,
        )
    return saved


@contextlib.contextmanager
def opening(out: Path) -> Iterator[None]:
    """Turn an error of the disk or of reading a file into a `RunDirectoryError` that names the folder."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise RunDirectoryError(out, plain_reason(error), getattr(error, "errno", None)) from error


def open_run(out: Path, spec: Mapping[str, object], initial: Mapping[str, Tensor], *, resume: int | None) -> Run:
    """Begin or resume the run. At step 0 a run is started over, with a warning if it had rows.

    Raises:
        ValueError: Another process writes it.
        RunDirectoryError: It cannot be written.
    """
    with opening(out):
        if resume is None or not has_run(out):
            return create_run(out, spec=spec, initial=initial)
        run = resume_run(out, step=resume or -1)
    num_rows, last = run.dropped
    if resume == 0 and num_rows:
        try:
            warnings.warn(
                f"The run in {out} is started over: {num_rows} rows to step {last} were dropped.",
                TrackingWarning,
                stacklevel=3,
            )
        except TrackingWarning:  # the user has turned warnings into errors
            run.close()
            raise
    return run


def refuse_changed_weights(before: Sequence[LinearWeight], now: Sequence[LinearWeight]) -> None:
    """Refuse a model whose linear weights or adapters are not those of when the tracker was built.

    Raises:
        ValueError: The message names the first weight that differs.
    """
    if tuple(before) != tuple(now):
        other = next((w for w in (*before, *now) if w not in before or w not in now), before[0])
        raise ValueError(
            f"The linear weights and their adapters must stay as they were when the tracker was built; {other.name!r} "
            f"of layer {other.layer} has changed. Close this tracker and build a new one."
        )


def refuse_changed_heads(before: HeadMap, now: HeadMap) -> None:
    """Refuse a model whose heads, names, adapters or norms are not those of when the tracker was built.

    Raises:
        ValueError: The message has the head counts then and now, and the first layer that differs.
    """
    if [layer.views for layer in before.layers] != [layer.views for layer in now.layers]:
        was, is_ = _layers(before.layers), _layers(now.layers)
        raise ValueError(
            "The attention layers and heads must stay as they were when the tracker was built; they were "
            f"{_counts(was)} and are {_counts(is_)}; {_first_difference(was, is_)}. "
            "Close this tracker and build a new one."
        )


def _compare_specs(out: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse a model with other layers, or whose weights are read in another way; warn of other options."""
    if was.get("layers") != now["layers"]:
        raise ValueError(
            f"The model must have the attention layers and heads of the run in {out}, read in the same way; it has "
            f"others: {_counts(now['layers'])} instead of {_counts(was.get('layers'))}; "
            f"{_first_difference(was.get('layers'), now['layers'])}. Choose another folder."
        )
    if was.get("linear") != now.get("linear"):
        raise ValueError(
            f"The model must have the linear weights of the run in {out}, read with the same `scope`; it has others. "
            "Choose another folder."
        )
    options = ("every", "spectra", "quantities", "directions", "matrices", "config")
    changed = [f"`{name}` was {was.get(name)} and is {now[name]}" for name in options if was.get(name) != now[name]]
    if changed:
        warnings.warn(
            f"The run in {out} goes on with other options than its spec.json says: {'; '.join(changed)}.",
            TrackingWarning,
            stacklevel=4,
        )


def _are_equal(now: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(w.cpu().to(saved[n].dtype), saved[n]) for n, w in now.items())


def _schedule_name(schedule: Schedule) -> str:
    """The name of a schedule, the same in every process: without memory addresses."""
    if isinstance(schedule, Every | At):
        return repr(schedule)
    return str(getattr(schedule, "__qualname__", type(schedule).__qualname__))


def _layers(layers: Sequence[AttentionLayer], names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Layers as `spec.json` has them. A parameter is renamed by `names`, or keeps its own name."""
    described = [
        {
            "index": layer.index,
            "name": layer.name,
            "num_heads": layer.num_heads,
            "head_dim": layer.head_dim,
            "views": {role: _view_record(view, names or {}) for role, view in layer.roles.items()},
        }
        for layer in layers
    ]
    plain: list[dict[str, Any]] = json.loads(json.dumps(described))  # turns tuples into lists, as reading the file does
    return plain


def _linear(weights: Sequence[LinearWeight], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Linear weights as `spec.json` has them, with their parameters renamed by `names`."""
    described: list[dict[str, Any]] = []
    for weight in weights:
        record = asdict(weight)
        record["parameters"] = [names.get(name, name) for name in weight.parameters]
        for update in (update for updates in record["adapters"] for update in updates):
            update |= {key: names.get(update[key], update[key]) for key in ("a", "b")}
        described.append(record)
    plain: list[dict[str, Any]] = json.loads(json.dumps(described))
    return plain


def _view_record(view: WeightView, names: Mapping[str, str]) -> dict[str, Any]:
    record = {key: value for key, value in asdict(view).items() if value is not None or key == "norm"}
    del record["role"]
    down = record.get("down")
    adapters = [*record["adapters"], *(down["adapters"] if down else ())]
    parts = [(part, "parameter") for part in (record, record["norm"], down) if part is not None]
    for part, key in [*parts, *((adapter, k) for adapter in adapters for k in ("a", "b"))]:
        part[key] = names.get(part[key], part[key])
    return record


def _first_difference(was: object, now: object) -> str:
    """`layer 3 ('h.3.attn') has adapters of 'q' [...] instead of []`."""
    if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
        return "their number differs"
    for a, b in zip(was, now, strict=True):
        for key in ("name", "num_heads", "head_dim"):
            if a.get(key) != b[key]:
                return f"layer {b['index']} ({b['name']!r}) has {key} {b[key]!r} instead of {a.get(key)!r}"
        for role, view in b["views"].items():
            then = a.get("views", {}).get(role, {})
            for key, value in view.items():
                if then.get(key) != value:
                    return (
                        f"layer {b['index']} ({b['name']!r}) has {key} of {role!r} {value!r} instead of "
                        f"{then.get(key)!r}"
                    )
    return "in other entries"


def _counts(layers: object) -> str:
    if not isinstance(layers, list):
        return "unknown"
    if not layers:
        return "no layers"
    counts = [f"{layer['num_heads']} × {layer['head_dim']}" for layer in layers]
    return f"{len(counts)} layers of {', '.join(dict.fromkeys(counts))} (heads × head dimension)"
