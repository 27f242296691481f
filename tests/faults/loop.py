"""Somebody's own training loop with a tracker and checkpoints, as a script that is run again until it is done.

Data are a function of the step, so that a loop that was cut off comes to what it would have been.
"""

import os

import torch
from tests.tracking.models import train_step
from torch import nn

import rankrise as rr

STEPS, SAVE_EVERY = 40, 8


def tiny_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(6, 2, 6, dropout=0.0, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def live(folder, *, steps=STEPS, after_step=lambda step: None, **options):
    """Go on from the last checkpoint to the end. Rows that were not on the disk at a checkpoint would be lost."""
    model, checkpoint = tiny_model(), folder.parent / f"{folder.name}.pt"
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        done = saved["step"]
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
    options = {"every": 1, "spectra": 5, "directions": 2, "strict": True, **options}
    with rr.RankTracker(model, folder, resume=done, exist="overwrite", **options) as tracker:
        for step in range(done + 1, steps + 1):
            tracker.step(step, loss=train_step(model, optimiser, step))
            if step % SAVE_EVERY == 0:
                tracker.flush(sync=True)
                state = {"step": step, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
                torch.save(state, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
            after_step(step)


def checkpoint_step(folder):
    """The step that the loop would go on from."""
    path = folder.parent / f"{folder.name}.pt"
    return torch.load(path, weights_only=True)["step"] if path.exists() else 0


def is_done(folder):
    return rr.store.has_run(folder) and rr.store.is_sealed(folder)


def lost(folder, whole):
    """How many rows of an uninterrupted run are missing or other here; rows that are there too often count as well."""
    rows, wanted = (list(map(str, table.to_pylist())) for table in (rr.load_run(folder), whole))
    return max(len(rows), len(wanted)) - sum(a == b for a, b in zip(sorted(rows), sorted(wanted), strict=False))
