"""TensorBoard, W&B, trackio and MLflow get the numbers, offline."""

import time

import pytest
import torch
from tests.tracking.integrations.boards import assert_board_has_the_run, scalars
from tests.tracking.models import small_model, train_step

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
    assert "rankrise/L00/kq/stable_rank/mean" in events.Tags()["scalars"]


def test_the_users_own_writer_has_the_numbers_of_the_run(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path / "board")
    model = small_model()
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    with rr.RankTracker(model, tmp_path / "run", every=2, sinks=[rr.tracking.TensorBoardSink(writer)]) as tracker:
        for step in range(1, 5):
            tracker.step(step, loss=train_step(model, optimiser, step))
    assert_board_has_the_run(tmp_path / "board", tmp_path / "run")
    writer.add_scalar("mine", 1.0)  # the writer is left open
    writer.close()
    assert scalars(tmp_path / "board")["mine"] == {0: 1.0}


def test_what_is_no_writer_is_refused():
    with pytest.raises(ValueError, match="must be given a folder or a SummaryWriter; got 5"):
        rr.tracking.TensorBoardSink(5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    track(tmp_path / "run", rr.tracking.TrackioSink(project="mine", name="first"))
    import sqlite3

    (database,) = (tmp_path / "trackio").rglob("mine*.db")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        rows = sqlite3.connect(database).execute("select step, metrics from metrics").fetchall()
        if any("stable_rank" in str(metrics) for _, metrics in rows):
            break
        time.sleep(0.1)  # another process writes it
    assert {step for step, _ in rows} == {1}
    assert any("rankrise/L00/kq/stable_rank/mean" in str(metrics) for _, metrics in rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    sink = rr.tracking.MlflowSink(tracking_uri=(tmp_path / "mlruns").resolve().as_uri())
    track(tmp_path / "run", sink)
    client = MlflowClient((tmp_path / "mlruns").resolve().as_uri())
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["loss"] == 0.5
    ranks = rr.open_run(tmp_path / "run").curve("stable_rank", circuit="kq", layer=0)
    (entry,) = client.get_metric_history(run.info.run_id, "rankrise/L00/kq/stable_rank/mean")
    assert (entry.step, entry.value) == (1, ranks.values[0].mean())


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
    assert run.defined == [("rankrise/L*", "rankrise/step"), ("loss", "rankrise/step")]
    assert {"rankrise/step": 1, "loss": 0.5}.items() <= run.rows[0].items()
    assert not run.finished
