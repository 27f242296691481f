"""Several processes that all want to write one run, and data loaders whose workers hold the tracker of the loop."""

import os
import re
import signal
import time
import warnings

import pytest
import torch
from tests.faults.loop import SAVE_EVERY, live, lost, tiny_model
from tests.processes import start, wait
from tests.tracking.models import train_step
from torch.utils.data import DataLoader, Dataset

import rankrise as rr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*was cut off", "ignore:.*is started over"),
]
NUM_WRITERS, REFUSED = 4, 7


@pytest.mark.parametrize("round_", range(5))
def test_one_of_several_writers_writes(tmp_path, whole, round_):
    """All begin at once; those that come too late are refused in a sentence, and change nothing."""
    folder, gate = tmp_path / "run", tmp_path / "gate"

    def writer():
        while not gate.exists():
            time.sleep(0.0005)
        try:
            live(folder, after_step=lambda step: time.sleep(0.02))
        except ValueError as error:
            os._exit(REFUSED if re.search("must have one writer|must not hold a", str(error)) else 1)

    pids = [start(writer) for _ in range(NUM_WRITERS)]
    gate.touch()
    assert {wait(pid) for pid in pids} == {0, REFUSED}
    assert lost(folder, whole) == 0


def test_second_writer_takes_over_when_the_first_is_killed(tmp_path, whole):
    folder, ready = tmp_path / "run", tmp_path / "ready"

    def first():
        live(folder, after_step=lambda step: ready.touch() if step == SAVE_EVERY + 3 else None or time.sleep(0.02))

    pid = start(first)
    while not ready.exists():
        time.sleep(0.001)
    with pytest.raises(ValueError, match=f"is being written by process {pid}"):
        live(folder)
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    live(folder)
    assert lost(folder, whole) == 0


class Uses(Dataset):
    """Samples whose worker does with the tracker what the loop does; `tracker` may be a path."""

    def __init__(self, tracker):
        self.tracker = tracker

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if isinstance(self.tracker, rr.RankTracker):
            self.tracker.step(1000 + index, loss=-1.0)
            self.tracker.log(2000 + index, loss=-1.0)
            self.tracker.flush(sync=True)
            if index % 3 == 0:
                self.tracker.close()
        else:
            assert rr.load_run(self.tracker).num_rows >= 0
        return 1


def track(folder, loader_of):
    """A loop of 40 steps that reads its loader from beginning to end every ten."""
    model = tiny_model()
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with rr.RankTracker(model, folder, every=1, spectra=5, directions=2, strict=True) as tracker:
        loader = loader_of(tracker)
        for step in range(1, 41):
            if step % 10 == 0:
                assert sum(sum(batch) for batch in loader) == 8
            tracker.step(step, loss=train_step(model, optimiser, step))


@pytest.mark.parametrize("stays", [False, True], ids=["new workers", "persistent workers"])
def test_workers_by_fork_hold_the_tracker_and_change_nothing(tmp_path, whole, stays):
    options = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": stays, "collate_fn": list}
    loaders = []

    def loader_of(tracker):
        loaders.append(DataLoader(Uses(tracker), **options))
        return loaders[0]

    track(tmp_path / "run", loader_of)
    assert not rr.store.is_locked(tmp_path / "run")  # though workers may still live
    assert lost(tmp_path / "run", whole) == 0


def test_workers_by_spawn_cannot_have_the_tracker_and_can_have_its_path(tmp_path, whole):
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True, "collate_fn": list}

    def loader_of(tracker):
        message = r"cannot be copied or pickled.* pass the path `tracker\.out` to others"
        with warnings.catch_warnings(action="ignore"), pytest.raises(TypeError, match=message):  # and one of PyTorch
            next(iter(DataLoader(Uses(tracker), **options)))
        return DataLoader(Uses(tracker.out), **options)

    track(tmp_path / "run", loader_of)
    assert lost(tmp_path / "run", whole) == 0
