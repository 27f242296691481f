"""Open the run directory of a tracker: begin it, or go on with it, and refuse what does not fit."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rankrise.heads import HeadMap
from rankrise.store import Run, create_run, has_run, is_sealed, load_initial, resume_run
from rankrise.tracking._measure import Plan
from rankrise.tracking._schedule import Schedule
from rankrise.tracking._weights import copy_in_float32


def spec(
    head_map: HeadMap, *, plan: Plan, every: Schedule, spectra: Schedule, config: Mapping[str, object] | None
) -> dict[str, object]:
    """What `spec.json` says of a tracked run.

    Raises:
        ValueError: `config` does not go through JSON.
    """
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`config` must go through JSON; {error}. Pass numbers, strings, lists and dicts.") from None
    return {
        "kind": "tracker",
        "every": repr(every),
        "spectra": repr(spectra),
        "quantities": [q.name for q in plan.quantities],
        "directions": plan.num_directions,
        "matrices": plan.matrices,
        "layers": _layers(head_map),
        "notes": list(head_map.notes),
        "config": dict(config or {}),
    }


def initial_weights(out: Path, now: Mapping[str, Tensor], *, resume: int | None) -> dict[str, Tensor]:
    """The weights to compare with: those now for a new run, those it saved for a resumed one; never taken twice.

    Names are those without wrappers, in `now` as in what is returned.

    Raises:
        ValueError: A run is there and `resume` is not given, or the other way round; at step 0, other weights.
    """
    if resume is not None and resume < 0:
        raise ValueError(f"`resume` must be the step of a checkpoint, 0 or more; got {resume}.")
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
    saved = load_initial(out)
    if resume == 0:
        fresh = {name: weight.cpu() for name, weight in copy_in_float32(now).items()}
        if fresh.keys() != saved.keys() or any(not torch.equal(fresh[name], saved[name]) for name in fresh):
            raise ValueError(
                f"At step 0 the model must have the weights that {out} began with; it has others. "
                "Choose another folder for a new run, or seed the model as before."
            )
    return saved


def open_run(out: Path, spec: Mapping[str, object], initial: Mapping[str, Tensor], *, resume: int | None) -> Run:
    """Begin or resume the run.

    Raises:
        ValueError: The layers are not those of the run; another process writes it.
        OSError: It cannot be written.
    """
    if resume is None or not has_run(out):
        return create_run(out, spec=spec, initial=initial)
    run = resume_run(out, step=resume)
    if run.spec.get("layers") != spec["layers"]:
        run.close()
        raise ValueError(
            f"The model must have the attention layers and heads of the run in {out}; it has others: "
            f"{_counts(spec['layers'])} instead of {_counts(run.spec.get('layers'))}. Choose another folder."
        )
    return run


def refuse_changed_heads(before: HeadMap, now: HeadMap) -> None:
    """Refuse a model whose layers or heads are no longer those the tracker was built on.

    Raises:
        ValueError: With the head counts then and now.
    """
    if _layers(before) != _layers(now):
        raise ValueError(
            "The attention layers and heads must stay as they were when the tracker was built; they were "
            f"{_counts(_layers(before))} and are {_counts(_layers(now))}. Close this tracker and build a new one."
        )


def _layers(head_map: HeadMap) -> list[dict[str, object]]:
    return [
        {
            "index": layer.index,
            "name": layer.name,
            "num_heads": layer.num_heads,
            "head_dim": layer.head_dim,
            "shapes": {role: list(view.shape) for role, view in layer.roles.items()},
        }
        for layer in head_map.layers
    ]


def _counts(layers: object) -> str:
    if not isinstance(layers, list):
        return "unknown"
    counts = [f"{layer['num_heads']} × {layer['head_dim']}" for layer in layers]
    return f"{len(counts)} layers of {', '.join(dict.fromkeys(counts))} (heads × head dimension)"
