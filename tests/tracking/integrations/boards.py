"""What stands in TensorBoard's files beside what stands in a run directory."""

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rankrise as rr


def scalars(folder):
    """Every scalar in event files below a folder, by name: a mapping from step to value."""
    found = {}
    for path in {file.parent for file in folder.rglob("events.out.tfevents*")}:
        events = EventAccumulator(str(path))
        events.Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, {}).update({event.step: event.value for event in events.Scalars(name)})
    return found


def assert_board_has_the_run(folder, out, *, prefix=""):
    """Six numbers for each layer, at the steps and with the values of the run directory, and no more of ours."""
    run, board = rr.open_run(out), scalars(folder)
    ours = {name for name in board if "rankrise/" in name}
    wanted = {}
    for circuit in ("kq", "vo"):
        ranks = run.curve("stable_rank", circuit=circuit)
        for place, layer in enumerate(ranks.layers):
            for what, of in (("mean", np.mean), ("min", np.min), ("max", np.max)):
                name = f"{prefix}rankrise/L{layer:02d}/{circuit}/stable_rank/{what}"
                wanted[name] = dict(
                    zip(ranks.steps.astype(int).tolist(), of(ranks.values[:, place], axis=1), strict=True)
                )
    assert ours == wanted.keys()
    for name, values in wanted.items():
        assert board[name].keys() == values.keys()
        np.testing.assert_array_equal(
            np.float32(list(board[name].values())), np.float32([values[step] for step in board[name]])
        )
