"""How a callback opens its tracker at the step at which a trainer begins or resumes."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.store import has_run, is_sealed
from rankrise.tracking._recorder import TrackingWarning
from rankrise.tracking._tracker import RankTracker

if TYPE_CHECKING:
    from torch import nn

    from rankrise.tracking._tracked_run import Exist


def open_tracker(model: "nn.Module", out: Path, step: int, options: Mapping[str, Any]) -> RankTracker:
    """Build the tracker of a trainer that is at `step`.

    A trainer that resumes from a checkpoint consents to dropping what was recorded after it, unless `exist` is given. A
    trainer at step 0 goes on with a run that was cut off if it has the same initial weights, as a job that is started
    again before its first checkpoint does; it never replaces a finished run unless `exist` says so.
    """
    chosen: Exist | None = options.get("exist")
    exist: Exist = chosen or "error"
    resume: int | None = None
    if step:
        exist, resume = chosen or "overwrite", step
    elif chosen == "resume":
        resume = 0
    elif chosen is None and has_run(out) and not is_sealed(out):
        exist, resume = "overwrite", 0
    tracker = RankTracker(model, out, **{**options, "exist": exist, "resume": resume})
    if step and tracker.num_dropped_steps:
        warnings.warn(
            f"The run in {tracker.out} goes on from the checkpoint of step {step}: what it had recorded at "
            f"{tracker.num_dropped_steps} later step{'s' * (tracker.num_dropped_steps > 1)} was dropped.",
            TrackingWarning,
            stacklevel=2,
        )
    return tracker
