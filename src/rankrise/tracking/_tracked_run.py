"""The run directory of a tracker: what its `spec.json` says, how it is begun or resumed, and what does not fit it."""

import contextlib
import itertools
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from rankrise._arguments import check_choice
from rankrise.heads import AttentionLayer, HeadMap, LinearWeight, WeightView
from rankrise.store import (
    LaterRowsError,
    Run,
    create_run,
    has_run,
    is_sealed,
    load_initial,
    load_spec,
    resume_run,
)
from rankrise.tracking._parameters import copy_in_float32
from rankrise.tracking._recorder import TrackingWarning, plain_reason
from rankrise.tracking._schedule import schedule_name
from rankrise.tracking._stacks import MeasurementPlan

Exist = Literal["error", "resume", "overwrite", "new"]
Exist.__doc__ = "What to do if the folder of a new tracker holds a run already."


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
    alerts: Sequence[str] = (),
) -> dict[str, object]:
    """What `spec.json` says of a tracked run; `names` gives every parameter its name without wrappers.

    The fields `scope` and `linear` are there only if linear weights are read, and `alerts` only if there are rules, so
    that runs without them stay as they were.

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
        "every": schedule_name(plan.every),
        "spectra": schedule_name(plan.spectra),
        "quantities": [q.name for q in plan.quantities],
        "directions": plan.num_directions,
        "matrices": plan.matrices,
        "layers": [] if head_map is None else _layers(head_map.layers, names),
        "notes": [] if head_map is None else list(head_map.notes),
        "config": dict(config or {}),
        **({} if linear is None else {"scope": "linear", "linear": _linear(linear, names)}),
        **({"alerts": list(alerts)} if alerts else {}),
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


def chosen_folder(out: Path, exist: Exist, resume: int | None) -> Path:
    """The folder to write: `out`, or with `exist="new"` the first of out, out-2, out-3, … that is not there.

    Raises:
        ValueError: `exist` is unknown, or a new run is asked for at a step after the first.
    """
    check_choice("exist", exist, get_args(Exist))
    if exist != "new":
        return out
    if resume:
        raise ValueError(
            f'With `exist="new"` training must begin at step 0; it is resumed at step {resume}. '
            f'Pass the folder of the run that it goes on with, and `exist="resume"`.'
        )
    return next_free(out)


def next_free(out: Path) -> Path:
    """The first of out, out-2, out-3, … that is not there, or is an empty folder.

    >>> next_free(Path("runs/to/come"))
    PosixPath('runs/to/come')
    """
    paths = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in itertools.count(1))
    return next(path for path in paths if not path.exists() or (path.is_dir() and not any(path.iterdir())))


def begins(out: Path, exist: Exist, resume: int | None) -> bool:
    """Whether a run begins here, because there is none or because the one that is there is replaced."""
    return not has_run(out) or (exist == "overwrite" and resume is None)


def initial_weights(
    out: Path, now: Mapping[str, Tensor], spec: Mapping[str, object], *, exist: Exist, resume: int | None
) -> dict[str, Tensor]:
    """The weights to compare with: those of `now` for a new run, the saved ones for a resumed run.

    The names in `now` and in the result are names without wrappers. Nothing is written here, so a run that is refused
    stays as it is.

    Raises:
        ValueError: A run is there and neither `exist` nor `resume` says what to do, or a run to resume is not there;
            the layers, heads, adapters or folded norms are not those of the run; at step 0, the weights are not those
            of the run.
    """
    if begins(out, exist, resume):
        if resume:
            raise ValueError(
                f"To resume at step {resume}, {out} must hold the run with its initial weights; there is none. "
                "Restore it, or start training afresh."
            )
        return copy_in_float32(now)
    if resume is None and exist == "error":
        raise ValueError(
            f"{out} must not hold a run yet; it holds {'a finished' if is_sealed(out) else 'an unfinished'} one. Pass "
            f'`exist="resume"` to go on with it, `exist="overwrite"` to replace it, or `exist="new"` to write to '
            f"{next_free(out)}."
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


def open_run(
    out: Path, spec: Mapping[str, object], initial: Mapping[str, Tensor], *, exist: Exist, resume: int | None
) -> Run:
    """Begin, replace or resume the run. At step 0 a run is started over, with a warning if it had rows.

    Raises:
        ValueError: Another process writes it, or rows would be dropped without `exist="overwrite"`.
        RunDirectoryError: It cannot be written.
    """
    with opening(out):
        if begins(out, exist, resume):
            return create_run(out, spec=spec, initial=initial, overwrite=exist == "overwrite")
        try:
            run = resume_run(out, step=-1 if resume == 0 else resume, may_drop=exist == "overwrite")
        except LaterRowsError as error:
            steps = "1 later step" if error.later.num_steps == 1 else f"{error.later.num_steps} later steps"
            raise ValueError(
                f"Resuming {out} at step {resume} must not drop rows unless you allow it; it was recorded at {steps}, "
                f'to step {error.later.last_step}. Pass `exist="overwrite"` to drop them, or `exist="new"` without '
                f"`resume` to write to {next_free(out)}."
            ) from None
    if resume == 0 and run.dropped.num_rows:
        try:
            warnings.warn(
                f"The run in {out} is started over: {run.dropped.num_rows} rows to step {run.dropped.last_step} were "
                "dropped.",
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
    options = ("every", "spectra", "quantities", "directions", "matrices", "config", "alerts")
    changed = [
        f"`{name}` was {was.get(name)} and is {now.get(name)}" for name in options if was.get(name) != now.get(name)
    ]
    if changed:
        warnings.warn(
            f"The run in {out} goes on with other options than its spec.json says: {'; '.join(changed)}.",
            TrackingWarning,
            stacklevel=4,
        )


def _are_equal(now: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(w.cpu().to(saved[n].dtype), saved[n]) for n, w in now.items())


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
