"""TensorBoard and W&B get the numbers, offline."""

import time

import pytest
from tests.tracking.models import small_model

import rankrise as rr


def track(out, sink):
    with rr.RankTracker(small_model(), out, every=1, sinks=[sink]) as tracker:
        tracker.step(1, loss=0.5)


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track(tmp_path / "run", rr.tracking.TensorBoardSink(tmp_path / "board"))
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5)]
    assert "attn/L00/H01/kq/stable_rank" in events.Tags()["scalars"]


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    track(tmp_path / "run", rr.tracking.WandbSink(folder=tmp_path))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 60
    while b"stable_rank" not in file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)  # another process writes it
    assert b"stable_rank" in file.read_bytes()


def test_wandb_run_of_the_user_is_left_open(tmp_path):
    class Run:
        rows, defined, finished = [], [], False

        def define_metric(self, name, step_metric):
            self.defined.append((name, step_metric))

        def log(self, row):
            self.rows.append(row)

        def finish(self):
            self.finished = True

    run = Run()
    track(tmp_path, rr.tracking.WandbSink(run))
    assert run.defined == [("attn/*", "rankrise/step"), ("loss", "rankrise/step")]
    assert {"rankrise/step": 1, "loss": 0.5}.items() <= run.rows[0].items()
    assert not run.finished
